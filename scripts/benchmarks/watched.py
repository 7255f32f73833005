"""Runs a script as --scripts does while its weights are recorded after every step. Run by scripts/watching.py."""

import sys
import tempfile

from compare.watch.script import run
from compare.watch.settings import Settings

script = sys.argv[1]
with tempfile.TemporaryDirectory() as folder:
    run(Settings(script, script, folder, folder, max_steps=10**9))
