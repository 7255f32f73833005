#!/usr/bin/env python3
"""Freezes what the product says today, and tells later what has changed.

Runs every built-in experiment, strategy, way of iterating and kind of comparison on a few examples, the pairs of
scripts of the tests, and the short check of every planted loop. The first call on a commit writes golden.json; a later
one, of the same folder, runs the same again and lists what differs:

    python scripts/golden.py --out /tmp/golden                    # on the old commit
    python scripts/golden.py --out /tmp/golden                    # on the new one: status 1 if something differs
    python scripts/golden.py --out /tmp/golden --only loops       # a part, by the beginning of its name

Everything that a case says stands in golden/ of that folder as text, and what it says later in now/, so that
``diff -r`` shows the sentences. The steps' records are compared byte by byte. Another machine rounds differently: there
only verdicts, places, stages and causes are compared. All of it takes about an hour; no test needs it.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

import compare  # noqa: E402
from scripts import measure  # noqa: E402

SMALL = "--train-examples 150 --epochs 2 --batch-size 32"
REGRESSION = f"--experiment regression {SMALL}"
PLANTED = "tests/corpus/planted.py"
IN_TURN = {
    **{f"strategies/{name}": f"{REGRESSION} --strategy {name}" for name in ("default", "one-device")},
    **{f"strategies/{two}": f"{REGRESSION} --strategy {two} --replicas 2" for two in ("mirrored", "central-storage")},
    **{f"iteration/{way}": f"{REGRESSION} --iteration {way}" for way in ("for", "iterator", "function")},
    "iteration/several-steps": f"{REGRESSION} --steps-per-execution 2",
    "modes/alike": f"{SMALL} --trainers fit {PLANTED}:OtherOrder --replicas 2",
    "modes/different": f"{SMALL} --trainers fit {PLANTED}:ConstantDenominator",
    "modes/reporting": f"{SMALL} --trainers fit {PLANTED}:NeverReset",
    "modes/unknown": f"{SMALL} --trainers fit {PLANTED}:OneVariableScaled",
    "modes/truth": f"{REGRESSION} --float64-reference",
}
RUNS = {
    **{name: f"{options} --sequential" for name, options in IN_TURN.items()},
    "strategies/multi-worker": f"{REGRESSION} --strategy multi-worker --workers 2",
    "strategies/parameter-server": f"{REGRESSION} --strategy parameter-server --workers 1",
    "modes/keras-2": f"{REGRESSION} --strategy parameter-server --workers 1 --keras 2 --trainers fit loop",
    "modes/study": f"{REGRESSION} --seeds 3 --jobs 1 --trainers fit {PLANTED}:OtherRate",
    "modes/check": f"--experiment regression --check --trainers fit {PLANTED}:MeanOverBatches",
    "modes/resumed": "{0} until loop  epoch 1;{0} --resume".format(f"{REGRESSION} --sequential --name run"),
    "modes/parallel": f"{SMALL} --quiet --parallel",
    "modes/logs": "--logs reports/example-different/metrics.csv",
}
LOOPS = ("my_fit.py my_loop.py", "my_fit.py averaged.py", "my_fit.py eager.py", "both.py")
SCRIPTS = (*LOOPS, "tutorial_fit.py tutorial.py", "guide_fit.py guide.py", "gan_fit.py gan_loop.py")
MOVES = (
    (r"/tmp/[\w./-]+|\.\./[\w./-]+", "FOLDER"),
    (r"\d[\d,.]*( ?)(ms|s|min|seconds|examples/s|MiB|GiB|KiB|B)\b", r"#\1\2"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:+.]*( UTC)?", "TIME"),
    (r"\b(?=\d*[a-f])[0-9a-f]{16,64}\b", "DIGEST"),
    (r"(?m)  (continues after|starts again).*", "  goes on"),
    (r"(?s)What did they cost\?\n.*?(?=What exactly was run)", ""),
)
"""What of a text changes from one run to the next: times, sizes, folders, dates and random names."""


def main() -> None:
    parser = measure.parser(__doc__, "golden")
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME", help="cases whose names begin with these")
    parser.add_argument("--again", action="store_true", help="write golden.json anew")
    options = parser.parse_args()
    path, kept = options.out / "golden.json", options.out / "golden"
    frozen = {} if options.again or not path.exists() else json.loads(path.read_text())
    same_machine = frozen.get("machine", machine()) == machine()
    os.environ["FIT_VS_LOOP_LOUD"] = "1"  # an error of the judge ends a case instead of costing it a probe
    changed, said = [], dict(frozen)
    for name, texts in cases(tuple(options.only)):
        entry = {file: hashlib.sha256(text.encode()).hexdigest()[:16] for file, text in texts.items()}
        entry["judged"] = judged(texts)
        before = frozen.get(name)
        folder = (kept if before is None else options.out / "now") / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
        if before is None:
            said[name] = entry
            state = "new"
        elif before["judged"] != entry["judged"]:
            state = "JUDGED DIFFERENTLY"
        elif same_machine and before != entry:
            state = "differs in " + ", ".join(sorted(k for k in before | entry if before.get(k) != entry.get(k)))
        else:
            state = "equal"
        if state not in ("new", "equal"):
            changed.append(name)
        print(f"{name}: {state}", flush=True)
        path.write_text(json.dumps({"machine": machine(), **said}, indent=1, sort_keys=True) + "\n")
    sys.exit(bool(changed))


def machine() -> str:
    """What the bits of a training depend on."""
    flags = re.search(r"^flags\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    processor = hashlib.sha256(flags[1].encode()).hexdigest()[:8] if flags else ""
    return f"{processor} {os.environ.get('TF_ENABLE_ONEDNN_OPTS', '')}".strip()


def cases(only: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The names of the cases that begin with one of some texts, each with what it says, as text by file."""
    from compare.request import EXPERIMENTS

    gallery = {
        f"experiments/{name}": f"--experiment {name} {SMALL} --sequential --replicas 2 --trainers fit loop train-step"
        for name in EXPERIMENTS
    }
    pairs = {
        f"scripts/{pair}": f"--scripts {' '.join(f'tests/scripts/{script}' for script in pair.split())}"
        for pair in SCRIPTS
    }
    for name, command in (gallery | RUNS | pairs).items():
        if name.startswith(only):
            yield name, run(command)
    if any("loops".startswith(each) or each.startswith("loops") for each in only):
        yield from loops(only)


