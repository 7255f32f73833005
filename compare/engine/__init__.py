"""Engine: what makes a run: data, strategies, the ``Run`` that trainers see, fingerprints, checkpoints, noise twins.

It turns an experiment and a strategy into records; it knows no trainer, no verdict's text and no page.
"""
