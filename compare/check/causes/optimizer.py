"""Causes in what the optimizer makes of right gradients: its settings, its state, its schedule, and callbacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compare.check.causes.base import OWN_OPTIMIZER, Cause, Measurement, Variant, one_of
from compare.check.causes.optimizer_recorded import ONCE, ONCE_FOR_ALL, kind_of_setting, recorded_end, setting_rate
from compare.check.recipe import Recipe, Update
from compare.check.step_values import EXAMPLES, STATE, UPDATE
from compare.check.used import AVERAGES, RUN, SCRIPT, SETS_RATE
from compare.watch.trace import CLIPPING, EXCLUDED

if TYPE_CHECKING:
    from compare.check.case import Case


def _rates(case: Case, *, reference: bool = False) -> tuple[float, ...]:
    observation = case.reference if reference else case.observation
    return tuple(step.learning_rate for step in observation.optimizer_steps) or tuple(observation.rates)


def _other_class(case: Case) -> Variant:
    own, (expected, _) = case.optimizers
    seen = Measurement.of("other-optimizer", optimizer=own[0].__name__, expected=expected.__name__)
    return Variant({"optimizer": own, "learning_rates": _rates(case)}, seen)


def settings_read(case: Case) -> list[Variant]:
    """What an optimizer itself says is not as in the experiment: its class, or its options."""
    if case.by_hand or case.several_optimizers or case.repeated > 1 or not case.steps:
        return []
    (own, config), (cls, expected) = case.optimizers
    if own is not cls:
        return [_other_class(case)]
    return list(_other_settings(case, config, expected))


def _other_optimizer(case: Case, update: Update) -> Iterable[Variant]:
    if case.by_hand:
        yield from _by_hand(case)
        return
    if case.repeated > 1:
        yield _applied_again(case)
        return
    (own, config), (cls, expected) = case.optimizers
    if own is not cls:
        yield _other_class(case)
        return
    yield from _applied_in_parts(case)
    of_rate = one_of(_kind_of_rates, "optimizer-differs")(case, update)
    changed = [*_other_settings(case, config, expected), *of_rate, *_lost_count(case)]
    if not changed:
        begins = frozenset(i for i in range(1, len(case.steps)) if case.steps[i].epoch != case.steps[i - 1].epoch)
        yield Variant({"restarts": begins, "iterations": _counts(case)}, Measurement.of("slots-emptied-per-epoch"))
    yield from changed
    if len(changed) > 1:
        merged = {name: value for each in changed for name, value in each.changes.items()}
        yield Variant(merged, Measurement.all([each.evidence for each in changed]))


def _other_settings(case: Case, config: dict[str, Any], expected: dict[str, Any]) -> Iterator[Variant]:
    """Hyperparameters that differ, from the beginning or from a later step on."""
    if other := _hyperparameters(config, expected):
        yield Variant({"overrides": other}, _settings(case, other, expected))
        return
    for i, (_, settings) in enumerate(case.settings(case.observation)):
        if other := _hyperparameters(settings, config):
            seen = _settings(case, other, expected).but(since_step=i + 1, since_epoch=case.steps[i].epoch)
            yield Variant({"overrides": other, "since": i}, seen)
            return


def _applied_again(case: Case) -> Variant:
    """An optimizer that takes the same gradients several times in each step."""
    seen = Measurement.of("applied-again", times=case.repeated)
    scheduled = len(set(_rates(case, reference=True))) > 1
    changes = {"times": case.repeated} | ({"learning_rates": None} if scheduled else {})
    return Variant(changes, seen, remedy=ONCE)


def _applied_in_parts(case: Case) -> Iterator[Variant]:
    """An optimizer that takes each part of the variables for a step of its own."""
    groups = case.steps[0].groups if case.steps else ()  # nothing is seen inside XLA
    if groups and all(step.groups == groups for step in case.steps):
        seen = Measurement.of("applied-in-parts", times=len(groups))
        scheduled = any(len({call.learning_rate for call in step.calls}) > 1 for step in case.steps)
        changes = {"groups": groups} | ({"learning_rates": None} if scheduled else {})
        yield Variant(changes, seen, remedy=ONCE_FOR_ALL)


def _lost_count(case: Case) -> Iterator[Variant]:
    """An optimizer that begins anew, or whose count of steps is not that of the steps made."""
    counts = _counts(case)
    pairs = enumerate(itertools.pairwise(case.steps), 1)
    if restarts := frozenset(
        i
        for i, (step, following) in pairs
        if len(step.calls) == len(following.calls) == 1 and following.calls[0].iterations < step.calls[0].iterations
    ):
        first = case.steps[min(restarts)]
        seen = Measurement.of("begins-anew", step=min(restarts) + 1, epoch=first.epoch)
        yield Variant({"restarts": restarts, "iterations": counts}, seen)
    if counts != tuple(range(len(counts))) and all(len(step.calls) == 1 for step in case.steps):
        yield Variant({"iterations": counts}, Measurement.of("iterations", iterations=counts))


def _counts(case: Case) -> tuple[int, ...]:
    return tuple(step.calls[0].iterations for step in case.steps)


def _hyperparameters(config: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters that differ from the expected ones, without clipping and the learning rate."""
    return {
        name: value
        for name, value in config.items()
        if name not in (*CLIPPING, "name", "learning_rate") and value != expected.get(name)
    }


