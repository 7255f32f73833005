"""The words of evidence and remedies, which no verdict rests on; no TensorFlow here."""

from __future__ import annotations

import ast
import json
import pydoc
import re
from pathlib import Path

import numpy as np
import pytest
from test_check_report import finding, report
from test_script_causes import LOSS, OFF, PENALTY, RIGHT, found_causes, linear_step, with_loss
from test_script_numbers import FIT, LOSSES, name_reporting, record

import compare
import compare.check
from compare.check import script_texts, words
from compare.check.batches import UserRun
from compare.check.causes import CATALOGUE
from compare.check.causes.base import Variant
from compare.check.causes.optimizer import FORMULAS
from compare.check.judgement import Judgement
from compare.check.measurement import Measurement
from compare.check.search import Explanation
from compare.check.used import ALONE, AVERAGES, SCRIPT, SCRIPT_ALONE, SETS_RATE, Used
from compare.check.words import TEXTS, said
from compare.reporting.terminal import as_text
from compare.watch.trace import ON_BATCHES

ROOT = Path(__file__).resolve().parents[1]


def texts_for_people():
    """What people read, with its file: pages, guide, help, docstrings, and literals that are sentences."""
    for pattern in ("*.md", "reports/**/*.md", "reports/**/*.html", "reports/**/*.ipynb", "compare/**/templates/*"):
        yield from ((path, re.sub(r"--twins|band.twins", "", path.read_text())) for path in ROOT.glob(pattern))
    for path in [*ROOT.glob("compare/**/*.py"), *ROOT.glob("scripts/**/*.py")]:
        tree = ast.parse(path.read_text())
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        shown = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone]
        yield from ((path, node.value) for node in shown if isinstance(node.value, str) and " " in node.value)
        if path.parent.name == "scripts" or path == Path(compare.__file__):
            yield path, ast.get_docstring(tree) or ""
    for name in compare.__all__:
        yield (
            name,
            "".join(pydoc.plain(pydoc.render_doc(getattr(compare, name))).split("Data descriptors inherited")[:1]),
        )


def test_runs_that_measure_rounding_have_one_name():
    assert not [(path, text) for path, text in texts_for_people() if re.search(r"\b[Tt]wins?\b", text)]
    assert [path for path, text in texts_for_people() if "perturbed run" in text]


@pytest.mark.parametrize("id", CATALOGUE)
def test_an_entry_has_its_texts(id):
    cause = CATALOGUE[id]
    assert cause.id == id
    assert cause.symptom and cause.explanation and cause.remedy


def test_each_kind_of_measurement_has_a_sentence_and_each_sentence_is_used():
    files = [path.read_text() for path in Path(compare.__file__).parent.rglob("*.py")]
    kinds = set(re.findall(r'(?:Measurement\.of|_of|_one)\(\s*(?:case, |"[\w-]+",\s*)?"([\w-]+)"', "".join(files)))
    formulas = {f"formula-{name}" for names in FORMULAS.values() for name in names}
    others = {kind for kind in TEXTS if f'"{kind}"' in "".join(files).replace(f'"{kind}":', "")}
    losses = {f"script-{id}" for id in CATALOGUE} | {f"reported-{id}" for id in CATALOGUE}
    assert kinds <= set(TEXTS) and set(TEXTS) <= kinds | formulas | others | losses
    written = [module.__file__ for module in (words, script_texts)]
    keys = re.findall(r'^    "([\w-]+)": ', "".join(Path(each).read_text() for each in written), re.MULTILINE)
    assert len(keys) == len(set(keys)), "one would stand for the other"


def test_a_cause_of_several_numbers_names_them_all():
    cause, judgement = CATALOGUE["loss-averaged-over-batches"], Judgement()
    for metric in ("loss", "accuracy", "val_loss"):
        variant = Variant({"per": "batches"}, Measurement.of("mean-over-batches"))
        judgement.add_explanation([Explanation(None, ((cause, variant),), 1e-8)], 0.5, "metric", metric=metric)
    seen = judgement.causes[cause.id].but(metric="loss")
    assert said(seen).endswith("; a replay with this mistake gives loss to 8 digits, one without it is off by 50%; it "
                               "explains accuracy and val_loss, too")  # fmt: skip
    assert cause.found("loop", seen).metrics == ["loss", "accuracy", "val_loss"]


