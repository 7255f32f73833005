"""Training loops in many styles, right and wrong, to test the check with: ``cells()`` lists them, without TensorFlow.

A cell is a style (``loops.py``, ``steps.py``) on an experiment (``experiments.py``) with
one or two replicas, right or with one fault (``faults.py`` and the like). A right one computes what
``fit`` computes, to rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

from corpus.special import COMMON, EXPERIMENTS

GLOBAL_BATCH_SIZE = 32
"""Examples per step, over all replicas, for which the faults have been seen to matter."""
When = Callable[[Any, int], bool]
"""Whether something makes sense for an experiment, by its optimizer and what it ``has``, and so many replicas."""


@dataclass(frozen=True)
class Style:
    """How a loop is written: ``when`` it equals ``fit``, and which parts a fault cannot be mixed into."""

    lacks: frozenset[str]
    when: When


@dataclass(frozen=True)
class Fault:
    """A mistake: the part of a loop that it is in, what it may be called, ``when`` it shows, and ``among`` what."""

    part: str
    kind: str
    allowed: frozenset[str]
    when: When
    styles: frozenset[str]
    among: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One loop for one experiment.

    Attributes:
        style: one of ``STYLES``.
        experiment: one of ``EXPERIMENTS``.
        replicas: 1 or 2.
        fault: one of ``FAULTS``, or None in a right loop.
        kind: "correct", "training" or "reporting", by what the fault makes wrong.
        allowed: the ids of causes that may be named.
    """

    style: str
    experiment: str
    replicas: int
    fault: str | None
    kind: str
    allowed: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.style}/{self.experiment}/{self.replicas}/{self.fault or 'correct'}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Its row in tables."""
        return self.style, self.experiment, str(self.replicas), self.fault or ""

    @property
    def batch_size(self) -> int:
        """Per replica."""
        return GLOBAL_BATCH_SIZE // self.replicas

    def build(self) -> tuple[Any, Any]:
        """The ``compare.Experiment``, and the trainer."""
        bases = [named(camel_case(name)) for name in (self.fault, self.style) if name is not None]
        experiment = EXPERIMENTS[self.experiment].build()
        members = {"name": self.name.replace("/", "-"), "load_data": staticmethod(experiment.load_data)}
        trainer = type("".join(base.__name__ for base in bases), tuple(bases), members)
        return experiment, trainer()


def named(name: str) -> Any:
    """A class of the corpus, a trainer in itself; right ones and faults can be mixed.

    Raises:
        KeyError: if there is none of this name.
    """
    return _loops()[name]


@cache
def _loops() -> dict[str, Any]:
    import compare
    from corpus import data_faults, faults, loops, report_faults, steps, update_faults

    modules = (loops, steps, faults, update_faults, data_faults, report_faults)
    known = {name: value for module in modules for name, value in vars(module).items()}
    return {"CustomLoop": compare.CustomLoop} | {name: each for name, each in known.items() if isinstance(each, type)}


def camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def always(traits: Any, replicas: int) -> bool:
    return True


def without(*has: str) -> When:
    return lambda traits, replicas: not traits.has & set(has)


def having(*has: str) -> When:
    return lambda traits, replicas: bool(traits.has & set(has))


def trained_by(*optimizers: str) -> When:
    return lambda traits, replicas: traits.optimizer in optimizers


def on(wanted: int) -> When:
    return lambda traits, replicas: replicas == wanted


def both(*conditions: When) -> When:
    return lambda traits, replicas: all(condition(traits, replicas) for condition in conditions)


def epoch_in_one_call(traits: Any, replicas: int) -> bool:
    # Inside one call replicas keep to the shapes exchanged first, and an embedding's gradient has the batch's.
    return replicas == 1 or "embedding" not in traits.has


def calls_back(traits: Any, replicas: int) -> bool:
    # Keras's fit, called once an epoch, makes callbacks anew and forgets the average.
    return not traits.has & {"epoch-end", "ema"}


def one_state(traits: Any, replicas: int) -> bool:
    # Each replica keeps moving statistics of its own, and fit validates with all of them.
    return replicas == 1 or "bn" not in traits.has


clipped, unclipped = having("clipnorm", "global_clipnorm"), without("clipnorm", "global_clipnorm")
follows_scale = both(trained_by("sgd", "momentum"), unclipped, without("fp16"))
"""Twice the gradient is twice the step there."""
own_update = both(unclipped, without("fp16", "callbacks", "schedule"))
REPORTS = ("record", "results", "reported", "compiled")
LOSS = ("mean", "penalty", "share")
ACCUMULATING = ("mean", "share", "scale", "gradients", "forward", "record", "compiled", "unpack")
accumulable = without("bn", "dropout", "fp16", "activity", "embedding", "callbacks")


def style(*lacks: str, when: When = always) -> Style:
    return Style(frozenset(lacks), when)


STYLES = {
    "signature": style(),
    "eager": style(),
    "retracing": style(),
    "replica-function": style(),
    "no-strategy": style(when=on(1)),
    "eager-no-strategy": style(when=on(1)),
    "next-inside": style("compiled"),
    "epoch-function": style("compiled", when=epoch_in_one_call),
    "steps-of-three": style("compiled", when=epoch_in_one_call),
    "epoch-over-dataset": style("compiled", when=on(1)),
    "numpy-slices": style("batching"),
    "keras-loss": style(*LOSS, "record"),
    "compiled-loss": style(*LOSS, "record", when=without("outputs")),
    "functional-loss": style(),
    "average-loss": style(when=both(on(1), without("tags"))),
    "persistent-tape": style("share"),
    "two-gradients": style(),
    "two-updates": style(
        "optimizer", when=both(own_update, trained_by("sgd", "momentum", "rmsprop"))
    ),
    "accumulating": style(
        "mean", "share", "scale", "gradients", "forward", "record", "compiled",
        when=without("bn", "dropout", "fp16", "activity", "embedding"),
    ),
    "own-clipping": style("optimizer", when=clipped),
    "apply-only": style("optimizer", "variables"),
    "two-optimizers": style(
        "optimizer", "variables", when=without("global_clipnorm", "fp16", "callbacks", "exclusions")
    ),
    "sgd-by-hand": style("optimizer", when=both(own_update, trained_by("sgd"))),
    "momentum-by-hand": style("optimizer", when=both(own_update, trained_by("momentum"))),
    "adam-by-hand": style("optimizer", when=both(own_update, trained_by("adam"), without("embedding"))),
    "metrics-apart": style("results", "test"),
    "numpy-validation": style("validation", "test", "share", *REPORTS, when=both(having("classes"), one_state)),
    "evaluating": style("validation", "test", "share", *REPORTS, when=without("weights", "ema")),
    "silent": style(*REPORTS),
    "loss-only": style(*REPORTS),
    "train-on-batch": style(
        *LOSS, "scale", "scaled", "forward", "unpack", "gradients", "variables", "update", "record", "results",
        "compiled", "epoch", "test", "begin",
        when=both(on(1), without("callbacks")),
    ),
    "own-train-step": style("compiled", "results", "epoch", "begin", when=calls_back),
}  # fmt: skip


COMMON_STYLES = tuple(STYLES)
"""Those that any fault may be mixed into; the others serve faults of their own."""
STYLES |= {
    "accumulating-eager": style(*ACCUMULATING, when=both(on(1), accumulable)),
    "accumulating-variables": style(*ACCUMULATING, when=both(on(1), accumulable)),
    "own-unscaling": style("update", "variables", when=having("fp16")),
    "without-callbacks": style(when=having("idle")),
    "own-clipping-eager": style("optimizer", when=having("global_clipnorm")),
    "own-clipping-on-replicas": style("optimizer", when=clipped),
    "sgd-eager": style("optimizer", when=both(on(1), own_update, trained_by("sgd"))),
    "sgd-assigned": style("optimizer", when=both(on(1), own_update, trained_by("sgd"))),
    "momentum-eager": style("optimizer", when=both(on(1), own_update, trained_by("momentum"))),
    "momentum-of-gradients": style("optimizer", when=both(on(1), own_update, trained_by("momentum"))),
    "adam-eager": style("optimizer", when=both(on(1), own_update, trained_by("adam"), without("embedding"))),
    "adam-with-hats": style("optimizer", when=both(on(1), own_update, trained_by("adam"), without("embedding"))),
    "adamw-by-hand": style("optimizer", when=trained_by("adamw")),
    "adamw-eager": style("optimizer", when=both(on(1), trained_by("adamw"))),
    "adamw-on-one-device": style("optimizer", when=both(on(1), trained_by("adamw"))),
}


def training(
    part: str, *allowed: str, when: When = always, styles: Iterable[str] = COMMON_STYLES, among: Iterable[str] = COMMON
) -> Fault:
    return Fault(part, "training", frozenset(allowed), when, frozenset(styles), tuple(among))


def reporting(
    part: str, *allowed: str, when: When = always, styles: Iterable[str] = COMMON_STYLES, among: Iterable[str] = COMMON
) -> Fault:
    return Fault(part, "reporting", frozenset(allowed), when, frozenset(styles) - {"silent"}, tuple(among))


by_hand = ("sgd-by-hand", "momentum-by-hand", "adam-by-hand")
momenta = both(trained_by("momentum"), without("fp16"))
plain = both(unclipped, without("fp16"))
labelled = having("classes")
simple = without("outputs", "weights")
stateful = having("bn", "dropout")
remembering = both(trained_by("momentum", "adam", "rmsprop"), without("fp16"))
on_batches = (
    "signature",
    "eager",
    "retracing",
    "replica-function",
    "no-strategy",
    "eager-no-strategy",
    "two-gradients",
)
"""Styles that call a function for every batch and look at what it returns."""
sgds = ("sgd-by-hand", "sgd-eager", "sgd-assigned")
momentums = ("momentum-by-hand", "momentum-eager", "momentum-of-gradients")
adams = ("adam-by-hand", "adam-eager", "adam-with-hats")
adamws = ("adamw-by-hand", "adamw-eager", "adamw-on-one-device")
accumulations = ("accumulating", "accumulating-eager", "accumulating-variables")
clippings = ("own-clipping", "own-clipping-eager", "own-clipping-on-replicas")
acting = (*on_batches, "next-inside", "functional-loss", "metrics-apart", "keras-loss")
acting_on_batches = (*on_batches, "functional-loss", "metrics-apart", "keras-loss")
uncalled = without("callbacks", "fp16")
ACTING = ("decay-at-epoch-end", "stop-when-good", "warm-up")
"""The experiments whose callbacks act within two epochs, other than by a rate for each."""

FAULTS = {
    "loss-not-divided": training("share", "loss-not-divided-by-replicas", when=both(on(2), follows_scale)),
    "loss-divided-twice": training("scale", "loss-divided-twice", when=both(on(2), follows_scale)),
    "loss-summed": training("mean", "loss-summed", when=follows_scale),
    "constant-denominator": training("mean", "loss-constant-denominator", when=plain),
    "loss-times-five": training("scale", "loss-scaled", when=follows_scale),
    "loss-halved": training("scale", "loss-scaled", when=both(on(1), follows_scale)),
    "true-count": training("mean", "uneven-replica-batches", when=both(on(2), simple, plain, without("one-left"))),
    "mean-of-nothing": reporting("mean", "empty-replica-batch", when=both(on(2), having("one-left"))),
    "no-penalty": training(
        "penalty", "regularization-missing", "validation-loss-without-regularization", when=having("penalty")
    ),
    "no-penalty-in-training": training("share", "regularization-missing", when=having("penalty")),
    "penalty-not-divided": training(
        "share", "regularization-not-divided-by-replicas", when=both(on(2), having("penalty"))
    ),
    "penalty-twice": training("penalty", "regularization-scaled", when=both(on(1), having("penalty"))),
    "first-penalty-only": training("penalty", "regularization-missing", when=having("penalty")),
    "softmax-twice": training("mean", "logits-mismatch", when=both(labelled, simple)),
    "logits-as-probabilities": training("mean", "logits-mismatch", when=both(labelled, simple)),
    "label-broadcast": training("mean", "label-shape-broadcast", when=having("regression")),
    "weights-dropped": training("unpack", "sample-weights-dropped", when=having("weights")),
    "weights-dropped-everywhere": training(
        "mean", "sample-weights-dropped", "validation-sample-weights-dropped", when=having("weights")
    ),
    "weights-normalized": training("mean", when=having("weights")),
    "no-loss-scale": training("scaled", "loss-scale-missing", "loss-scaled", when=having("fp16"), among=EXPERIMENTS),
    "unscaled-twice": training(
        "gradients", "loss-scale-missing", "loss-scaled", when=having("fp16"), among=EXPERIMENTS
    ),
    "constant-scale": training("scaled", "loss-scaled", when=having("fp16"), styles=on_batches, among=EXPERIMENTS),
    "clipped-while-scaled": training(
        "gradients", "clipping-differs", when=having("fp16"), styles=on_batches, among=EXPERIMENTS
    ),
    "loss-weights-ignored": training("mean", "loss-scaled", when=having("outputs"), among=EXPERIMENTS),
    "head-penalty-forgotten": training(
        "share", "regularization-missing", when=both(having("penalty"), without("activity")), among=EXPERIMENTS
    ),
    "class-weights-dropped": training(
        "unpack", "sample-weights-dropped", when=having("class-weights"), among=EXPERIMENTS
    ),
    "smoothing-dropped": training("mean", "label-smoothing-missing", when=having("smoothing"), among=EXPERIMENTS),
    "mask-ignored": training("mean", "mask-missing", when=having("tags"), among=EXPERIMENTS),
    "masks-lost": training("forward", "mask-missing", when=having("mask"), styles=on_batches, among=EXPERIMENTS),
    "output-forgotten": training(
        "mean", "variables-not-trained", when=both(having("outputs"), without("penalty")), styles=on_batches
    ),
    "label-smoothing": training("mean", when=both(labelled, simple)),
    "absolute-error": training("mean", when=having("regression")),
    "focal-loss": training("mean", when=both(labelled, plain)),
    "micro-means": training("update", styles=accumulations, when=on(1)),
    "micro-sums": training(
        "update", "loss-scaled", "loss-summed", when=both(on(1), follows_scale), styles=accumulations
    ),
    "micro-remainder-dropped": training("update", "examples-dropped", styles=accumulations),
    "statistics-of-halves": training("forward", when=having("bn")),
    "no-training-flag": training("forward", "training-flag-missing", when=stateful),
    "other-momentum": training("forward", "layer-differs", when=having("bn")),
    "frozen-statistics": training("forward", "training-flag-missing", when=both(having("bn"), having("sequential"))),
    "frozen-batch-normalization": training(
        "variables",
        "training-flag-missing",
        "variables-not-trained",
        when=both(having("bn"), without("exclusions")),
        styles=(*on_batches, *by_hand),
        among=EXPERIMENTS,
    ),
    "gradient-stopped": training(
        "forward",
        "variables-not-trained",
        when=without("outputs", "fp16", "penalty", "callbacks"),
        styles=(*on_batches, *by_hand),
    ),
    "outside-the-tape": training(
        "forward",
        "variables-not-trained",
        when=without("outputs", "fp16", "penalty", "callbacks"),
        styles=(*on_batches, *by_hand),
    ),
    "two-forward-passes": training("forward", when=having("dropout")),
    "noisy-inputs": training("forward", when=without("embedding", "fp16")),
    "standardized-inputs": training("forward", when=without("embedding", "fp16")),
    "noisy-labels": training("unpack", when=labelled),
    "gradient-noise": training("gradients", when=plain),
    "sign-flipped": training("gradients", when=without("fp16")),
    "biases-twice": training("gradients", when=both(follows_scale, without("bn", "rnn"))),
    "last-layer-faster": training("gradients", when=follows_scale),
    "gradients-centralized": training("gradients", when=plain),
    # Keras 3 squares the rows of an embedding's gradient one by one, where a word occurs twice too.
    "dense-gradients": training("gradients", when=both(having("embedding"), trained_by("adam", "rmsprop"))),
    "stale-gradients": training("gradients", when=both(on(1), plain), styles=on_batches),
    "clipped-by-hand": training("gradients", "clipping-differs", when=follows_scale),
    "clipped-by-value": training("gradients", "clipping-differs", when=follows_scale),
    "clipping-forgotten": training("optimizer", "clipping-differs", "optimizer-differs", when=clipped),
    "clipped-at-another-norm": training("gradients", "clipping-differs", styles=clippings),
    "clipped-after-the-sum": training("gradients", "clipping-differs", when=on(2), styles=clippings),
    "first-replicas-gradients": training("update", "gradients-not-reduced", when=on(2), styles=by_hand),
    "mean-of-gradients": training(
        "update", "gradients-not-reduced", "loss-divided-twice", when=both(on(2), follows_scale), styles=by_hand
    ),
    "last-layer-only": training("variables", "variables-not-trained", when=without("fp16")),
    "first-layer-forgotten": training("variables", "variables-not-trained", when=without("fp16")),
    "frozen-layer": training(
        "variables", "variables-not-trained", when=without("fp16", "outputs", "penalty"), styles=(*on_batches, *by_hand)
    ),
    "biases-forgotten": training("variables", "variables-not-trained", when=without("fp16", "bn")),
    "default-learning-rate": training("optimizer", "optimizer-differs", when=without("fp16", "schedule", "callbacks")),
    "low-momentum": training("optimizer", "optimizer-differs", when=momenta),
    "nesterov": training("optimizer", "optimizer-differs", when=momenta),
    "large-epsilon": training("optimizer", "optimizer-differs", when=trained_by("adam")),
    "low-beta": training("optimizer", "optimizer-differs", when=trained_by("adam")),
    "optimizers-weight-decay": training("optimizer", "optimizer-differs", when=without("fp16")),
    "schedule-forgotten": training(
        "optimizer", "learning-rate-schedule-missing", "optimizer-differs", when=having("schedule"), among=EXPERIMENTS
    ),
    "rate-by-epoch": training(
        "optimizer",
        "learning-rate-schedule-missing",
        "optimizer-differs",
        when=having("schedule"),
        styles=on_batches,
        among=EXPERIMENTS,
    ),
    "own-warm-up": training(
        "compiled", "optimizer-differs", when=without("fp16", "schedule", "callbacks"), styles=on_batches
    ),
    "one-epoch-late": training(
        "begin",
        "learning-rate-schedule-missing",
        "optimizer-differs",
        when=both(having("callbacks"), without("epoch-end", "batch-callbacks", "ema")),
        among=EXPERIMENTS,
    ),
    "rate-halved-later": training(
        "begin", "optimizer-differs", when=without("fp16", "schedule", "callbacks"), styles=on_batches
    ),
    "callbacks-forgotten": training(
        "begin", "callbacks-missing", "optimizer-differs", "learning-rate-schedule-missing", when=having("callbacks")
    ),
    "no-callbacks": training(
        "callbacks",
        "callbacks-missing",
        when=having("epoch-end", "batch-callbacks"),
        styles=acting,
        among=ACTING,
    ),
    "no-epoch-end": training("callbacks", "callbacks-missing", when=having("epoch-end"), styles=acting, among=ACTING),
    "optimizer-anew-each-epoch": training("begin", "optimizer-differs", when=remembering, styles=on_batches),
    "optimizer-recreated": training("begin", "optimizer-differs", when=both(remembering, uncalled), styles=on_batches),
    "momentum-lowered-later": training(
        "begin",
        "optimizer-differs",
        when=both(trained_by("momentum", "adam"), uncalled),
        styles=on_batches,
    ),
    "every-second-update": training("epoch", "examples-dropped", when=uncalled, styles=on_batches),
    "two-batches-per-update": training(
        "epoch", "batch-size-differs", when=both(uncalled, without("bn", "one-left")), styles=on_batches
    ),
    "decay-everywhere": training(
        "optimizer",
        "optimizer-differs",
        when=having("exclusions"),
        styles=(*on_batches, "keras-loss"),
        among=EXPERIMENTS,
    ),
    "biases-decay-too": training("update", "optimizer-differs", styles=adamws, among=EXPERIMENTS),
    "decay-forgotten": training("update", "optimizer-differs", styles=adamws, among=EXPERIMENTS),
    "decay-by-hand": training("update", when=without("fp16")),
    "rounded-weights": training("update", when=without("fp16")),
    "averaged-weights": training("epoch"),
    "wrong-velocity": training("update", "optimizer-differs", styles=momentums),
    "damped-velocity": training("update", "optimizer-differs", "loss-scaled", styles=momentums),
    "hand-momentum": training("update", "optimizer-differs", styles=momentums),
    "hand-beta": training("update", "optimizer-differs", styles=adams),
    "hand-epsilon": training("update", "optimizer-differs", styles=adams),
    "no-bias-correction": training("update", "optimizer-differs", styles=adams),
    "epsilon-inside-the-root": training("update", "optimizer-differs", styles=("adam-by-hand", "adam-eager")),
    "hand-rate-tenfold": training("update", "optimizer-differs", "loss-scaled", styles=sgds),
    "steps-counted-twice": training(
        "update", "optimizer-differs", when=both(trained_by("adam"), without("bn")), styles=on_batches
    ),
    "weights-anew": training("weights", "weights-not-shared"),
    "model-cloned": training("weights", "weights-not-shared", "variables-not-trained", styles=on_batches),
    "own-shuffle": training("batches", when=having("classes")),
    "never-reshuffled": training("batches", "not-reshuffled"),
    "own-permutation": training("batches"),
    "whole-steps": training("batches", "examples-dropped"),
    "remainder-dropped": training("batches", "examples-dropped"),
    "index-never-reset": training("batches", "examples-dropped", styles=on_batches),
    "index-goes-on": training("batches", "examples-repeated", "not-reshuffled"),
    "random-batches": training("batches", "examples-dropped", "examples-repeated"),
    "arrays-in-order": training("batches", "not-reshuffled"),
    "shuffled-once": training("batches", "not-reshuffled"),
    "own-labels-apart": training("batches", "labels-shuffled-apart"),
    "own-smaller-batches": training("batching", "batch-size-differs"),
    "own-larger-batches": training("batching", "batch-size-differs"),
    "tail-dropped": training("batches", "examples-dropped"),
    "first-batches-skipped": training("batches", "examples-dropped"),
    "every-third-skipped": training("batches", "examples-dropped"),
    "first-batch-again": training("batches", "examples-repeated"),
    "epoch-twice": training("batches", "examples-repeated"),
    "smaller-batches": training("batching", "batch-size-differs"),
    "larger-batches": training("batching", "batch-size-differs"),
    "labels-apart": training("batches", "labels-shuffled-apart", when=both(labelled, simple)),
    "validation-in-training-mode": training(
        "test", "validation-changes-state", "validation-in-training-mode", when=stateful
    ),
    "validation-trains": training("test", "validation-changes-state"),
    "validation-tail-dropped": reporting("validation", "validation-examples-dropped"),
    "one-validation-batch": reporting("validation", "validation-examples-dropped"),
    "validation-without-penalty": reporting("share", "validation-loss-without-regularization", when=having("penalty")),
    "validation-without-last-penalty": reporting(
        "test", "validation-loss-without-regularization", when=having("penalty"), among=EXPERIMENTS
    ),
    "random-validation": reporting("validation", "validation-examples-dropped"),
    "stale-validation": reporting("validation", when=uncalled, styles=acting),
    "validation-without-weights": reporting("test", "validation-sample-weights-dropped", when=having("weights")),
    "never-reset": reporting("results", "metrics-not-reset"),
    "metrics-carried-over": reporting("results", "metrics-not-reset"),
    "carried-from-validation": reporting("results", "metrics-not-reset"),
    "average-not-swapped": reporting(
        "validation",
        "callbacks-missing",
        when=having("ema"),
        styles=(*on_batches, "epoch-function", "functional-loss"),
        among=EXPERIMENTS,
    ),
    "last-accuracy-only": reporting("compiled", "last-batch-only", styles=on_batches),
    "accuracy-over-batches": reporting("compiled", "loss-averaged-over-batches", styles=on_batches),
    "running-mean": reporting("compiled", when=on(1), styles=on_batches),
    "another-threshold": reporting("results", when=having("binary"), among=EXPERIMENTS),
    "another-accuracy": reporting("results", when=both(labelled, simple)),
    "mean-over-batches": reporting("results", "loss-averaged-over-batches", styles=on_batches),
    "shares-reported": reporting("record", "loss-not-reduced", when=on(2)),
    "shares-summed": reporting("reported", "loss-not-reduced", when=on(2)),
    "from-one-replica": reporting("compiled", "metrics-from-one-replica", when=on(2), styles=on_batches),
    "last-batch-only": reporting("compiled", "last-batch-only", when=on(1), styles=on_batches),
    "penalty-not-reported": reporting(
        "record", "loss-without-regularization", when=having("penalty"), among=EXPERIMENTS
    ),
    "metrics-weighted": reporting("record", when=having("weights")),
    "perplexity": reporting("reported"),
    "rounded-report": reporting("reported"),
    "percent": reporting("reported"),
    "training-loss-twice": reporting("reported"),
    "smoothed-loss": reporting("reported"),
    "loss-after-the-update": reporting("record", when=both(plain, without("bn", "dropout", "rnn")), styles=on_batches),
}

EXPERIMENTS_OF_A_STYLE, STYLES_OF_AN_EXPERIMENT, CELLS_OF_A_FAULT = 6, 3, 3
"""How many of the combinations that make sense become cells: correct ones per replica count, and faulty ones.

