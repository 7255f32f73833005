"""Verdict: compares the records of two runs; plain data in, plain data out, imports no TensorFlow.

``exact`` compares bit for bit; ``judge`` judges a difference by noise twins, or by the seeds of a study. The result
is a ``model.Comparison``; a ``model.Verdict`` of all comparisons is what ``verdict.json`` holds.
"""