def _settings(case: Case, other: Mapping[str, Any], expected: Mapping[str, Any]) -> Measurement:
    parts = []
    for name, value in other.items():
        if name == EXCLUDED:
            wrong = sorted(set(value) ^ set(expected.get(name, ())))
            names = [case.observation.names[i] for i in wrong]
            parts.append(Measurement.of("decayed", variables=names, left_out=bool(set(value) & set(wrong))))
        else:
            parts.append(Measurement.of("setting", name=name, value=value, expected=expected.get(name)))
    return Measurement.all(parts)


USUAL: Mapping[str, Sequence[float]] = {
    "momentum": (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
    "rho": (0.9, 0.95, 0.99, 0.999),
    "beta_1": (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
    "beta_2": (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999),
    "epsilon": (0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10),
    "weight_decay": (0.0,),
}
"""The values that people write into an optimizer of their own."""


def _by_hand(case: Case) -> Iterable[Variant]:
    """Variants of an optimizer whose settings cannot be read: the weights are changed without one."""
    _, (cls, config) = case.optimizers
    gaps = case.weight_gaps(Recipe())
    known = gaps is not None and gaps.failing and len(gaps.gaps) == len(case.expected)
    if config.get(EXCLUDED):
        names = [case.observation.names[i] for i in config[EXCLUDED]]
        yield Variant({"overrides": {EXCLUDED: ()}}, Measurement.of("decayed", variables=names, left_out=False))
    if "nesterov" in config and config.get("momentum"):
        nesterov = not config["nesterov"]
        yield Variant({"overrides": {"nesterov": nesterov}}, Measurement.of("as-with-nesterov", nesterov=nesterov))
    for formula in FORMULAS.get(cls.__name__, ()):
        if formula != "damped" or config.get("momentum"):
            yield Variant({"formula": formula}, Measurement.of(f"formula-{formula}"))
    yield from _usual_values(case, gaps.failing[0] if gaps is not None and known else 0)
    yield from _by_epoch(case)
    for formula in FORMULAS.get(cls.__name__, ()):
        for value in USUAL["epsilon"] if formula.startswith("epsilon-inside") else ():
            changes = {"formula": formula, "overrides": {"epsilon": value}}
            yield Variant(changes, Measurement.of(f"formula-{formula}", epsilon=value))


def _usual_values(case: Case, first: int) -> Iterator[Variant]:
    """Other values of the hyperparameters, from the beginning or from the first wrong step on."""
    _, (cls, config) = case.optimizers
    for name, values in USUAL.items():
        own = config.get(name)
        for value in values if own is not None else ():
            if value == own:
                continue
            seen = Measurement.of("as-with", name=name, value=value, expected=own, optimizer=cls.__name__)
            yield Variant({"overrides": {name: value}}, seen)
            if first:
                since = seen.but(since_step=first + 1, since_epoch=case.expected[first].epoch)
                yield Variant({"overrides": {name: value}, "since": first}, since)


def _by_epoch(case: Case) -> Iterator[Variant]:
    """A schedule at other steps than those made, and slots or counts that begin anew with each epoch."""
    spans = case.expected
    epochs, counts = [span.epoch for span in spans], tuple(range(len(spans)))
    for kind, steps in (  # those at which a schedule may be evaluated by mistake
        ("rate-of-epoch-from-0", [epoch - 1 for epoch in epochs]),
        ("rate-of-epoch", epochs),
        ("rate-per-epoch", [epochs.index(epoch) for epoch in epochs]),
        ("rate-of-next-step", [i + 1 for i in counts]),
        ("rate-of-step-before", [max(i - 1, 0) for i in counts]),
    ):
        rates = tuple(case.replay.scheduled(step) for step in steps)
        if all(rate is not None for rate in rates):
            yield Variant({"learning_rates": rates}, Measurement.of(kind))
    begins = frozenset(i for i in counts[1:] if epochs[i] != epochs[i - 1])
    anew = tuple(i - max((begin for begin in begins if begin <= i), default=0) for i in counts)
    yield Variant({"restarts": begins}, Measurement.of("begins-anew-per-epoch"))
    yield Variant({"restarts": begins, "iterations": counts}, Measurement.of("slots-emptied-in-epochs"))
    yield Variant({"iterations": anew}, Measurement.of("counted-anew-per-epoch"))


FORMULAS: Mapping[str, Sequence[str]] = {
    "SGD": ("damped",),
    "Adam": (
        "uncorrected",
        "mean-uncorrected",
        "square-uncorrected",
        "epsilon-last",
        "epsilon-inside",
        "epsilon-inside-uncorrected",
    ),
}
"""Formulas that no setting of the optimizer describes (see ``optimizer_replay``), by its class."""


def _kind_of_rates(case: Case, update: Update) -> tuple[str, Variant] | None:
    """The cause of other learning rates: callbacks or a schedule of the reference's, where the loop's is constant."""
    rates, expected = _rates(case), _rates(case, reference=True)
    i = next((i for i, (a, b) in enumerate(zip(rates, expected, strict=False)) if a != b), None)
    if i is None:
        return None
    stays = len(set(rates)) == 1 < len(set(expected))
    if stays and not case.observation.optimizers:
        return None
    scheduled = isinstance(case.optimizers[1][1].get("learning_rate"), dict)
    left = len(set(rates)) == 1 and rates[0] == case.replay.initial_rate
    callbacks = setting_rate(case.callbacks) if not (scheduled or case.observation.sets_rate) else []
    if callbacks and (stays or (left and case.observation.optimizers)):
        numbers = {"step": i + 1, "expected": expected[i], "learning_rate": rates[i], "epoch": case.steps[i].epoch}
        seen = Measurement.of("callbacks-set-rate", callbacks=callbacks, reference=case.reference.name, **numbers)
        cause = "callbacks-missing"
    elif not stays:
        numbers = {"learning_rate": rates[i], "expected": expected[i], "step": i + 1}
        cause, seen = "optimizer-differs", Measurement.of("learning-rate", **numbers, **_pattern(case, rates, expected))
    else:
        seen = Measurement.of("rate-stays", learning_rate=rates[0], expected=expected)
        cause = "learning-rate-schedule-missing"
    return cause, Variant({"learning_rates": rates}, seen)


def _pattern(case: Case, rates: Sequence[float], right: Sequence[float]) -> dict[str, Any]:
    """How the loop's learning rates differ from the reference's; empty if no pattern is seen."""
    factors = [a / b for a, b in zip(rates, right, strict=False) if b]
    if factors and max(factors) - min(factors) <= 1e-6 * abs(factors[0]):
        return {"factor": factors[0]}
    own, expected = (
        [{rate for rate, step in zip(side, case.steps, strict=False) if step.epoch == epoch} for epoch in case.epochs]
        for side in (rates, right)
    )
    if all(len(each) == 1 for each in own) and any(len(each) > 1 for each in expected):
        return {"pattern": "once per epoch"}
    return {"pattern": "one epoch late"} if len(own) > 1 and own[1:] == expected[:-1] else {}


def _average_not_taken(case: Case) -> Measurement | None:
    """Evidence that the loop does not end with the moving averages that its optimizer keeps.

    One that takes them over before it reports its last epoch, as after every other, does.
    """
    given, own = case.reference.changed_after_training, case.observation.changed_last
    if not case.averages or not given or set(own) & set(given):
        return None
    names = {"reference": case.reference.name, "side": case.observation.name}
    return Measurement.of("averages-not-taken", variables=given, **names)


def _callbacks_missing(case: Case) -> Measurement | None:
    """Evidence that callbacks stop the reference, or change its weights outside of steps, and not the loop's."""
    observation, reference = case.observation, case.reference
    if not case.callbacks:
        return None
    of = {"callbacks": case.callbacks, "reference": reference.name}
    epochs, expected = len(observation.epoch_end_states), len(reference.epoch_end_states)
    if epochs > expected:
        return Measurement.of("ended", epochs=epochs, expected=expected, side=observation.name, **of)
    if reference.changed_after_training and not observation.changed_after_training and not case.averages:
        return Measurement.of("changed-after-training", variables=reference.changed_after_training, **of)
    for epoch, changes in reference.changed_after_steps.items():
        if changes and not observation.changed_after_steps.get(epoch):
            return Measurement.of("changed-at-epoch-end", epoch=epoch, variables=list(changes), **of)
    return None


def _no_schedule(case: Case, update: Update) -> Iterable[Variant]:
    if case.by_hand and (first := case.replay.scheduled(0)) is not None:
        yield Variant({"learning_rates": (first,)}, Measurement.of("rate-of-first-step", learning_rate=first))
    yield from one_of(_kind_of_rates, "learning-rate-schedule-missing")(case, update)


OF_EMA = "optimizer.finalize_variable_values(model.trainable_variables)  # after the last epoch, with use_ema only"
OPTIONS_OF_FIT = "optimizer = {optimizer}({options})  # as in fit"
SCHEDULE_OF_FIT = "optimizer = {optimizer}(schedule, ...)  # that of fit's optimizer"
TAKEN = "optimizer.finalize_variable_values(model.trainable_variables)  # after the last epoch"


def with_callbacks(callbacks: str, epochs: str) -> str:
    """How a loop runs fit's callbacks, with the code that gives them, and that of the epochs."""
    return (
        "model.optimizer = optimizer  # where callbacks look for it\n"
        f"callbacks = tf.keras.callbacks.CallbackList({callbacks}, model=model)  # the list that fit gets\n"
        "callbacks.on_train_begin()\n"
        f"for epoch in {epochs}:\n"
        "    callbacks.on_epoch_begin(epoch - 1)\n"
        "    ...\n"
        "    callbacks.on_epoch_end(epoch - 1, logs)  # logs of training and validation\n"
        "    if model.stop_training:\n"
        "        break\n"
        "callbacks.on_train_end()"
    )


CAUSES = (
    Cause(
        id="optimizer-differs",
        stages=(UPDATE, STATE),
        symptom="Training is faster, slower or less stable than with fit, from the same gradients.",
        explanation="The loop creates an optimizer of its own, or changes a hyperparameter of fit's, applies it "
        "twice in a step, or goes on with one that has made steps before.",
        wrong="optimizer = tf.keras.optimizers.Adam(0.003)  # fit's is Adam()",
        remedy=f"{OWN_OPTIMIZER}\n{OF_EMA}",
        remedies={
            f"{SCRIPT} {AVERAGES}": f"{OPTIONS_OF_FIT}\n{TAKEN}",
            SCRIPT: OPTIONS_OF_FIT,
            f"{RUN} {AVERAGES}": f"{OWN_OPTIMIZER}\n{OF_EMA}",
            RUN: OWN_OPTIMIZER,
        },
        update=_other_optimizer,
        recorded={UPDATE: one_of(kind_of_setting, "optimizer-differs")},
        fact=_average_not_taken,
    ),
    Cause(
        id="learning-rate-schedule-missing",
        stages=(UPDATE,),
        symptom="The first step is equal; later the loop's steps are larger than fit's.",
        explanation="The loop's learning rate does not follow fit's schedule: it stays what it was, or is set once per "
        "epoch where fit's changes in every step.",
        wrong="optimizer = tf.keras.optimizers.Adam(float(optimizer.learning_rate))  # its current value, as a "
        "constant",
        remedy="model, optimizer, loss_object, metrics = run.build()  # the optimizer has the schedule\n"
        "optimizer.learning_rate = schedule(epoch)  # in every epoch, only if a callback sets it under fit",
        remedies={
            f"{SCRIPT} {SETS_RATE}": f"{SCHEDULE_OF_FIT}\noptimizer.learning_rate = schedule(epoch)  # in every epoch",
            SCRIPT: SCHEDULE_OF_FIT,
        },
        update=_no_schedule,
        recorded={UPDATE: one_of(kind_of_setting, "learning-rate-schedule-missing")},
    ),
    Cause(
        id="callbacks-missing",
        stages=(EXAMPLES, UPDATE, STATE),
        symptom="Both train alike for some epochs, then the learning rates differ, or one side stops.",
        explanation="fit runs callbacks that change training: they set the learning rate, stop early or average "
        "weights. A loop has to do the same by itself.",
        wrong="for epoch in range(epochs):\n    train_one_epoch()",
        remedy=with_callbacks("run.build_callbacks()", "run.epochs"),
        remedies={SCRIPT: with_callbacks("[...]", "range(1, epochs + 1)")},
        update=one_of(_kind_of_rates, "callbacks-missing"),
        recorded={"": recorded_end, EXAMPLES: recorded_end, UPDATE: one_of(kind_of_setting, "callbacks-missing")},
        fact=_callbacks_missing,
    ),
)