def test_a_measurement_is_numbers_in_json_and_a_sentence_for_people():
    factor = Measurement.of(
        "loss-factor", factor=np.float32(2), explains="updates", places=6, residual=np.float64(1e-8)
    )
    assert factor.as_json() == {
        "kind": "loss-factor",
        "factor": 2.0,
        "explains": "updates",
        "places": 6,
        "residual": 1e-8,
    }
    explained = "the loss has a constant factor of 2; a replay with this mistake gives all 6 updates to 8 digits"
    assert said(factor.but(otherwise=0.5)) == f"{explained}, one without it is off by 50%"
    assert said(factor.but(otherwise=np.inf)) == f"{explained}, nothing else does"
    assert factor.but(otherwise=np.inf).as_json()["otherwise"] is None, "JSON has no infinity"
    unexplained = factor.but(otherwise=np.inf)
    for seen in (unexplained, Measurement.all([unexplained, Measurement.of("same-order")])):
        assert said(Measurement.read(json.loads(json.dumps(seen.as_json())))) == said(seen)
    factor = Measurement.of("loss-factor", factor=2)
    assert said(factor.but(since_step=3, since_epoch=2)).startswith("from step 3 (epoch 2) on, the loss has")


def test_a_report_reads_as_every_other_verdict():
    found = report("different", "identical", [finding()]).without("this", "that")
    first, *others = as_text(found.as_verdict()).splitlines()
    assert first.startswith("different: mine does not train like fit: ")
    assert others == [
        "  cause: loss-summed (in mine): the loss has a constant factor of 2.",
        "    do this",
        "  not applicable: this: that",
    ]


def test_a_users_run_is_told_in_its_own_numbers():
    for examples, told in {60_000: "(60,000 examples are 937 × 64 + 32)", 1024: "(1,024 examples are 16 × 64)"}.items():
        last = UserRun(examples, 64).last
        seen = Measurement.of("last-batch-as-full", last=last, global_batch_size=64, examples=examples)
        assert said(seen).endswith(told)


SIDES = {"side": "loop", "other": "fit"}


