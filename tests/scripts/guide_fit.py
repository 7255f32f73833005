"""The guide's task, trained by ``compile`` and ``fit``."""

import runpy
import sys
from pathlib import Path

sys.argv.append("--fit")
runpy.run_path(str(Path(__file__).with_name("guide.py")), run_name="__main__")
