"""Notebooks among ``--scripts``: turned into Python by nbconvert."""

from __future__ import annotations

from pathlib import Path

from compare.errors import RequestError


def as_python(script: str, folder: Path) -> str:
    """The Python file to run: the script itself, or what a notebook's cells say.

    Args:
        script: a Python file, or a notebook (``.ipynb``).
        folder: where the Python file of a notebook is written.

    Raises:
        RequestError: if the file is not a notebook, or nbconvert is not installed.
    """
    if Path(script).suffix != ".ipynb":
        return script
    try:
        from nbconvert import PythonExporter  # noqa: PLC0415 (an extra)
    except ImportError:
        raise RequestError(
            f"--scripts {script}: notebooks need nbconvert; install it with: pip install 'fit-vs-loop[notebooks]'"
        ) from None
    try:
        code, _ = PythonExporter().from_filename(script)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise RequestError(f"--scripts {script}: this is not a notebook that nbconvert can read ({error})") from None
    path = folder / f"{Path(script).stem}.ipynb.py"
    path.write_text(code, encoding="utf-8")
    return str(path)
