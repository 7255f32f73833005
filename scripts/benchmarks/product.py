"""Measures the best rate of a float32 matrix product, in floating-point operations per second.

Run by scripts/scaling.py.
"""

import argparse
import time

import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("side", type=int, help="rows and columns of the square matrices")
side = parser.parse_args().side

matrix = tf.random.normal([side, side])
multiply = tf.function(lambda: tf.reduce_sum(matrix @ matrix))
multiply()


def seconds():
    began = time.perf_counter()
    multiply().numpy()
    return time.perf_counter() - began


print(2 * side**3 / min(seconds() for _ in range(20)))
