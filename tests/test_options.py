"""A request is checked at the door: refused in one line that names the option, or possible."""

from __future__ import annotations

import inspect
import json
import pydoc
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import recorded

import compare
from compare.app.command_line import parsed, parser
from compare.errors import RequestError
from compare.modes import Logs, Scripts, ShortCheck, Study, Training
from compare.naming import label, margin
from compare.option import options_of
from compare.options import OPTIONS, as_json, request
from compare.records.run_json import RunJson
from compare.request import STRATEGIES, TRAINERS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = {
    "experiment": "fashion-mnist",
    "trainers": ("fit", "loop"),
    "strategy": "mirrored",
    "replicas": None,
    "epochs": 10,
    "batch_size": 64,
    "seed": 0,
    "train_examples": None,
    "reports": Path("reports"),
    "name": None,
    "data_dir": None,
    "keras": 3,
    "baseline": None,
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def test_defaults_are_as_documented_for_python_and_the_command_alike() -> None:
    ours = {name: getattr(request(), name) for name in options_of(request())}
    assert ours.items() >= DOCUMENTED.items()
    assert request(**vars(parser().parse_args([]))) == request()


def test_every_option_of_the_command_is_one_of_python_and_the_other_way_round() -> None:
    of_python = {name for name, field in OPTIONS.items() if not field.python_only}
    of_command = set()
    for mode, files in ((Training, []), (ShortCheck, []), (Scripts, ["a.py"]), (Logs, ["a.csv"])):
        made = parser(mode, everything=True)
        names = {*vars(made.parse_args(files))}
        shown = set(re.findall(r"^  (?:-h, )?--([a-z0-9-]+)", made.format_help(), re.MULTILINE))
        assert {name.replace("_", "-") for name in names - {mode.word}} == shown - {
            "help", "help-all", "version",
        }  # fmt: skip
        assert names <= {*options_of(mode), *options_of(Study), mode.word}
        of_command |= names
    assert of_command | {"check"} == of_python
    help_text = parser(everything=True).format_help()
    for name in (*STRATEGIES, *TRAINERS):
        assert name in help_text


def test_run_shows_every_option_with_its_type_and_default() -> None:
    shown = inspect.signature(compare.run).parameters
    assert list(shown) == [*OPTIONS]
    assert {name: each.default for name, each in shown.items()} == {
        name: field.default for name, field in OPTIONS.items()
    }
    types = {name: each.annotation for name, each in shown.items()}
    assert (types["epochs"], types["jit"]) == (int, bool)
    assert types["replicas"] == int | Sequence[int] | None
    assert (types["reports"], types["baseline"]) == (str | Path, str | Path | None)
    assert types["trainers"] == Sequence[str | compare.Trainer]
    assert not [name for name, each in types.items() if isinstance(each, str)], "real types, not their names"
    kinds = [each.kind for each in shown.values()]
    assert kinds[0] == inspect.Parameter.POSITIONAL_OR_KEYWORD and set(kinds[1:]) == {inspect.Parameter.KEYWORD_ONLY}
    text = compare.run.__doc__ or ""
    assert all(f"        {name}: " in text for name in shown) and "%%" not in text


def test_former_names_of_options_go_on_working_and_are_not_listed(tmp_path: Path) -> None:
    recorded.identical(tmp_path / "old")
    old = str(tmp_path / "old")
    for former, value, now, kept in (
        ("truth", True, "float64_reference", True),
        ("against", old, "baseline", Path(old)),
        ("own", ["order"], "keep", ("order",)),
    ):
        more = {"scripts": ["a.py", "b.py"]} if former == "own" else {}
        assert getattr(request(**{former: value}, **more), now) == kept
        words = [*(["scripts", "a.py", "b.py"] if more else []), f"--{former}"]
        values = [] if value is True else value if isinstance(value, list) else [value]
        assert getattr(parsed([*words, *values]), now) == kept
        assert value is True or getattr(parsed([*words[:-1], f"--{former}={values[0]}"]), now) == kept
        assert former not in inspect.signature(compare.run).parameters
        assert f"--{former} " not in parser(Scripts if more else Training, everything=True).format_help()
        run = RunJson(folder=tmp_path / former, options={former: value})
        run.folder.mkdir()
        run.save()
        assert RunJson.read(run.folder).options == {now: value}, "of a run that an earlier version recorded"
    with pytest.raises(RequestError, match="own is the former name of keep: give one of them"):
        compare.run(scripts=["a.py", "b.py"], own=["order"], keep=["order"])  # type: ignore[call-arg]


def test_what_run_does_not_know_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"compare\.run: got an unexpected keyword argument 'epoch'; did you mean epochs\?"
    ):
        compare.run(epoch=3)  # type: ignore[call-arg]