def run(commands: str) -> dict[str, str]:
    """Runs commands one after the other in an empty folder; returns what the last of them says and leaves.

    A command that ends with "until" and a few words is killed as soon as it says them.
    """
    with tempfile.TemporaryDirectory() as folder:
        for command in commands.split(";"):
            options, _, last = command.partition(" until ")
            arguments = [*options.split(), "--reports", folder, *([] if "--name" in command else ["--name", "run"])]
            done = measure.run("scripts/compare.py", *arguments, until=last or None, check=False)
        status = done.failure or "status 0"
        if status == "status 2":
            raise SystemExit(f"{command}: {done.errors}")
        said = "\n".join(line.text for line in done.lines)
        texts = {"terminal.txt": f"{settled(said)}\n{settled(done.errors)}\n{status}\n"}
        for found in (entry for entry in Path(folder).iterdir() if (entry / "run.json").exists()):
            texts |= left(found)
    return texts


def left(folder: Path) -> dict[str, str]:
    """What a run leaves in its folder, without what changes from run to run."""
    texts = {}
    run = json.loads((folder / "run.json").read_text())
    kept = ("status", "title", "notes", "trainers", "models", "unpaired", "check", "not_finite", "failures")
    texts["run.json"] = settled(json.dumps({key: run.get(key) for key in kept}, indent=1))
    if (verdict := folder / "verdict.json").exists():
        text = verdict.read_text()
        assert compare.load(folder).to_json() == text, f"{verdict} is not what compare.load reads from it"
        texts["verdict.json"] = re.sub(r',\s*"sha256": "\w+"', "", text)
    if (metrics := folder / "metrics.csv").exists():
        rows = (line.rsplit(",", 2)[0] for line in metrics.read_text().splitlines())
        texts["metrics.csv"] = "\n".join(sorted(rows)) + "\n"  # trainers may run at the same time
    steps = sorted((folder / "records").glob("*.steps"))
    texts["steps.txt"] = "".join(f"{each.name} {hashlib.sha256(each.read_bytes()).hexdigest()}\n" for each in steps)
    if (page := folder / "report.html").exists():
        text = re.sub(r"(?s)<(script|style|svg).*?</\1>", "", page.read_text())
        texts["page.txt"] = settled(re.sub(r"\s*\n\s*", "\n", html.unescape(re.sub(r"<[^>]+>", "\n", text))))
    return texts


def loops(only: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The short check's report on every planted loop, from a process for each number of replicas."""
    from corpus import planted

    for replicas in (1, 2):
        names = [bug.name for bug in [*planted.BUGS, *planted.STYLES, *planted.UNKNOWN]]
        wanted = [name for name in names if f"loops/{name} {replicas}".startswith(only)]
        with tempfile.TemporaryDirectory() as folder:
            measure.call_in_process(check_loops, Path(folder), replicas, wanted)
            for path in sorted(Path(folder).iterdir()):
                yield f"loops/{path.stem} {replicas}", {"verdict.json": path.read_text()}


def check_loops(folder: Path, replicas: int, wanted: list[str]) -> None:
    compare.configure(replicas=replicas)
    from corpus import planted

    from scripts.accuracy import checker_of

    model, optimizer = "mlp-l2-bn", "adam"
    checker = checker_of(planted.experiment(model, optimizer), replicas, planted.BATCH_SIZE)
    for bug in [*planted.BUGS, *planted.STYLES, *planted.UNKNOWN]:
        if bug.name in wanted and (
            (not bug.training and not bug.reporting) or planted.shows(bug, model, optimizer, replicas)
        ):
            try:
                said = json.dumps(checker.check(bug.trainer()).as_verdict().content(), indent=1)
            except Exception as error:
                said = json.dumps({"verdict": f"raised {type(error).__name__}: {error}", "comparisons": []})
            (folder / f"{bug.name}.json").write_text(said)


def settled(text: str) -> str:
    for pattern, settled in MOVES:
        text = re.sub(pattern, settled, text)
    return text


def judged(texts: Mapping[str, str]) -> Any:
    """Verdicts, places, stages and causes: what must be equal on every machine."""
    if "verdict.json" not in texts:
        return texts.get("terminal.txt", "").rsplit("status", 1)[-1].strip()
    verdict = json.loads(texts["verdict.json"])
    return [verdict["verdict"], *(
        [
            entry["candidate"], entry["training"]["verdict"], entry["reporting"]["verdict"],
            [(entry["training"]["first_difference"] or {}).get(key) for key in ("epoch", "step", "stage")],
            [[cause["id"], cause["side"]] for cause in entry["causes"]],
        ] for entry in verdict["comparisons"]
    )]  # fmt: skip


if __name__ == "__main__":
    main()
