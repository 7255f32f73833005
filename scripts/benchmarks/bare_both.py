"""Runs bare fit and the bare loop at the same time, each on an equal share of the processors.

The yardstick for the main job: nothing that trains both with TensorFlow on these processors can be much faster. Run by
scripts/benchmark.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import common

arguments = common.parser(__doc__).parse_args()
share = str(max(1, (os.cpu_count() or 1) // 2))
environment = os.environ | {"TF_NUM_INTRAOP_THREADS": share, "TF_NUM_INTEROP_THREADS": share}
bare, given = Path(__file__).with_name("bare.py"), (arguments.folder, arguments.epochs, arguments.examples)
programs = [
    subprocess.Popen([sys.executable, str(bare), how, *map(str, given)], env=environment) for how in ("fit", "loop")
]
sys.exit(max(program.wait() for program in programs))