CALLS = """
import compare
compare.run("x", epochs=3, reports="r", trainers=["fit", "loop"], margin="a=1").verdict.upper()
compare.run("x", epochs="3")
compare.run("x", epoch=3)
compare.run("x").nothing
"""


def test_a_type_checker_knows_the_parameters_of_run(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "calls.py").write_text(CALLS)
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, err, _ = api.run([*settings, "--no-error-summary", str(tmp_path / "calls.py")])
    told = [line.partition("calls.py:")[2] for line in out.splitlines() if ": error: " in line]
    assert err == "" and len(told) == 3, out + err
    assert told[0].startswith('4: error: Argument "epochs" to "run" has incompatible type "str"; expected "int"')
    assert told[1].startswith('5: error: Unexpected keyword argument "epoch" for "run"')
    assert told[2].startswith('6: error: "Result" has no attribute "nothing"')


def test_help_shows_every_public_name(tensorflow: Any) -> None:
    text = pydoc.render_doc(compare, renderer=pydoc.plaintext)  # type: ignore[arg-type] # a renderer, says pydoc
    first = text.partition("PACKAGE CONTENTS")[0]
    for name in compare.__all__:
        assert f"``{name}``" in first, name
        assert re.search(rf"^    (class )?{name}\b", text.partition("PACKAGE CONTENTS")[2], re.MULTILINE), name
        assert getattr(compare, name).__doc__


def test_dir_shows_what_is_meant_for_people() -> None:
    assert [name for name in dir(compare) if not name.startswith("__")] == sorted(compare.__all__)
    assert {"__doc__", "__version__"} <= {*dir(compare)}


@pytest.mark.parametrize("name", ["epochs", "batch_size", "replicas", "workers", "train_examples"])
@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, "2", True, [2.0], float("nan"), np.float32(2)])
def test_counts_are_whole_and_at_least_one(name: str, value: Any) -> None:
    refused(f"--{name.replace('_', '-')} .*: give a whole number", **{name: value})


@pytest.mark.parametrize("value", [-1, 2**32, 1.0, "0", None, False])
def test_seeds_are_what_random_generators_take(value: Any) -> None:
    refused("--seed .*: give a whole number", seed=value)


@pytest.mark.parametrize("value", ["no", "", 1, None])
def test_switches_are_true_or_false(value: Any) -> None:
    refused("--quiet .*: give True or False", quiet=value)


@pytest.mark.parametrize("name", ["epochs", "batch_size"])
def test_counts_without_a_default_of_none_cannot_be_none(name: str) -> None:
    refused(f"--{name.replace('_', '-')} None: give a whole number", **{name: None})


def test_the_bounds_are_said() -> None:
    refused("--max-steps 0: give a whole number, at least 1$", max_steps=0)
    refused("--epochs 0: give a whole number, from 1 to 1000000$", epochs=0)
    refused("--seed -1: give a whole number, from 0 to 4294967295$", seed=-1)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_values_at_the_bounds_are_accepted(seed: int) -> None:
    options = request(seed=seed, epochs=1, batch_size=1, replicas=1, train_examples=1)
    assert (options.seed, options.epochs, options.replicas) == (seed, 1, 1)


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    options = request(epochs=np.int64(3), seed=np.uint32(4))  # type: ignore[arg-type]
    assert type(options.epochs) is type(options.seed) is int
    assert '"epochs": 3' in json.dumps(as_json(options))