The first is of common experiments, the second of special ones.
"""


@cache
def cells() -> list[Cell]:
    """All cells, the correct ones first."""
    correct = [cell for name in STYLES for replicas in (1, 2) for cell in _some_correct(name, replicas)]
    special = [name for name in EXPERIMENTS if name not in COMMON]
    correct += [cell for name in special for replicas in (1, 2) for cell in _some_styles(name, replicas)]
    correct = list(dict.fromkeys(correct))
    return correct + [cell for fault in FAULTS for cell in _some_faulty(fault)]


def sample(n: int, seed: int = 0) -> list[Cell]:
    """Some ``n`` cells, right ones and faulty ones in turn, of as many styles, experiments and faults as possible."""
    right = [cell for cell in cells() if cell.fault is None]
    faulty = [cell for cell in cells() if cell.fault is not None]
    halves = diverse(right, -(-n // 2), str(seed)), diverse(faulty, n // 2, str(seed))
    return [cell for pair in zip_longest(*halves) for cell in pair if cell is not None]


def _some_correct(name: str, replicas: int) -> list[Cell]:
    possible = [
        Cell(name, experiment, replicas, None, "correct", frozenset())
        for experiment in (COMMON if any(suits(name, each, replicas) for each in COMMON) else EXPERIMENTS)
        if suits(name, experiment, replicas)
    ]
    return diverse(possible, EXPERIMENTS_OF_A_STYLE, f"{name} {replicas}")


def _some_styles(experiment: str, replicas: int) -> list[Cell]:
    possible = [
        Cell(name, experiment, replicas, None, "correct", frozenset())
        for name in STYLES
        if suits(name, experiment, replicas)
    ]
    return diverse(possible, STYLES_OF_AN_EXPERIMENT, f"{experiment} {replicas}")


def suits(style: str, experiment: str, replicas: int) -> bool:
    """Returns whether a loop in this style, without a fault, equals ``fit`` on the experiment."""
    traits = EXPERIMENTS[experiment]
    if "batch-callbacks" in traits.has and style not in acting_on_batches:
        return False  # only these call anything before a batch
    if "epoch-end" in traits.has and style in ("numpy-validation", "silent"):
        return False  # no logs for the callbacks
    return STYLES[style].when(traits, replicas)


def _some_faulty(name: str) -> list[Cell]:
    fault = FAULTS[name]
    possible = [
        Cell(style, experiment, replicas, name, fault.kind, fault.allowed)
        for style, how in STYLES.items()
        for experiment in fault.among
        for replicas in (1, 2)
        if style in fault.styles and fault.part not in how.lacks
        if suits(style, experiment, replicas) and fault.when(EXPERIMENTS[experiment], replicas)
    ]
    return diverse(possible, CELLS_OF_A_FAULT, name)


def diverse(cells: list[Cell], n: int, seed: str) -> list[Cell]:
    """Up to ``n`` of the cells, each of which has what has been rare among those before it."""
    rest = random.Random(seed).sample(cells, len(cells))
    seen: dict[Any, int] = {}
    chosen = []
    while rest and len(chosen) < n:
        features = [(cell.style, cell.experiment, cell.fault, (cell.kind, cell.replicas)) for cell in rest]
        rarity = [sum(2.0 ** -seen.get(feature, 0) for feature in each[:3]) for each in features]
        best = max(range(len(rest)), key=lambda i: (rarity[i], -seen.get(features[i][3], 0)))
        for feature in features[best]:
            seen[feature] = seen.get(feature, 0) + 1
        chosen.append(rest.pop(best))
    return chosen