@pytest.mark.parametrize(("kind", "quantities", "sentence"), [
    ("called-between-steps", {**SIDES, "line": "loop.py:3: out = net(x, training=True)"},
     "loop calls its model with training=True outside of its steps, as if in training "
     "(loop.py:3: out = net(x, training=True))"),
    ("between-layers", {**SIDES, "before": "norm", "after": "dense", "calls": ["fit calls Flatten", "loop calls ReLU"],
                        "line": "loop.py:3: x = self.dense(x)"},
     "norm gives the same on both sides (but for an activation, maybe) and dense does not: look at what comes between "
     "them: fit calls Flatten and loop calls ReLU (loop.py:3: x = self.dense(x))"),
    ("more-gradients", {**SIDES, "variables": ["base/kernel"]},
     "loop's optimizer is given gradients of base/kernel, fit's is not"),
    ("more-gradients", {**SIDES, "variables": ["base/kernel"], "frozen": True},
     "loop's optimizer is given gradients of base/kernel, fit's is not: these are frozen (trainable = False), so "
     "take model.trainable_variables after that is set, not before"),
    ("frozen-layers", {**SIDES, "layers": ["norm"]},
     "norm runs with training=False, for the loop sets trainable = False: a frozen BatchNormalization always does"),
    ("left-over", {**SIDES, "micro": 5, "expected": 4, "line": None},
     "loop makes this update from 5 micro-batches and the next from 4, fit both from 4: what an epoch has left over is "
     "in the next one's first update, since it counts anew in each epoch and fit goes on counting"),
    ("first-update", {**SIDES, "micro": 1, "expected": 5, "line": None},
     "loop makes its first update after 1 micro-batch and the next after 5, as fit does from the first on: count "
     "micro-batches from 1"),
    ("terms-summed", {**SIDES, "losses": ["1 (mse)", "2 (mae)"], "line": "loop.py:3: loss = a + b"},
     "the loss of loop is the plain sum of 1 (mse) and 2 (mae); fit has the same losses, but weights them, by "
     "loss_weights of compile, say (loop.py:3: loss = a + b)"),
    ("other-loss", {**SIDES, "loss": "mse", "right": "mae", "line": "loop.py:3: loss = loss_fn(y, p)"},
     "the loss function of loop is mse, that of fit is mae (loop.py:3: loss = loss_fn(y, p))"),
    ("added-to-loss", {**SIDES, "loss": "mse", "equal": 2.0, "value": 0.5, "right": 0.25, "line": None},
     "mse is 2 on both sides; what is added to it, such as a penalty on weights, is 0.5 in loop and 0.25 in fit"),
    ("mask-not-given", {**SIDES, "layers": ["lstm"]},
     "fit gives a mask to lstm, loop does not: what is computed from a tensor has no mask, so pass it on, as in "
     "layer(x, mask=mask)"),
    ("keeps-state", {**SIDES, "layer": "gru"},
     "gru keeps its state from batch to batch (stateful=True): look at where loop and fit set it back, as by "
     "reset_state() at the beginning of an epoch"),
    ("callbacks-not-run", {"side": "loop", "callbacks": ["EarlyStopping"]},
     "loop does not run the experiment's callbacks (EarlyStopping)"),
    ("inputs-swapped", SIDES, "loop gives its model the inputs of fit in another order"),
    ("inputs-moved", {**SIDES, "how": "reversed"},
     "the sequences in the inputs of loop are those of fit from their end to their beginning"),
    ("inputs-moved", {**SIDES, "how": "mirrored"},
     "the inputs of loop are those of fit with the last axis reversed, as BGR in place of RGB"),
    ("inputs-moved", {**SIDES, "how": "later"},
     "the sequences in the inputs of loop begin one position later than those of fit: look at how inputs and labels "
     "are cut from them"),
    ("inputs-shifted", {**SIDES, "factor": 0.5, "constant": -1.0},
     "the inputs of loop are 0.5 times those of fit minus 1: prepare them alike, and once"),
    ("given-to-loss", {**SIDES, "loss": "kl_divergence", "what": "predictions", "line": None},
     "the models give the same predictions, but kl_divergence is given other predictions in loop than in fit: look at "
     "what is done to them before the loss"),
    ("called-under-tape", {"times": 2, "other_times": 1, "line": "loop.py:3: loss = f(y, p)"},
     "loop takes gradients through 2 calls of models in this step, fit through 1: tf.stop_gradient(...) around what "
     "counts as a target, or a call outside of the tape, lets none through (loop.py:3: loss = f(y, p))"),
    ("constraint-left-out", {**SIDES, "variables": ["dense/kernel"], "line": None},
     "dense/kernel has a constraint, which an optimizer applies after its update, as in fit; loop changes weights by "
     "hand: variable.assign(variable.constraint(variable))"),
    ("some-gradients-have-factor", {**SIDES, "factor": 0.1, "variables": ["dense/kernel"]},
     "the gradients of dense/kernel are 0.1 times those of fit in loop, and all others are equal: look at what scales "
     "these"),
    ("calls-not-taped", {"times": 4, "taped": 1, "line": "loop.py:3: g = tape.gradient(total, v)"},
     "loop calls its models 4 times in this step, and the tape has recorded 1 of these calls: "
     "the others count in the loss, but have no gradient; put all of them under one tape, or add up the gradients of "
     "each (loop.py:3: g = tape.gradient(total, v))"),
    ("term-differs", {**SIDES, "of": 2, "loss": "mse", "value": 2.0, "right": 1.0},
     "of 2 losses in the step, mse alone differs: 2 in loop, 1 in fit"),
    ("layers-alone", {"side": "fit", "classes": ["Masking"]}, "only fit calls Masking as a layer in this step"),
    ("limits-alone", {"side": "loop", "line": "loop.py:3: clip()"},
     "only loop calls a function that limits gradients (loop.py:3: clip())"),
    ("predictions-as-labels", {"side": "loop", "line": "loop.py:3: loss_fn(y, x)"},
     "loop gives its loss the predictions as y_true: a loss takes the labels first, then the predictions "
     "(loop.py:3: loss_fn(y, x))"),
    ("predictions-squashed", {"side": "loop", "other": "fit", "function": "softmax"},
     "the predictions of loop are the softmax of those of fit: loop gives probabilities, fit logits"),
    ("drawn-in-validation",
     {"layer": "sampling", "times": 8, "other_times": 6, "line": "loop.py:3: m(x, training=True)"},
     "before this step sampling has drawn random numbers 8 times in loop and 6 times in fit, so the next ones differ: "
     "loop calls its model with training=True outside of the training step (loop.py:3: m(x, training=True))"),
    ("steps-on-each-batch", {"times": 1, "other_times": 2}, "loop makes 1 step on each batch, fit 2"),
    ("called-in-training-times", {"times": 2, "other_times": 1},
     "loop calls the model 2 times with training=True in this step, fit 1 time; each call moves the statistics of "
     "batch normalization"),
    ("drawn-without-data", {"layer": "dropout", "times": 9, "other_times": 10},
     "before this step dropout has drawn random numbers 9 times in loop and 10 times in fit, so the next ones differ: "
     "at the end of each epoch over data of unknown size, fit makes one more step, without data; "
     "dataset.apply(tf.data.experimental.assert_cardinality(steps)) says where an epoch ends"),
    ("drawn-more-often", {"layer": "sampling", "times": 5, "other_times": 6},
     "before this step sampling has drawn random numbers 5 times in loop and 6 times in fit, so the next ones differ: "
     "one side calls the model more often, such as for validation, or with training=True there, where Dropout draws "
     "only then; do the same in both"),
    ("weights-added", {"factor": 0.02, "variables": ["w"], "penalized": False},
     "the gradients of loop are those of fit plus 0.02 times the weights (w), as when weight decay or an L2 penalty is "
     "added by hand; fit has neither in its loss"),
    ("weights-added", {"factor": 0.02, "variables": ["w"], "penalized": True},
     "the gradients of loop are those of fit plus 0.02 times the weights (w), as when weight decay or an L2 penalty is "
     "added by hand, or those of model.losses twice"),
    ("weights-never-change", {"zero": None, "batch": 8},
     "the weights never change: no optimizer is ever applied (the check's batches have 8 examples at most)"),
    ("other-epochs", {"epochs": 1, "expected": 2, "reference": "fit"},
     "loop trains 1 epoch(s), fit 2: check whether a callback or model.stop_training ends training"),
    ("other-epochs", {"epochs": 0, "expected": 2, "reference": "fit"},
     "loop never calls run.end_epoch, so it has no epoch: call run.end_epoch(epoch, logs) at the end of each"),
    ("script-by-hand", {"optimizers": ["", "SGD"], "rates": [0.05, 0.1]},
     "loop subtracts 0.05 times the gradient (by hand), fit 0.1 times (SGD)"),
    ("script-by-hand", {"optimizers": ["SGD", ""], "rates": [0.1, -0.1]},
     "loop subtracts 0.1 times the gradient (SGD), fit adds 0.1 times (by hand)"),
    ("script-without-momentum", {"optimizer": "SGD", "momentum": 0.9, "rate": 0.05},
     "loop subtracts 0.05 times the gradient (by hand), without the momentum of fit's SGD, which is 0.9"),
    ("gradients-times-replicas", {"replicas": 2, "as_with": "loss-not-divided-by-replicas", "agrees": ["loss"]},
     "every gradient is 2 times the right one, on 2 replicas; but the loss is right: gradients are added up twice, as "
     "by all_reduce and again by apply_gradients, which does so itself"),
    ("gradients-times-replicas", {"replicas": 2, "as_with": "loss-summed", "agrees": ["loss"]},
     "as with loss-summed: every gradient is 2 times the right one, on 2 replicas; but the loss agrees"),
    ("script-settings", {"optimizer": "Adam", "settings": {"learning_rate": [0.2, 0.1]}, "at_step": 9, "at_end": True},
     "by step 9: loop's Adam has learning_rate=0.2 instead of 0.1"),
    ("micro-batches-alike", {"sizes": [16, 16, 8], "loss": 1.5, "weighted": 1.25},
     "loop takes the mean of the losses of micro-batches of 16, 16 and 8 examples, 1.5, as if they had equally many; "
     "weighted by their examples, it is 1.25, as in fit: add up each micro-batch's gradients times its examples, and "
     "divide by all examples"),
    ("epoch-ended-first", {"side": "fit", "data": "Batches"},
     "in fit, fit calls Batches.on_epoch_end before its first epoch, too, as Keras 3 does; to have the same "
     "examples, a loop has to call it there as well"),
    ("script-settings", {"optimizer": "Adam", "settings": {"learning_rate": [0.2, 0.1]}, "at_step": 2},
     "step 2: loop's Adam has learning_rate=0.2 instead of 0.1"),
    ("script-settings",
     {"optimizer": "Adam", "settings": {"learning_rate": [0.2, 0.1]}, "others": {"epsilon": [1e-8, 1e-7]}},
     "loop's Adam has learning_rate=0.2 instead of 0.1; also epsilon=1e-08 instead of 1e-07, which alone would hardly "
     "change this step"),
    ("layer-settings",
     {"layer": "Dense dense", "settings": {"kernel_regularizer": [{"class_name": "L2", "config": {"l2": 0.01}}, None]}},
     "loop's Dense dense has kernel_regularizer=L2(l2=0.01) instead of None"),
    ("script-schedule",
     {"schedule": "InverseTimeDecay", "expected": 0.0009999501053243876, "learning_rate": 0.0010000000474974513},
     "the learning rate is 0.0009999501 in fit (InverseTimeDecay), 0.001 in loop"),
    ("rate-stays", {"learning_rate": 0.5, "expected": [0.5, 0.49999997]},
     "the learning rate stays 0.5; it should be 0.5, 0.49999997"),
    ("script-limits",
     {"limited": "the norm", "limit": 0.25, "replicas": 1, "clipping": {}, "other_clipping": {"clipnorm": 0.5}},
     "loop limits the norm to 0.25 before it applies the gradients; fit clips by its optimizer's clipnorm=0.5"),
    ("script-limits",
     {"limited": "the norm", "limit": 0.25, "replicas": 2, "clipping": {"clipvalue": 0.1}, "other_clipping": {}},
     "loop limits the norm to 0.25 on each replica before it applies the gradients, and its optimizer clips by "
     "clipvalue=0.1; fit does not"),
    ("script-data-loss-factor", {"loss": 1.0, "right_loss": 1.5, "penalty": 0.5, "factor": 0.5, "at_step": 2,
     "at_place": [2, 1]},
     "step 2 (step 1 of epoch 2): the loss is 1 in loop and 1.5 in fit: without the model's own losses, 0.5, it is 0.5 "
     "times as much"),
    ("script-no-penalty", {"loss": 1.0, "right_loss": 1.5, "penalty": 0.5, "at_step": 2, "at_place": [2, 1]},
     "step 2 (step 1 of epoch 2): the loss is 1 in loop and 1.5 in fit; it lacks the model's own losses, 0.5"),
    ("script-loss-summed", {"examples": 8, "alone": True},
     ": that of the examples is 8 times as much, the number of examples in the batch"),
    ("script-flag", {"training": "not given", "by_fit": True},
     "loop calls the model without training=, fit with training=True: fit passes it only to a model whose call() takes "
     "it"),
    ("script-flag", {"training": "not given", "by_fit": False, "call": 2},
     "loop calls the model without training= (call 2 of the step), fit with training=True"),
    ("model-begins-apart", {"model": "teacher"},
     "loop calls teacher with other weights than fit: look at what sets them"),
    ("divided-by-weights", {},
     "loop divides the weighted losses by the sum of the weights, fit by their number, as Keras does"),
    ("script-layer-flag", {"layer": "dropout", "by_fit": False},
     "loop calls dropout with training=False, fit with training=True"),
    ("reported-loss-averaged-over-batches",
     {"metric": "loss", "epoch": 1, "value": 1.5, "right": 1.75, "batches": 3, "last": 8.0},
     "loss in epoch 1 is 1.5, and 1.75 in fit: it is the mean over 3 batches, of which the last has 8 examples"),
    ("gradients-factor", {"factor": 2}, "every gradient has a constant factor of 2, and the loss agrees: the factor "
     "comes between tape.gradient and apply_gradients"),
    ("same-order", {"own_data": True}, "the loop does not use run.train_dataset: the second epoch has the order of "
     "the first"),
])  # fmt: skip
def test_the_quantities_of_a_measurement_are_in_its_sentence(kind, quantities, sentence):
    assert said(Measurement(kind, {**SIDES, **quantities})) == sentence