@pytest.mark.parametrize("trainers", [(), ("fit",), "fit", "fit loop", None, 5, compare])
def test_trainers_are_two_or_more(trainers: Any) -> None:
    refused("--trainers needs a reference and at least one candidate, such as: fit loop", trainers=trainers)


def test_trainers_may_be_objects_and_any_iterable() -> None:
    mine = SimpleNamespace(name="mine", train=print)
    assert request(trainers=iter(["fit", mine])).trainers == ("fit", mine)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["mirored", "", None, 5, "MIRRORED"])
def test_unknown_strategies_list_what_there_is(strategy: Any) -> None:
    refused(f"--strategy {strategy}: unknown; there are {', '.join(STRATEGIES)}", strategy=strategy)


@pytest.mark.parametrize("strategy", ["default", "one-device"])
def test_one_replica_strategies_have_one(strategy: str) -> None:
    refused(f"--strategy {strategy} has one replica, --replicas asks for 2", strategy=strategy, replicas=2)
    assert request(strategy=strategy, replicas=1).replicas == 1


@pytest.mark.parametrize("strategy", ["multi-worker", "parameter-server"])
def test_workers_and_replicas_are_not_mixed_up(strategy: str) -> None:
    refused(f"--replicas has no meaning with --strategy {strategy}: use --workers", strategy=strategy, replicas=2)
    refused("--workers is for --strategy multi-worker and parameter-server, not mirrored: use --rep", workers=2)
    assert request(strategy=strategy, workers=2).workers == 2


@pytest.mark.parametrize("keras", [1, 4, "3", None])
def test_there_are_two_generations_of_keras(keras: Any) -> None:
    refused(f"--keras {keras}: there are 3 and 2$", keras=keras)


def test_keras_2_can_be_meant_by_its_own_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert (request().keras, request(keras=3).keras) == (2, 3)


def test_a_recorded_run_to_compare_with_must_be_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        refused("--baseline .*: no recorded comparison is there", baseline=folder)
    (tmp_path / "metrics.csv").touch()
    assert request(baseline=str(tmp_path)).baseline == tmp_path  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/tmp/x", "../x", "a\\b", "a\0b", "a\nb", "\ud800", "x" * 256, "ä" * 128, 5, Path("x")],
)
def test_a_name_is_a_plain_folder_name(name: Any) -> None:
    refused("--name .*: give a plain folder name", name=name)


@pytest.mark.parametrize("name", ["run", "Lauf 1", "größer", "-x", ".hidden", "a:b", "x" * 255])
def test_names_that_a_folder_can_have_are_accepted(name: str) -> None:
    assert request(name=name).name == name


@pytest.mark.parametrize("name", ["reports", "data_dir", "baseline"])
@pytest.mark.parametrize("value", [5, b"reports", ["reports"], "a\0b", ""])
def test_folders_are_paths(name: str, value: Any) -> None:
    refused(f"--{name.replace('_', '-')} .*: give a folder", **{name: value})


def test_an_empty_name_of_a_file_is_none() -> None:
    refused("--write-experiment '': give a file", scripts=["a.py", "b.py"], write_experiment="")


@pytest.mark.parametrize("name", ["reports", "data_dir"])
def test_folders_may_be_text(name: str) -> None:
    assert getattr(request(**{name: "some/where"}), name) == Path("some/where")


def test_an_experiment_may_be_a_path() -> None:
    assert request(experiment=Path("my/task.py")) == request(experiment="my/task.py")


def test_a_name_with_a_line_break_is_refused_in_one_line() -> None:
    refused(r"--trainers loop : unknown", trainers=("fit", "loop\n"))


