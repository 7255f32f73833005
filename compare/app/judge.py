"""From a run's files to its verdict, its plot and its last lines of output; no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from compare.check.causes import CATALOGUE
from compare.check.report import TRAINING
from compare.options import margin
from compare.records import INITIAL, Place, Record, in_time, read_json, read_records, write_verdict
from compare.reporting import html, plots, tensorboard
from compare.reporting.sentences import causes, sentence, stops, truth_sentence
from compare.reporting.terminal import epoch_table, say, study_table, style_of, variables
from compare.verdict import (
    ALIKE,
    DIFFERENT,
    FROM_BEST,
    IDENTICAL,
    INCONCLUSIVE,
    Comparison,
    Failure,
    Reporting,
    Training,
    as_json,
    asynchronous,
    compare_records,
    noise_start,
    not_comparable,
    with_noise,
    with_study,
    within_rounding,
)
from compare.verdict.float64 import distances
from compare.verdict.seeds import DEFAULT_MARGINS, Margin, Study, study


@dataclass(frozen=True)
class Pair:
    """Two records, and how they compare bit for bit.

    Attributes:
        reference: one record.
        candidate: the one held against it.
        anchor: the one of the two that was trained in this run, and whose noise twins can be.
        exactly: the comparison bit for bit.
        checked: what the short check found, as an entry of ``verdict.json``'s comparisons; empty without one.
        study: what all seeds say together; None where there is one seed.
    """

    reference: Record
    candidate: Record
    anchor: Record
    exactly: Comparison
    checked: Mapping[str, Any] = field(default_factory=dict)
    study: Study | None = None

    @property
    def noise_start(self) -> Place | None:
        """From where on noise twins may explain the difference; None where they cannot.

        Gradients or updates that the short check saw to be off are so, though noise may hide it in the weights.
        """
        if self.study is not None or self.certain:
            return None
        return noise_start(self.reference, self.candidate, self.exactly.training)

    @property
    def certain(self) -> bool:
        """Whether the short check saw more than rounding, by a replay that explains the reference."""
        different = bool(self.checked) and self.checked["training"]["verdict"] == DIFFERENT
        return different and bool(self.checked.get("certain", True))  # runs of before only kept it if it was so

    def twins(self, folder: Path) -> Path:
        """Where the twins' records are, or will be."""
        name = quote(self.candidate.trainer, safe="")
        return folder / "twins" / (f"{name} against" if self.exactly.against else name)

    def compared(self, folder: Path) -> Comparison:
        """The comparison, held against the twins if there are any, and with the check's view of the numbers."""
        comparison = self.exactly
        if self.noise_start is not None and self.twins(folder).exists():
            twins = read_records(self.twins(folder))
            comparison = with_noise(comparison, self.reference, self.candidate, twins, self.anchor)
        reporting, by_its_weights = comparison.reporting, None
        if self.checked:
            by_its_weights = self.checked["reporting"]["verdict"]
        if reporting.verdict is None:  # weights differ; the check judged the numbers by the trainer's own
            reporting = replace(reporting, verdict=by_its_weights)
        elif reporting.verdict == DIFFERENT != by_its_weights and within_rounding(self.reference, self.candidate):
            reporting = replace(reporting, verdict=ALIKE)
        comparison = replace(comparison, reporting=reporting)
        return comparison if self.study is None else with_study(comparison, self.study, self.known_cause)

    @property
    def known_cause(self) -> bool:
        """Whether the short check named a reason for other weights."""
        return bool(self.checked) and any(CATALOGUE[c["id"]].kind == TRAINING for c in self.checked["causes"])


