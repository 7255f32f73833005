"""Imports Matplotlib whatever ``MPLBACKEND`` names: unknown names are refused there, but only files are drawn here."""

import os
import sys
from contextlib import suppress

if "matplotlib" not in sys.modules:
    wanted = os.environ.pop("MPLBACKEND", "")
    import matplotlib

    if wanted:
        os.environ["MPLBACKEND"] = wanted
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = wanted  # as its import does