def test_reports_cannot_be_none() -> None:
    refused("--reports None: give a folder", reports=None)


@pytest.mark.parametrize(
    ("word", "call"), [("scripts", compare.assert_scripts_alike), ("logs", partial(compare.run, logs=[]))]
)
def test_no_script_and_no_log_ask_for_no_training(word: str, call: Callable[..., object]) -> None:
    with pytest.raises(RequestError, match=rf"^compare\.run: {word} is an empty list"):
        call(name="/")


def test_as_json_holds_every_option_as_a_plain_value() -> None:
    mine = SimpleNamespace(name="mine", train=print)
    asked = {"data_dir": Path("data"), "seeds": 2, "margin": ("val_loss=1%",)}
    content = as_json(request(experiment="my/task.py", trainers=("fit", mine), **asked))
    assert json.loads(json.dumps(content)) == content
    assert content.keys() == OPTIONS.keys()
    assert (content["experiment"], content["trainers"]) == ("my/task.py", ["fit", "mine"])
    assert (content["data_dir"], content["reports"], content["replicas"]) == ("data", "reports", None)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        ("fit", "fit"),
        ("my/loop.py:Loop", "loop"),
        ("my/loop.py", "loop"),
        ("runs/12:30/loop.py", "loop"),
        ("runs/12:30/loop.py:Loop", "loop"),
        ("package.pytorch:Loop", "package.pytorch:Loop"),
        (SimpleNamespace(name="mine"), "mine"),
        (5, "int"),
    ],
)
def test_labels_are_what_a_reader_would_call_it(thing: Any, text: str) -> None:
    assert label(thing) == text


def test_an_experiment_beside_others_in_its_file_is_called_by_both() -> None:
    assert [label(f"my/tabular.py{end}", "experiment") for end in ("", ":experiment", ":prices")] == [
        "tabular", "tabular", "tabular:prices"
    ]  # fmt: skip
    named = request(experiment="my/tabular.py:prices").default_name()
    assert named.startswith("tabular-prices-fit-loop-"), named


def test_default_names_tell_requests_apart() -> None:
    options = [
        request(),
        request(experiment="fashion-mnist-sample"),
        request(trainers=("loop", "fit")),
        request(strategy="default"),
        request(replicas=2),
        request(strategy="multi-worker"),
        request(strategy="multi-worker", workers=2),
        request(keras=2),
        request(epochs=2),
        request(seed=1),
        request(check=True),
        request(train_examples=20_000),
        request(train_examples=60_000),
        request(jit=True),
        request(scripts=["a.py", "b.py"]),
        request(scripts=["a.py", "b.py"], keep=["order"]),
        request(scripts=["a.py", "b.py"], script_arguments=["--rate", "0.1"]),
        request(logs=["a.csv", "b.csv"]),
    ]
    assert len({each.default_name() for each in options}) == len(options)
    shown = [each.default_name() for each in options[-7:]]
    base = "fashion-mnist-fit-loop-mirrored-10-epochs-seed-0"
    assert shown[:3] == [f"{base}-train-examples-20000", f"{base}-train-examples-60000", f"{base}-jit"]
    assert shown[3:] == ["scripts-a-b", "scripts-a-b-keep-order", "scripts-a-b-script-arguments-rate-0.1", "logs-a-b"]
    alike = request(checkpoint_every=5, tensorboard=False, verbose=True)
    assert alike.default_name() == base, "the same is compared"
    assert request().default_name() == "fashion-mnist-fit-loop-mirrored-10-epochs-seed-0"
    assert request(check=True).default_name() == "fashion-mnist-fit-loop-mirrored-check-seed-0", "it trains no epochs"


@pytest.mark.parametrize("name", ["../../x", "/x", "a b:c", "日本語" * 50, "x" * 500, "\0", "\ud800"])
def test_default_names_are_folder_names_whatever_things_are_called(name: str) -> None:
    made = request(experiment=SimpleNamespace(name=name)).default_name()  # type: ignore[arg-type]
    assert request(name=made).name == made


