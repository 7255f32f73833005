"""Imports Matplotlib whatever ``MPLBACKEND`` names: unknown names are refused there, but only files are drawn here."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from compare.errors import RequestError
from compare.naming import shown_path

if "matplotlib" not in sys.modules:
    wanted = os.environ.pop("MPLBACKEND", "")
    try:
        import matplotlib
    except UnicodeDecodeError:
        known = (Path(each) for each in ("matplotlibrc", os.environ.get("MATPLOTLIBRC", "")) if os.path.isfile(each))
        what = shown_path(next(known, Path("your matplotlibrc")))
        raise RequestError(f"{what}: Matplotlib reads it, and it is not in UTF-8: save it so, or move it") from None

    if wanted:
        os.environ["MPLBACKEND"] = wanted
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = wanted  # as its import does
