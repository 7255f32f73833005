"""The engine executes runs: data, strategies, the ``Run`` that trainers see, fingerprints, checkpoints, noise twins.

It turns an experiment and a strategy into records. It does not depend on trainers, on the texts of verdicts or on
reports.
"""