def refused(message: str, **options: Any) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        request(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["margin", "jobs", "scheduler", "backend"])
def test_options_of_a_study_need_several_seeds(name: str) -> None:
    value: Any = {"margin": ("val_loss=1%",), "jobs": 2, "scheduler": "tcp://a:1", "backend": "dask"}[name]
    refused(f"--{name} is for a study of several seeds: add --seeds N", **{name: value})


@pytest.mark.parametrize(
    "margin", ["val_loss", "=1", "val_loss=", "val_loss=-1", "val_loss=0", "val_loss=nan", "a=x%", ""]
)
def test_a_margin_is_a_metric_and_a_positive_number(margin: str) -> None:
    refused("--margin .*: give METRIC=VALUE or METRIC=VALUE%, a finite value above 0", margin=(margin,), seeds=3)


def test_a_metric_has_one_margin() -> None:
    refused("--margin has two values for val_loss: give one", margin=["val_loss=1", "mae=2", "val_loss=3%"], seeds=3)


def test_margins_are_absolute_or_relative() -> None:
    assert request(margin=["val_loss=3%", "mae=0.5"], seeds=2).margin == ("val_loss=3%", "mae=0.5")  # type: ignore[arg-type]
    assert [margin(text) for text in ("val_loss=3%", "a=b=0.5")] == [("val_loss", 0.03, True), ("a=b", 0.5, False)]


def test_a_study_is_no_short_check_and_its_backend_has_a_scheduler() -> None:
    refused("--seeds has no meaning in a short check: leave it out", seeds=3, check=True)
    refused("--backend dask and --scheduler .* go together", seeds=3, backend="dask")
    refused("--backend dask and --scheduler .* go together", seeds=3, scheduler="tcp://a:1")
    refused("--backend spark: unknown; there are local, dask", seeds=3, backend="spark")
    refused("--jobs cannot be combined with --strategy multi-worker", seeds=3, jobs=2, strategy="multi-worker")
    refused("the largest seed is", seed=2**32 - 2, seeds=3)
    assert list(request(seed=5, seeds=3).all_seeds) == [5, 6, 7]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("taken.py", "taken.py: it exists and is not overwritten"),
        ("made.py", "made.npz: it exists and is not overwritten"),
        ("link.py", "link.py: it exists and is not overwritten"),
        ("no/such/made.py", "there is no folder .*no/such"),
        ("made.npz", "give a name that ends in .py"),
        ("/proc/made.py", r"it cannot be written \(No such file or directory\)"),
        (f"{'x' * 300}.py", r"it cannot be written \(File name too long\)"),
    ],
)
def test_what_a_comparison_of_scripts_would_write_replaces_nothing(tmp_path: Path, name: str, told: str) -> None:
    for taken in ("taken.py", "made.npz"):
        (tmp_path / taken).write_text("mine")
    (tmp_path / "link.py").symlink_to("nowhere")
    refused(f"--write-experiment .*{told}", scripts=["a.py", "b.py"], write_experiment=tmp_path / name)
    assert request(scripts=["a.py", "b.py"], write_experiment=tmp_path / "other.py")


def test_a_changed_request_keeps_what_was_given_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = request(experiment="task.py", trainers=("fit", "mine.py:Mine"))
    monkeypatch.chdir("/")  # as user code may do
    changed = replace(asked, parallel=True)
    assert as_json(changed) == as_json(asked) | {"parallel": True}
    assert changed.located(changed.experiment) == f"{tmp_path}/task.py"
    assert changed.located(changed.trainers[1]) == f"{tmp_path}/mine.py:Mine"
    assert [changed.located(each) for each in ("fit", None, Path("data"))] == ["fit", None, tmp_path / "data"]
    assert type(request(**as_json(changed))) is type(asked)