def test_a_number_that_only_one_side_reports_is_held_against_the_mean_over_examples():
    (found,) = name_reporting(FIT, record("loop", [1.5, 2 / 3]), LOSSES)
    assert found.evidence == (
        "loss in epoch 1 is 1.5, the mean over 3 batches, of which the last has 8 examples; the mean over its 136 "
        "examples is 1.70588"
    )


# Remedies


def test_a_model_that_is_trained_by_batches_is_told_to_have_the_regularizer_itself():
    cause = CATALOGUE["regularization-missing"]
    on_batches = Used.of({"script": True, "alone": True, "train_on_batch": True})
    assert "kernel_regularizer" in cause.remedy_for(on_batches) and "loss" not in cause.remedy_for(on_batches)
    assert cause.remedy_for(SCRIPT_ALONE) == "loss += tf.add_n(model.losses)"


def test_a_cause_of_two_scripts_has_the_remedy_of_what_they_use():
    (missing,) = found_causes(RIGHT, with_loss(OFF, LOSS - PENALTY))
    assert missing.remedy == "loss += tf.add_n(model.losses)"
    without = linear_step(offset=0.01, flag="not given")
    for pair, remedy in (
        ((without, RIGHT), "training=None"),
        ((RIGHT, without), "predictions = model(x, training=True)"),
    ):
        (cause,) = found_causes(*pair)
        assert remedy in cause.remedy
    loop = record("loop", [np.mean(each.values) for each in LOSSES.values()])
    remedies = [name_reporting(FIT, loop, LOSSES, used=used)[0].remedy for used in (script(), Used.of({SCRIPT: True}))]
    assert ["strategy.num_replicas_in_sync" in remedy for remedy in remedies] == [False, True]


