"""What the picture of a run must show, and what it must never make up."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib
import matplotlib.image
import numpy as np
import pytest
import recorded
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

import compare
from compare.records.files import write_checked
from compare.records.metrics_csv import MetricsFile, read_metrics
from compare.records.model import EpochRecord, RecordError
from compare.records.run_json import RunJson, rows_checksum
from compare.reporting import charts, pictures, plots, svg, weight_pictures
from compare.reporting.gaps import GapSeries
from compare.reporting.page_tables import epoch_rows
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import sentences
from compare.verdict.model import Comparison, Difference, Reporting, Training, Verdict

Logs = Sequence[Mapping[str, float]]
LOOP = [{"loss": 0.75, "accuracy": 0.5, "val_loss": 0.8}, {"loss": 0.5, "accuracy": 0.625, "val_loss": 0.7}]


def rows(folder: Path, **trainers: Logs) -> list[dict[str, str]]:
    """The rows of a metrics.csv that the product itself wrote."""
    write_checked(folder / "run.json", {"options": {}, "trainers": list(trainers)})
    metrics = MetricsFile(folder / "metrics.csv")
    for trainer, epochs in trainers.items():
        for epoch, logs in enumerate(epochs, start=1):
            metrics.append(metrics.row(trainer, 0, EpochRecord(epoch, logs, 10.0 / epoch, 100.0)))
    RunJson.read(folder).save(metrics_sha256=rows_checksum(folder / "metrics.csv"))
    return read_metrics(folder / "metrics.csv")


def drawn(
    table: Sequence[Mapping[str, str]],
    run: Mapping[str, object] = MappingProxyType({}),
    verdict: Verdict | None = None,
    gaps: Sequence[tuple[Comparison, str, GapSeries]] = (),
) -> Figure:
    """The picture of a run with these files."""
    trainers = {"trainers": list(dict.fromkeys(row["trainer"] for row in table))}
    return plots.figure(RunFiles(Path(), trainers | dict(run), verdict, table, {}, []), gaps)


def panel(fig: Figure, metric: str) -> tuple[Axes, Axes]:
    """The curves and the gaps of one metric."""
    side_by_side = len(fig.axes) // 2
    (found,) = [i for i, ax in enumerate(fig.axes) if ax.get_title(loc="left") == plots.plain(metric)]
    return fig.axes[found], fig.axes[found + side_by_side]


def line(ax: Axes, label: str) -> Line2D:
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def y(ax: Axes, label: str) -> list[float]:
    return [float(value) for value in np.asarray(line(ax, label).get_ydata())]


def drawn_texts(fig: Figure) -> list[Text]:
    return [text for text in fig.findobj(Text) if isinstance(text, Text) and text.get_text().strip()]


def words(fig: Figure) -> str:
    return "\n".join(text.get_text() for text in drawn_texts(fig)).replace(r"\$", "$")


def verdict(*comparisons: Comparison) -> Verdict:
    return Verdict.of("fit", comparisons)


IDENTICAL = Training("identical", 0.0, None, 938)
SAME = Comparison("loop", IDENTICAL, Reporting("identical", {}))
PARTS_NAN = Comparison("loop", Training("different", None, Difference(2, 1), 4), Reporting("identical", {}))
PARTS = Comparison("tutorial", Training("different", 0.1, Difference(1, 938), 938), Reporting(None, {}))


def test_every_trainer_is_drawn_with_the_values_of_the_csv(tmp_path: Path) -> None:
    other = [{**logs, "loss": logs["loss"] + 0.25} for logs in LOOP]
    fig = drawn(rows(tmp_path, fit=LOOP, loop=LOOP, tutorial=other))
    curves, gaps = panel(fig, "loss")
    assert y(curves, "fit loss") == y(curves, "loop loss") == [0.75, 0.5]
    assert y(curves, "tutorial loss") == [1.0, 0.75]
    assert y(curves, "loop val_loss") == pytest.approx([0.8, 0.7])
    assert list(line(curves, "fit loss").get_xdata()) == [1, 2]  # type: ignore[arg-type]
    assert y(gaps, "tutorial loss") == [0.25, 0.25]
    assert y(fig.axes[-1], "loop") == [10.0, 5.0]


@pytest.mark.parametrize(
    ("of_fit", "of_loop"),
    [(2.302585092994046, 2.3025850929940455), (0.0, 5e-324), (-1e305, 1e307)],
    ids=["next", "smallest", "largest"],
)
def test_numbers_as_near_or_far_as_two_numbers_can_be_are_drawn(tmp_path: Path, of_fit: float, of_loop: float) -> None:
    curves, gaps = panel(drawn(rows(tmp_path, fit=[{"loss": of_fit}], loop=[{"loss": of_loop}])), "loss")
    assert y(curves, "loop loss") == [of_loop] and y(gaps, "loop loss") == [abs(of_loop - of_fit)]
    assert len(curves.get_yticks()) > 1 and len(gaps.get_yticks()) > 1


def test_an_axis_of_the_largest_numbers_has_ends_and_ticks() -> None:
    axis = charts.linear(-1e308, 1e308)
    assert np.isfinite([axis.low, axis.high]).all() and len(axis.ticks) > 1


def test_coinciding_curves_are_both_visible(tmp_path: Path) -> None:
    fig = drawn(rows(tmp_path, fit=LOOP, loop=LOOP, scan=LOOP))
    curves, _ = panel(fig, "loss")
    lines = [line(curves, f"{trainer} loss") for trainer in ("fit", "loop", "scan")]
    assert [a.get_zorder() < b.get_zorder() for a, b in itertools.pairwise(lines)] == [True, True]
    sizes = [(item.get_linewidth(), item.get_markersize() + item.get_markeredgewidth()) for item in lines]
    assert sizes == sorted(sizes, reverse=True)
    assert len({item.get_marker() for item in lines[1:]} | {lines[0].get_color()}) == 3
    hollow = line(curves, "loop val_loss")
    assert hollow.get_markerfacecolor() == "white" != lines[1].get_markerfacecolor()


def test_the_reference_comes_first_whatever_ran_first(tmp_path: Path) -> None:
    other = [{**logs, "loss": 0.25} for logs in LOOP]
    fig = drawn(rows(tmp_path, loop=other, fit=LOOP), {}, verdict(SAME))
    curves, gaps = panel(fig, "loss")
    assert line(curves, "fit loss").get_linewidth() > line(curves, "loop loss").get_linewidth()
    assert y(gaps, "loop loss") == [0.5, 0.25]


def test_a_gap_of_zero_lies_on_the_marked_baseline_and_the_smallest_other_does_not(tmp_path: Path) -> None:
    near = [LOOP[0], {**LOOP[1], "loss": float(np.nextafter(np.float32(0.5), np.float32(1)))}]
    fig = drawn(rows(tmp_path, fit=LOOP, loop=near))
    fig.canvas.draw()
    _, gaps = panel(fig, "loss")
    assert y(gaps, "loop loss") == [0.0, 2.0**-24]
    zero, one = gaps.transData.transform([(1, 0.0), (1, 2.0**-24)])[:, 1]
    frame = gaps.get_window_extent()
    assert frame.y0 < zero < one - 0.1 * frame.height
    ticks = dict(zip(gaps.get_yticks(), (text.get_text() for text in gaps.get_yticklabels()), strict=True))
    assert ticks[0] == "0"
    assert "equal" in [text.get_text() for text in gaps.texts]
    (band,) = gaps.collections
    box = band.get_paths()[0].get_extents()
    assert box.y0 <= 2.0**-24 <= box.y1, "a last place of float32 lies in the band"


def weight_gaps(folder: Path) -> Figure:
    """The picture of a recorded run whose second trainer differs from step 2 of epoch 2 on."""
    fig = plots.figure_of(recorded.two(folder, off_from=6))
    assert fig is not None
    return fig


def test_the_weight_gap_is_drawn_after_every_step_with_lines_where_epochs_start(tmp_path: Path) -> None:
    fig = weight_gaps(tmp_path / "run")
    (ax,) = [ax for ax in fig.axes if ax.get_title(loc="left").startswith("Weight gap after every step")]
    assert "differs: loop from epoch 2, step 2" in ax.get_title(loc="left").replace("\n", " ")
    gaps = compare.load(tmp_path / "run").gaps
    loop = line(ax, "loop \N{MINUS SIGN} fit")
    np.testing.assert_array_equal(loop.get_ydata(), gaps.gap)
    assert list(loop.get_xdata()) == list(range(13))  # type: ignore[arg-type]  # before the first step, and after each
    upright = [x[0] for x in (np.asarray(each.get_xdata()) for each in ax.lines) if len(x) == 2 and x[0] == x[1]]
    ticks = dict(zip((text.get_text() for text in ax.get_xticklabels()), ax.get_xticks(), strict=True))
    assert upright == [5, 9] and ticks == {"1": 1, "2": 5, "3": 9}
    assert ax.get_yscale() == "symlog" and "one rounding of\nevery weight" in words(fig)


def test_gaps_of_metrics_are_drawn_beside_it_if_the_numbers_differ_and_their_markers_are_at_their_epochs(
    tmp_path: Path,
) -> None:
    other = [{**logs, "loss": logs["loss"] + 0.25} for logs in LOOP]
    table = rows(tmp_path, fit=LOOP, loop=other)
    gaps = [(SAME, "fit", flat_gaps())]
    without = drawn(table, {}, verdict(SAME), gaps)
    assert "loss: gap to fit" not in words(without)
    differs = Comparison("loop", IDENTICAL, Reporting("different", {}))
    fig = drawn(table, {}, verdict(differs), gaps)
    (ax,) = [ax for ax in fig.axes if ax.get_title(loc="left").startswith("loss: gap to fit")]
    assert list(line(ax, "loop loss").get_xdata()) == list(line(ax, "loop val_loss").get_xdata()) == [1, 2]  # type: ignore[arg-type]
    assert line(ax, "loop loss").get_markersize() < line(ax, "loop val_loss").get_markersize()
    assert "Weight gap after every step" in words(fig) and "equal, bit for bit,\nafter every step" in words(fig)


def test_an_interrupted_epoch_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    places = np.array([1, 1, 1, 1, 2], np.int32), np.array([1, 2, 3, 4, 1], np.int32)
    zero = np.zeros(5)
    gaps = GapSeries(0, *places, zero, zero == 0, zero, zero, np.zeros((5, 1), np.float32), ["w"])
    fig = drawn(rows(tmp_path, fit=LOOP[:1], loop=LOOP[:1]), {}, verdict(SAME), [(SAME, "fit", gaps)])
    (ax,) = [ax for ax in fig.axes if ax.get_title(loc="left").startswith("Weight gap after every step")]
    assert list(line(ax, "loop \N{MINUS SIGN} fit").get_xdata()) == [1, 2, 3, 4, 5]  # type: ignore[arg-type]
    assert ax.get_xlim()[1] >= 5 and ax.get_xticks().tolist() == [1, 5]


def flat_gaps() -> GapSeries:
    """The gaps of two epochs of two steps in which all weights are equal."""
    places = np.array([1, 1, 2, 2], np.int32), np.array([1, 2, 1, 2], np.int32)
    zero = np.zeros(4)
    return GapSeries(0, *places, zero, zero == 0, zero * np.nan, zero + 1e-7, np.zeros((4, 1), np.float32), ["w"])


def test_what_training_leaves_is_drawn_where_training_ends(tmp_path: Path) -> None:
    whole, one = flat_gaps(), np.array([1e-3])
    places = {"epochs": np.array([2], np.int32), "steps": np.array([2], np.int32), "equal": np.array([False])}
    sizes = {"gaps": one, "noise": one, "rounding": one, "by_variable": one.astype(np.float32)[:, np.newaxis]}
    left = dataclasses.replace(whole, **places, **sizes)
    at_end = Comparison(
        "loop at the end", Training("different", 1e-3, Difference(2, 2), 1, steps_made=2), Reporting(None, {})
    )
    compared = [(at_end, "fit at the end", left), (SAME, "fit", whole)]
    files = RunFiles(Path(), {"trainers": ["fit", "loop"]}, None, rows(tmp_path, fit=LOOP, loop=LOOP), {}, [])
    chart = weight_pictures.timeline(files, compared)
    assert chart is not None
    assert [list(line.points) for line in chart.series] == [[4], [1, 2, 3, 4]]
    assert [list(band.area) for band in chart.bands] == [[4]] and chart.title == "Weight gap after every step"


def test_what_one_side_alone_has_is_said_and_compared_with_nothing(tmp_path: Path) -> None:
    table = [
        row | {"seconds": row["seconds"] * (row["trainer"] == "fit")} for row in rows(tmp_path, fit=LOOP, loop=[{}])
    ]
    files = RunFiles(Path(), {"trainers": ["fit", "loop"]}, None, table, {}, [])
    title = plots.figure(files, [(SAME, "fit", flat_gaps())]).axes[0].get_title(loc="left")
    assert title.startswith("loss\n") and "loss and val_loss are not reported by" in title.splitlines()
    assert pictures.seconds_chart(files) is None
    assert {epoch: [name for name, _, _ in lines] for epoch, lines in epoch_rows(files)[1].items()} == {
        1: ["fit"],
        2: ["fit"],
    }


def test_what_is_missing_or_no_number_is_a_hole_and_never_a_zero(tmp_path: Path) -> None:
    fit = [{"loss": 0.5, "val_loss": 0.5}, {"loss": 0.5}, {"loss": 0.25}, {"loss": 0.5}]
    loop = [{"loss": 0.5}, {"loss": math.nan}, {"loss": math.inf}, {"loss": 0.5}]
    fig = drawn(rows(tmp_path, fit=fit, loop=loop))
    curves, gaps = panel(fig, "loss")
    assert y(curves, "loop loss") == pytest.approx([0.5, math.nan, math.nan, 0.5], nan_ok=True)
    assert y(curves, "fit val_loss") == [0.5]
    assert y(gaps, "loop loss") == pytest.approx([0, math.nan, math.nan, 0], nan_ok=True)
    assert not [item for item in gaps.lines if item.get_label() == "loop val_loss"]
    marks = [np.asarray(item.get_xdata()) for item in gaps.lines if item.get_marker() == "x"]
    crosses = [round(float(x)) for mark in marks for x in mark]
    assert sorted(crosses) == [2, 3]
    assert "val_loss is not reported by loop" in gaps.get_title(loc="left")
    assert "missing, NaN or infinite" in words(fig)
    low, high = curves.get_ylim()
    assert 0.2 < low < high < 0.6


def test_weights_that_are_not_finite_are_crosses_in_the_weight_gap(tmp_path: Path) -> None:
    gaps = dataclasses.replace(flat_gaps(), gaps=np.array([0, 0, math.nan, math.nan]), equal=np.arange(4) < 2)
    fig = drawn(rows(tmp_path, fit=LOOP, loop=LOOP), {}, verdict(PARTS_NAN), [(PARTS_NAN, "fit", gaps)])
    (ax,) = [ax for ax in fig.axes if ax.get_title(loc="left").startswith("Weight gap after every step")]
    (crosses,) = [list(np.asarray(item.get_xdata())) for item in ax.lines if item.get_marker() == "x"]
    assert crosses == [3, 4] and "missing, NaN or infinite" in words(fig)


def test_page_and_picture_interrupt_a_line_where_nothing_was_reported_and_mark_what_one_side_lacks(
    tmp_path: Path,
) -> None:
    fit = [{"loss": 0.5}, {"loss": 0.5}, {"loss": 0.5}, {"loss": 0.5}]
    table = rows(tmp_path, fit=fit, loop=[*fit[:2], {"other": 1.0}, fit[3]])
    files = RunFiles(Path(), {"trainers": ["fit", "loop"]}, None, table, {}, [])
    gaps = pictures.gap_chart(files, "loss")
    assert gaps is not None and [series.tooltips[3] for series in gaps.series] == ["not reported by both"]
    for chart, crosses in ((pictures.metric_chart(files, "loss"), 0), (gaps, 1)):
        (curve,) = [curve for curve in svg.content(chart)["curves"] if curve["name"] == "loop loss"]
        assert (curve["path"].count("M"), len(curve["crosses"])) == (2, crosses)
    curves, lower = panel(drawn(table), "loss")
    for ax in (curves, lower):
        assert np.isnan(y(ax, "loop loss")).tolist() == [False, False, True, False]


def test_a_cross_is_above_all_gaps(tmp_path: Path) -> None:
    fit = [{"loss": 0.5, "val_loss": 0.5}] * 3
    loop = [{"loss": math.nan, "val_loss": 9.0}] * 3
    _, gaps = panel(drawn(rows(tmp_path, fit=fit, loop=loop)), "loss")
    (cross,) = [item for item in gaps.lines if item.get_marker() == "x"]
    place = gaps.transAxes.transform((0, float(np.asarray(cross.get_ydata())[0])))[1]
    assert place > gaps.transData.transform((1, 9.0 - 0.5))[1] + 10


def test_both_not_a_number_is_no_gap_as_in_the_verdict(tmp_path: Path) -> None:
    lost = [{"loss": math.nan}, {"loss": math.inf}]
    _, gaps = panel(drawn(rows(tmp_path, fit=lost, loop=lost)), "loss")
    assert y(gaps, "loop loss") == [0.0, 0.0]


def test_title_notes_and_verdict_are_written_above(tmp_path: Path) -> None:
    run = {"title": "fashion-mnist · 2 replicas", "notes": ["the embedded sample was used"]}
    fig = drawn(rows(tmp_path, fit=LOOP, loop=LOOP, tutorial=LOOP), run, verdict(SAME, PARTS))
    fig.canvas.draw()
    top = max(ax.get_window_extent().y1 for ax in fig.axes)
    above = [text.get_text() for text in fig.texts if text.get_window_extent().y0 > top]
    title, word, said, note = above
    assert (title, word, note) == ("fashion-mnist · 2 replicas", "different", "Note: the embedded sample was used")
    assert said.replace("\n", " ") == " ".join(sentences(verdict(SAME, PARTS)))
    assert said.startswith("tutorial does not train like fit"), "the worst first"


def test_without_a_verdict_the_picture_says_so(tmp_path: Path) -> None:
    assert "no verdict" in words(drawn(rows(tmp_path, fit=LOOP, loop=LOOP)))


@pytest.mark.parametrize("name", ["a$b_c$", "$x$", r"\frac{$", r"$\nonsense$", "_hidden", "100%", "{}"])
def test_names_are_written_as_they_stand(tmp_path: Path, name: str) -> None:
    epochs = [{name: 0.5, f"val_{name}": 0.25}]
    run = {"title": f"title {name}", "notes": [f"note {name}"]}
    table = rows(tmp_path, **{"fit": epochs, name: epochs})
    fig = drawn(table, run, verdict(Comparison(name, IDENTICAL, Reporting("identical", {}))))
    fig.canvas.draw()
    for expected in (name, f"title {name}", f"Note: note {name}", f"candidate: {name}"):
        assert expected in words(fig).split("\n")
    for text in drawn_texts(fig):
        if text.get_text().replace(r"\$", "$").endswith(name):
            _, is_formula = text._preprocess_math(text.get_text())  # type: ignore[attr-defined]
            assert not is_formula


def test_a_name_that_the_font_lacks_gives_no_warning(tmp_path: Path) -> None:
    for name in ("fit", "\N{ROCKET}"):
        recorded.record(tmp_path, name)
    recorded.finish(tmp_path, ("fit", "\N{ROCKET}"))
    assert plots.draw(tmp_path).exists()


def test_metrics_beyond_four_are_named_as_left_out(tmp_path: Path) -> None:
    epochs = [dict.fromkeys(["auc", "loss", "b", "c", "d", "val_e"], 0.5)]
    fig = drawn(rows(tmp_path, fit=epochs, loop=epochs))
    titles = [ax.get_title(loc="left") for ax in fig.axes[:4]]
    assert titles == ["loss", "auc", "b", "c"]
    assert "Note: Not drawn, see metrics.csv: d, e" in words(fig)


def test_only_accuracy_has_a_unit(tmp_path: Path) -> None:
    fig = drawn(rows(tmp_path, fit=LOOP, loop=LOOP))
    assert [ax.get_ylabel() for ax in fig.axes[:2]] == ["", "fraction of examples"]


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_epochs_are_whole_numbers(tmp_path: Path, count: int) -> None:
    fig = drawn(rows(tmp_path, fit=[LOOP[0]] * count, loop=[LOOP[0]] * count))
    fig.canvas.draw()
    ticks = [tick for tick in fig.axes[0].get_xticks() if 0.5 <= tick <= count + 0.5]
    assert ticks
    assert all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize("value", [1e-30, 1e30, 3e38, -5.0, 0.0])
def test_any_size_of_number_can_be_drawn(tmp_path: Path, value: float) -> None:
    fit, loop = [{"loss": value}, {"loss": 1.0}], [{"loss": value * 1.5}, {"loss": 1.0}]
    rows(tmp_path, fit=fit, loop=loop)
    assert plots.draw(tmp_path).stat().st_size > 10_000


def test_no_metrics_at_all_is_said(tmp_path: Path) -> None:
    assert "no metrics were reported" in words(drawn(rows(tmp_path, fit=[{}], loop=[{}])))


@pytest.mark.parametrize("weights", [False, True], ids=["without weights", "with weights"])
def test_no_two_texts_overlap_and_none_is_cut_off(tmp_path: Path, weights: bool) -> None:
    long = "mypackage.experiments.trainers:CustomLoopWithGradientAccumulation"
    run = {"title": "a title that goes on and on · " * 6, "notes": ["a note of quite some length, " * 8] * 2}
    comparison = Comparison(long, PARTS.training, PARTS.reporting)
    table = rows(tmp_path, fit=LOOP, **{long: LOOP, f"{long}2": LOOP})
    gaps = [(Comparison(long, IDENTICAL, SAME.reporting), "fit", flat_gaps())] if weights else []
    fig = drawn(table, run, verdict(comparison, SAME, PARTS), gaps)
    fig.canvas.draw()
    page = fig.bbox
    hidden = {text for ax in fig.axes if not ax.axison for text in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    hidden |= {ax.xaxis.label for ax in fig.axes if not ax.axison}
    boxes = []
    for text in drawn_texts(fig):
        if (
            text in hidden
            or text.get_text().strip("\N{MINUS SIGN}").replace(".", "").isdigit()
            or "^" in text.get_text()
        ):
            continue  # not drawn; or a tick's number, which may be one beyond the axis's end
        box = text.get_window_extent()
        assert page.x0 <= box.x0 and box.x1 <= page.x1, text.get_text()
        assert page.y0 <= box.y0 and box.y1 <= page.y1, text.get_text()
        boxes.append((text.get_text(), box.padded(-1)))
    for number, (one, box) in enumerate(boxes):
        for other, another in boxes[:number]:
            assert not box.overlaps(another), (one, other)


def test_draw_writes_a_picture_and_nothing_else(tmp_path: Path) -> None:
    rows(tmp_path, fit=LOOP, loop=LOOP)
    write_checked(tmp_path / "run.json", {"options": {}, "trainers": ["fit", "loop"], "title": "t", "notes": []})
    verdict(SAME).write(tmp_path / "verdict.json")
    before = set(tmp_path.iterdir())
    path = plots.draw(tmp_path)
    assert path == tmp_path / "comparison.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert set(tmp_path.iterdir()) - before == {path}
    first = path.read_bytes()
    assert plots.draw(tmp_path).read_bytes() == first, "the same run gives the same picture"


def test_draw_refuses_a_run_without_an_epoch_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"metrics\.csv"):
        plots.draw(tmp_path)
    rows(tmp_path, fit=LOOP, loop=LOOP)
    (tmp_path / "verdict.json").write_text("{")
    with pytest.raises(RecordError, match=r"verdict\.json"):
        plots.draw(tmp_path)
    (tmp_path / "verdict.json").unlink()
    write_checked(tmp_path / "run.json", {"options": {}, "trainers": ["fit", "loop"]})  # which knows of no rows
    (tmp_path / "metrics.csv").write_text("trainer,seed,epoch,seconds,examples_per_second\n")
    with pytest.raises(RecordError, match="no epoch"):
        plots.draw(tmp_path)


def test_pictures_can_be_drawn_in_threads(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        rows(folder, fit=LOOP, loop=LOOP)
    threads = [threading.Thread(target=plots.draw, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((folder / "comparison.png").exists() for folder in folders)


@pytest.mark.parametrize("wanted", ["nonsense", "svg"])
def test_files_are_drawn_whatever_backend_is_asked_for_which_stays_what_it_is(tmp_path: Path, wanted: str) -> None:
    folder = recorded.identical(tmp_path / "run")
    code = (
        "import os, sys; from pathlib import Path; from compare.reporting import plots; plots.draw(Path(sys.argv[1]));"
        "import matplotlib; print(os.environ['MPLBACKEND'], matplotlib.rcParams['backend'])"
    )
    environment = {**os.environ, "MPLBACKEND": wanted}
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == wanted and (done.stdout.split()[1] == wanted) == (wanted == "svg")


def test_the_plot_does_not_depend_on_the_users_own_settings_which_stay_what_they_are(tmp_path: Path) -> None:
    one, other = recorded.identical(tmp_path / "one"), recorded.identical(tmp_path / "other")
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        plots.draw(one)
        assert matplotlib.rcParams["text.usetex"]
    plots.draw(other)
    assert np.array_equal(*(matplotlib.image.imread(each / "comparison.png") for each in (one, other)))


def test_neither_tensorflow_nor_pyplot_is_needed(tmp_path: Path) -> None:
    rows(tmp_path, fit=LOOP, loop=LOOP)
    code = (
        "import sys;"
        "sys.modules['tensorflow'] = sys.modules['keras'] = sys.modules['matplotlib.pyplot'] = None;"
        "from pathlib import Path; from compare.reporting.plots import draw; draw(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).parents[1])
    assert (tmp_path / "comparison.png").exists()


def test_settings_of_matplotlib_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"# Gr\xf6\xdfe\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", "import compare.reporting.plots"], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stderr.strip().endswith("RequestError: matplotlibrc: Matplotlib reads it, and it is not in UTF-8: save "
                                        "it so, or move it")  # fmt: skip
