"""Records: the files that a run writes while it trains, and the code that reads them back; imports no TensorFlow.

For each trainer and seed, a run keeps:

- the rows of ``metrics.csv``, one per epoch;
- ``records/TRAINER-seedN.steps``: a fingerprint of all weights after every optimizer step;
- ``records/TRAINER-seedN.json``: the names of those weights, the float type of each reported number, what the training
  cost, and checksums: of the rows of ``metrics.csv``, of each block that was appended to the fingerprints, of the
  weights, and of itself;
- ``records/TRAINER-seedN-epochM.npz``: the weights themselves at the end of every epoch.

The JSON files, the initial weights and checkpoints also have the random identity that ``run.json`` was given when the
run began, and ``run.json`` has checksums of ``verdict.json`` and ``metrics.csv``: files of another run are not taken
for a run's own.

All files are appended to and flushed as each epoch ends, because the next epoch may fail. If a process dies at any
point, ``recover`` makes its files readable again and ``Recorder.rewind`` returns to a place.
"""
