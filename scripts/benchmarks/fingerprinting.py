"""Measures how fast the weights of a large variable are copied, hashed and fingerprinted, in bytes per second.

Prints "name: value" lines: medians over several turns, wall time. Run by scripts/scaling.py.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import xxhash  # noqa: E402

from compare.engine.fingerprints import Fingerprinter  # noqa: E402
from scripts.measure import in_turn  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("weights", type=int, help="number of float32 weights")
parser.add_argument("--turns", type=int, default=5, help="(default: %(default)s)")
options = parser.parse_args()

variable = tf.Variable(tf.random.normal([options.weights]))
fingerprint = Fingerprinter(tf.distribute.get_strategy(), [variable])
((weights,),) = fingerprint.read()
copy = np.empty_like(weights)
parts = {
    "copied": lambda: np.copyto(copy, weights),
    "hashed": lambda: xxhash.xxh3_64_intdigest(weights.data),
    "fingerprinted": fingerprint,
}


def rate(part):
    began = time.perf_counter()
    part()
    return weights.nbytes / (time.perf_counter() - began)


for part in parts.values():
    part()  # the first time, memory is allocated
rates = {name: [] for name in parts}
timed = {name: lambda part=part: rate(part) for name, part in parts.items()}
for _, name, value in in_turn(timed, options.turns):
    rates[name].append(value)
for name, values in rates.items():
    print(f"{name}: {median(values)}")