def script(*words: str, optimizer: str = "tf.keras.optimizers.Adam") -> Used:
    """What a script on one replica uses."""
    return Used(frozenset((SCRIPT, ALONE, *words)), optimizer)


def test_remedies_use_what_the_scripts_use() -> None:
    optimizer, schedule = CATALOGUE["optimizer-differs"], CATALOGUE["learning-rate-schedule-missing"]
    assert "use_ema" not in optimizer.remedy_for(script(optimizer="tf.keras.optimizers.SGD"))
    assert "optimizers.SGD(" in optimizer.remedy_for(script(optimizer="tf.keras.optimizers.SGD"))
    assert "finalize_variable_values" not in optimizer.remedy_for(script())
    assert "finalize_variable_values" in optimizer.remedy_for(script(AVERAGES))
    assert "epoch" not in schedule.remedy_for(script())
    assert "epoch" in schedule.remedy_for(script(SETS_RATE))
    for cause in ("loss-averaged-over-batches", "last-batch-only", "metrics-not-reset"):
        remedy = CATALOGUE[cause].remedy_for(script(ON_BATCHES))
        assert "train_on_batch" in remedy and "loss_metric" not in remedy and "metric in metrics" not in remedy


def test_remedies_for_one_replica_use_neither_a_strategy_nor_a_run() -> None:
    named = {
        cause
        for file in ("judge_recorded.py", "recorded_numbers.py")
        for cause, entry in CATALOGUE.items()
        if entry.recorded or f'"{cause}"' in (Path(compare.check.__file__).parent / file).read_text()
    }
    of_several = {"loss-not-divided-by-replicas", "regularization-not-divided-by-replicas", "gradients-not-reduced"}
    of_several.add("loss-not-reduced")
    for cause in named - of_several:
        assert not re.search(r"strategy|replica|\brun\.", CATALOGUE[cause].remedy_for(script())), cause