def pairs(folder: Path) -> list[Pair | Comparison]:
    """What there is to compare in a run's folder; where a side failed, the comparison already."""
    content = read_json(folder / "run.json")
    names: list[str] = content["trainers"]
    records = _by_trainer(read_records(folder))
    failures = {failure["side"]: Failure(**failure) for failure in content["failures"]}
    racing = content["strategy"]["name"] == "parameter-server" and content["strategy"]["workers"] > 1
    reference, *candidates = names
    interrupted = content["status"] == "interrupted"
    found: list[Pair | Comparison] = []
    for name in candidates:
        failure = failures.get("") or failures.get(reference) or failures.get(name)
        if failure:
            found.append(not_comparable(name, failure))
            continue
        seeds = sorted(records.get(reference, {}).keys() & records.get(name, {}).keys())
        if interrupted and seeds:
            sides = records[reference], records[name]
            seeds = [seed for seed in seeds if all(side[seed].last[1] != INITIAL for side in sides)]
        if interrupted and not seeds:
            found.append(_not_begun(name))
            continue
        ours = {seed: records[reference][seed] for seed in seeds}
        theirs = {seed: records[name][seed] for seed in seeds}
        if interrupted:
            for seed in seeds:
                common = min(ours[seed].last, theirs[seed].last, key=in_time)
                ours[seed], theirs[seed] = ours[seed].up_to(common), theirs[seed].up_to(common)
        each = [(seed, compare_records(ours[seed], theirs[seed])) for seed in seeds]
        # In a study the first seed with the worst verdict stands for all.
        seed, comparison = max(each, key=lambda of_seed: (FROM_BEST.index(of_seed[1].verdict), -of_seed[0]))
        exactly = asynchronous(comparison) if racing else comparison
        studied = None
        if len(seeds) > 1:
            margins = [Margin(*margin(text)) for text in content["options"]["margin"] or ()] or DEFAULT_MARGINS
            studied = study(list(ours.values()), list(theirs.values()), margins)
            exactly = replace(exactly, seed=seed)
        checked = content.get("check", {}).get(name, {})
        found.append(Pair(ours[seed], theirs[seed], ours[seed], exactly, checked, studied))
    against = content["options"].get("against")
    others = _by_trainer(read_records(Path(against))) if against else {}
    for name in names:
        for seed in sorted(records.get(name, {}).keys() & others.get(name, {}).keys())[:1]:
            recorded, new = others[name][seed], records[name][seed]
            found.append(Pair(recorded, new, new, compare_records(recorded, new, against)))
    return found


def _not_begun(candidate: str) -> Comparison:
    reason = "the run was interrupted before both had made a step"
    return Comparison(candidate, Training(INCONCLUSIVE, None, None, 0, reason=reason), Reporting(None, {}))


def _by_trainer(records: Sequence[Record]) -> dict[str, dict[int, Record]]:
    """Records by trainer and seed."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        found.setdefault(record.trainer, {})[record.seed] = record
    return found


def publish(folder: Path) -> list[str]:
    """Write the pages of a run that has been judged, and what else is asked for; the names of its new files."""
    html.write(folder)
    html.write_index(folder.parent)
    asked = read_json(folder / "run.json")["options"].get("tensorboard")
    return ["report.html", *([tensorboard.write(folder).name] if asked else [])]


def judge(folder: Path, console: Console) -> str:
    """Write ``verdict.json``, the plot and the page, print the last lines, and give the verdict."""
    content = read_json(folder / "run.json")
    names: list[str] = content["trainers"]
    # Of a study the first seed is shown epoch by epoch.
    records = {name: of_seeds[min(of_seeds)] for name, of_seeds in _by_trainer(read_records(folder)).items()}
    comparisons = [pair.compared(folder) if isinstance(pair, Pair) else pair for pair in pairs(folder)]
    extra: dict[str, Any] = {"scope": "run"}
    if content["status"] == "interrupted":
        extra["interrupted"] = True
    stopped = [
        {"trainer": record.trainer, "seed": record.seed, **asdict(record.end)}
        for record in read_records(folder)
        if record.end is not None and record.end.epoch is not None
    ]
    if stopped:
        extra["stopped"] = stopped
    if "truth" in records and "truth" not in names:
        trained = [records[name] for name in names if name in records]
        extra["truth"] = distances(records["truth"], trained, comparisons)
    verdict = as_json(names[0], comparisons, **extra)
    for entry in verdict["comparisons"]:
        found = content.get("check", {}).get(entry["candidate"])
        if found and not entry.get("against"):
            entry |= {key: found[key] for key in ("causes", "evidence", "not_applicable")}
            if entry["verdict"] in (IDENTICAL, ALIKE):
                entry["evidence"] = []  # noise twins of the whole run explain it
    write_verdict(folder / "verdict.json", verdict)

    shown = [records[name] for name in names if name in records]
    files = ["metrics.csv", "verdict.json"]
    if any(record.logs for record in shown):
        plots.draw(folder)
        files.insert(0, "comparison.png")
        if content["options"].get("seeds", 1) > 1:
            console.print(study_table(verdict["comparisons"]))
        else:
            console.print(epoch_table(shown[0], [record for record in shown[1:] if any(record.logs.values())]))
    files = publish(folder) + files
    for entry in verdict["comparisons"]:
        console.print()
        console.print(f"{entry['verdict']}: ", style=style_of(entry["verdict"]), end="")
        say(console, sentence(entry, names[0]) + ".")
        for line in causes(entry):
            say(console, line)
        for line in variables(entry) if content["options"].get("verbose") else ():
            say(console, line)
    if verdict.get("interrupted"):
        say(console, "The run was interrupted, and is judged as far as it came.")
    for text in stops(verdict):
        say(console, text + ".")
    if "truth" in verdict:
        say(console, truth_sentence(verdict["truth"]) + ".")
    for file in files:
        if (folder / file).exists():
            say(console, str(folder / file))
    return str(verdict["verdict"])
