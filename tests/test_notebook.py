"""The guide's notebook: executed as it is committed, with one line per trainer and a result that shows itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from compare.records.model import EPOCH_END, EpochRecord, StepRecord
from compare.reporting import jupyter
from compare.reporting.terminal import RunningGap, TrainerProgress

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "reports" / "guide" / "notebook.ipynb"


def outputs(notebook: Path, kind: str, *mime: str) -> list[str]:
    """The texts of all outputs of a kind, without times."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    found = [output for cell in cells for output in cell["outputs"] if output["output_type"] == kind]
    texts = [output["text"] if kind == "stream" else output["data"][mime[0]] for output in found
             if kind != "stream" or output["name"] == "stdout"]  # fmt: skip
    return [re.sub(r" · [\d.]+ s(?=</div>|$)", "", "".join(text)) for text in texts]


def test_the_notebook_gives_its_committed_outputs(tmp_path: Path) -> None:
    copy = tmp_path / "notebook.ipynb"
    copy.write_text(NOTEBOOK.read_text())
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(copy)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]

    printed = re.sub(r"^.* … \d+ s\n", "", "".join(outputs(copy, "stream")), flags=re.MULTILINE)  # what it waited for
    assert printed == "".join(outputs(NOTEBOOK, "stream"))
    assert "\ndifferent: my-loop does not train like fit" in printed
    assert "\nidentical: fixed trains exactly like fit" in printed
    assert "call compare.configure(replicas=4) before any other use of TensorFlow" in printed
    assert len(printed.splitlines()) == 11, "no line per epoch, no table, no messages of TensorFlow"

    lines = outputs(copy, "display_data", "text/html")
    assert lines == outputs(NOTEBOOK, "display_data", "text/html")
    assert [re.findall("<strong>(.*?)</strong> epoch 3/3", line) for line in lines] == (
        [["fit"], ["my-loop"], ["fit"], ["fixed"]]
    )
    for notebook in (copy, NOTEBOOK):
        shown, _ = outputs(notebook, "execute_result", "text/html")
        assert "<strong>regularization-missing</strong>" in shown and "tf.add_n(model.losses)" in shown
        assert "predictions agree; the loss does not" in shown and "<code>at notebook cell:21: " in shown
        assert "data:image/png;base64," in shown
    assert "INFO" not in NOTEBOOK.read_text() and "/tmp/" not in NOTEBOOK.read_text()


def test_a_line_in_a_notebook_is_updated_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool, dict[str, str]]] = []

    def display(content: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        shown.append((display_id, update, content))

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(jupyter, "REFRESH_SECONDS", 0.0)
    console, gap = jupyter.NotebookConsole(sys.stdout, quiet=False), RunningGap("fit")
    for name, hashed in (("fit", 1), ("<loop>", 2)):
        shown.clear()
        with jupyter.progress(console, name, range(1, 3), 2, 8, gap) as line:
            for epoch in (1, 2):
                for step in (1, 2, EPOCH_END):
                    weights = np.array([[hashed + 10 * (step + 1)]], np.uint64)
                    line(StepRecord(epoch, step, weights, np.array([[1.0, hashed]])))
                line(EpochRecord(epoch, {"loss": 0.5}, 1.0, 8.0))
            line(StepRecord(2, EPOCH_END, np.array([[hashed]], np.uint64), np.array([[1.0, hashed]])))  # of its end
        assert [update for _, update, _ in shown] == [False, *[True] * (len(shown) - 1)] and len(shown) > 4
        assert len({display_id for display_id, _, _ in shown}) == 1
    halfway = next(content["text/html"] for _, _, content in shown if "epoch 2/2" in content["text/html"])
    assert '<progress value="3" max="4"' in halfway and "<strong>&lt;loop&gt;</strong>" in halfway
    _, _, last = shown[-1]
    assert "epoch 2/2 · loss 0.5000 · weight gap 7.1e-01 (norm) since epoch 1, step 1" in last["text/plain"]
    assert "<progress" not in last["text/html"]


def test_quiet_shows_no_line_and_a_terminal_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def display(*_: Any, **__: Any) -> None:
        raise AssertionError("shown")

    monkeypatch.setattr("IPython.display.display", display)
    with jupyter.progress(jupyter.NotebookConsole(sys.stdout, quiet=True), "fit", range(1, 2), 1, 8):
        pass
    assert isinstance(jupyter.progress(Console(), "fit", range(1, 2), 1, 8), TrainerProgress)
    assert not jupyter.in_notebook()
