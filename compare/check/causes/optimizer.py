"""Causes in what the optimizer makes of right gradients: its settings, its state, its schedule, and callbacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import Cause, Measurement, Variant, one_of
from compare.check.observation import EXCLUDED
from compare.check.recipe import Recipe, Update, multiple
from compare.check.recorded import (
    A_RATE,
    CLOSE,
    clip_alike,
    clipping_of,
    equal_gradients,
    other_settings,
    same,
    subtracted,
)
from compare.check.sides import Sides
from compare.check.stages import Located
from compare.check.step_values import (
    EXAMPLES,
    STATE,
    UPDATE,
    calls_of,
    changes_of,
    gradients_of,
    learning_rates_of,
    other_calls,
    relative_gap,
)
from compare.check.used import AVERAGES, RUN, SCRIPT, SETS_RATE, class_of
from compare.watch.trace import BY_HAND, CLIPPING, Trace

if TYPE_CHECKING:
    from compare.check.case import Case


def _config(case: Case, *, reference: bool = False) -> dict[str, Any]:
    """The configuration of the optimizer in the first step."""
    return case.settings(reference=reference)[0][1]


def _class(case: Case, *, reference: bool = False) -> type[Any]:
    """The class of the optimizer in the first step."""
    return case.settings(reference=reference)[0][0]


def _rates(case: Case, *, reference: bool = False) -> tuple[float, ...]:
    """The learning rate of each step."""
    observation = case.reference if reference else case.observation
    return tuple(step.learning_rate for step in observation.optimizer_steps) or tuple(observation.rates)


def _other_class(case: Case) -> Variant:
    names = {"optimizer": _class(case).__name__, "expected": _class(case, reference=True).__name__}
    changed = {"optimizer": (_class(case), _config(case)), "learning_rates": _rates(case)}
    return Variant(changed, Measurement.of("other-optimizer", **names))


def settings_read(case: Case) -> list[Variant]:
    """What an optimizer itself says is not as in the experiment: its class, or its options."""
    if case.by_hand or case.several_optimizers or case.repeated > 1 or not case.steps:
        return []
    if _class(case) is not _class(case, reference=True):
        return [_other_class(case)]
    changes = _other_settings(case, _config(case), _config(case, reference=True))
    return [Variant(change, seen) for change, seen in changes]


def _other_optimizer(case: Case, update: Update) -> Iterable[Variant]:
    if case.by_hand:
        yield from _by_hand(case)
        return
    if case.repeated > 1:
        yield _applied_again(case)
        return
    config, expected = _config(case), _config(case, reference=True)
    if _class(case) is not _class(case, reference=True):
        yield _other_class(case)
        return
    yield from _applied_in_parts(case)
    changes = [*_other_settings(case, config, expected), *_other_rate(case), *_lost_count(case)]
    if not changes:
        begins = frozenset(i for i in range(1, len(case.steps)) if case.steps[i].epoch != case.steps[i - 1].epoch)
        yield Variant({"restarts": begins, "iterations": _counts(case)}, Measurement.of("slots-emptied-per-epoch"))
    for change, seen in changes:
        yield Variant(change, seen)
    if len(changes) > 1:
        merged: dict[str, Any] = {}
        for change, _ in changes:
            merged |= change
        yield Variant(merged, Measurement.all([seen for _, seen in changes]))


Change = tuple[dict[str, Any], Measurement]
"""Fields of ``Update`` with their values, and what was seen of them."""


def _other_settings(case: Case, config: dict[str, Any], expected: dict[str, Any]) -> Iterator[Change]:
    """Hyperparameters that differ, from the beginning or from a later step on."""
    if other := _hyperparameters(config, expected):
        yield {"overrides": other}, _settings(case, other, expected)
        return
    for i, (_, settings) in enumerate(case.settings()):
        if other := _hyperparameters(settings, config):
            seen = _settings(case, other, expected).but(since_step=i + 1, since_epoch=case.steps[i].epoch)
            yield {"overrides": other, "since": i}, seen
            return


def _other_rate(case: Case) -> Iterator[Change]:
    rates = _other_rates(case)
    if rates and not _schedule_missing(case):
        i = next(i for i, (a, b) in enumerate(zip(*rates, strict=False)) if a != b)
        seen = Measurement.of(
            "learning-rate", learning_rate=rates[0][i], expected=rates[1][i], step=i + 1, **_pattern(case, rates)
        )
        yield {"learning_rates": rates[0]}, seen


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


def _lost_count(case: Case) -> Iterator[Change]:
    """An optimizer that begins anew, or whose count of steps is not that of the steps made."""
    counts = _counts(case)
    if restarts := frozenset(_restarts(case)):
        first = case.steps[min(restarts)]
        seen = Measurement.of("begins-anew", step=min(restarts) + 1, epoch=first.epoch)
        yield {"restarts": restarts, "iterations": counts}, seen
    if counts != tuple(range(len(counts))) and all(len(step.calls) == 1 for step in case.steps):
        yield {"iterations": counts}, Measurement.of("iterations", iterations=counts)


def _counts(case: Case) -> tuple[int, ...]:
    """The optimizer's iterations before each step."""
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


def _restarts(case: Case) -> Iterable[int]:
    """The steps before which the optimizer lost its count: it was made anew, or reset."""
    for i, (step, following) in enumerate(itertools.pairwise(case.steps), 1):
        if len(step.calls) == len(following.calls) == 1 and following.calls[0].iterations < step.calls[0].iterations:
            yield i


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
    cls, config = _class(case, reference=True), _config(case, reference=True)
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
    cls, config = _class(case, reference=True), _config(case, reference=True)
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
    for steps, kind in _other_steps([span.epoch for span in spans]):
        rates = tuple(case.replay.scheduled(step) for step in steps)
        if all(rate is not None for rate in rates):
            yield Variant({"learning_rates": rates}, Measurement.of(kind))
    begins = frozenset(i for i in range(1, len(spans)) if spans[i].epoch != spans[i - 1].epoch)
    counts = tuple(range(len(spans)))
    anew = tuple(i - max((begin for begin in begins if begin <= i), default=0) for i in counts)
    yield Variant({"restarts": begins}, Measurement.of("begins-anew-per-epoch"))
    yield Variant({"restarts": begins, "iterations": counts}, Measurement.of("slots-emptied-in-epochs"))
    yield Variant({"iterations": anew}, Measurement.of("counted-anew-per-epoch"))


def _other_steps(epochs: Sequence[int]) -> Iterable[tuple[list[int], str]]:
    """Wrong steps at which a schedule may be evaluated, for each of the steps made, and what that is called."""
    counts = range(len(epochs))
    yield [epoch - 1 for epoch in epochs], "rate-of-epoch-from-0"
    yield list(epochs), "rate-of-epoch"
    yield [epochs.index(epoch) for epoch in epochs], "rate-per-epoch"
    yield [i + 1 for i in counts], "rate-of-next-step"
    yield [max(i - 1, 0) for i in counts], "rate-of-step-before"


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
"""Formulas that no setting of the optimizer describes (see ``hand_written``), by its class."""


def _other_rates(case: Case) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The learning rates of the loop and of the reference, if they differ."""
    rates, expected = _rates(case), _rates(case, reference=True)
    shared = min(len(rates), len(expected))
    return (rates, expected) if rates[:shared] != expected[:shared] else None


def _pattern(case: Case, rates: tuple[tuple[float, ...], tuple[float, ...]]) -> dict[str, Any]:
    """How the loop's learning rates differ from the reference's; empty if no pattern is seen."""
    factors = [a / b for a, b in zip(*rates, strict=False) if b]
    if factors and max(factors) - min(factors) <= 1e-6 * abs(factors[0]):
        return {"factor": factors[0]}
    own, expected = (
        [{rate for rate, step in zip(side, case.steps, strict=False) if step.epoch == epoch} for epoch in case.epochs]
        for side in rates
    )
    if all(len(each) == 1 for each in own) and any(len(each) > 1 for each in expected):
        return {"pattern": "once per epoch"}
    return {"pattern": "one epoch late"} if len(own) > 1 and own[1:] == expected[:-1] else {}


def _schedule_missing(case: Case) -> bool:
    """Whether the loop's learning rate is constant and the reference's is not."""
    rates = _other_rates(case)
    return rates is not None and len(set(rates[0])) == 1 and len(set(rates[1])) > 1


def _callbacks_set_rate(case: Case) -> bool:
    """Whether one of the reference's callbacks changes its learning rate, and the loop never sets a rate."""
    if case.observation.sets_rate:
        return False  # by itself, in its own way
    rates = _rates(case, reference=True)
    has_schedule = isinstance(_config(case, reference=True).get("learning_rate"), dict)
    return bool(case.callbacks) and not has_schedule and len(set(rates)) > 1


def _no_callbacks(case: Case, update: Update) -> Iterable[Variant]:
    if case.observation.optimizers and _schedule_missing(case) and _callbacks_set_rate(case):
        rates, expected = _rates(case), _rates(case, reference=True)
        i = next(i for i, (a, b) in enumerate(zip(rates, expected, strict=False)) if a != b)
        seen = Measurement.of(
            "callbacks-set-rate",
            callbacks=case.callbacks, reference=case.reference.name, expected=expected[i], learning_rate=rates[i],
            step=i + 1, epoch=case.steps[i].epoch,
        )  # fmt: skip
        yield Variant({"learning_rates": rates}, seen)


def _averages(case: Case) -> bool:
    """Whether the reference's optimizer keeps moving averages of the weights, which fit takes over at its end."""
    return bool(_config(case, reference=True).get("use_ema"))


def _average_not_taken(case: Case) -> Measurement | None:
    """Evidence that the loop does not end with the moving averages that its optimizer keeps."""
    reference, observation = case.reference, case.observation
    if not _averages(case) or not reference.changed_after_training or observation.changed_after_training:
        return None
    names = {"reference": reference.name, "side": observation.name}
    return Measurement.of("averages-not-taken", variables=reference.changed_after_training, **names)


def _callbacks_missing(case: Case) -> Measurement | None:
    """Evidence that callbacks stop the reference, or change its weights outside of steps, and not the loop's."""
    observation, reference = case.observation, case.reference
    if not case.callbacks:
        return None
    of = {"callbacks": case.callbacks, "reference": reference.name}
    epochs, expected = len(observation.epoch_end_states), len(reference.epoch_end_states)
    if epochs > expected:
        return Measurement.of("ends-earlier", epochs=epochs, expected=expected, side=observation.name, **of)
    if reference.changed_after_training and not observation.changed_after_training and not _averages(case):
        return Measurement.of("changed-after-training", variables=reference.changed_after_training, **of)
    for epoch, changes in reference.changed_after_steps.items():
        if changes and not observation.changed_after_steps.get(epoch):
            return Measurement.of("changed-at-epoch-end", epoch=epoch, variables=list(changes), **of)
    return None


def _no_schedule(case: Case, update: Update) -> Iterable[Variant]:
    if case.by_hand and (first := case.replay.scheduled(0)) is not None:
        yield Variant({"learning_rates": (first,)}, Measurement.of("rate-of-first-step", learning_rate=first))
    if case.observation.optimizers and _schedule_missing(case) and not _callbacks_set_rate(case):
        rates, expected = _rates(case), _rates(case, reference=True)
        seen = Measurement.of("rate-stays", learning_rate=rates[0], expected=expected)
        yield Variant({"learning_rates": rates}, seen)


# Two recorded sides


def kind_of_setting(sides: Sides, located: Located) -> tuple[str, Variant] | None:
    """The cause that makes other updates of equal gradients."""
    rates, variables = _recorded_rates(sides)
    traces = sides.right_trace, sides.other_trace
    right, other = (optimizer_of(trace, rate) for trace, rate in zip(traces, rates, strict=True))
    if right is not None and other is not None and BY_HAND in (right["class"], other["class"]):
        by_hand = _updated_by_hand(sides, other, right)
        return ("optimizer-differs", by_hand) if by_hand else None
    apart = 0.0 if rates[0] is None or rates[1] is None else relative_gap(*rates)
    if of_rate := _rate_not_followed(sides, rates, right, other):
        return of_rate
    if right is None or other is None:
        return None
    if right["class"] != other["class"]:
        if _matrices_agree(sides):
            return None
        seen = Measurement.of("script-optimizer", optimizer=other["class"], expected=right["class"])
        return "optimizer-differs", Variant({}, seen)
    found = _applied_otherwise(sides) or _recorded_in_parts(sides) or _kept(sides)
    # What one side applies besides, such as a decay of its own, may do what a setting does.
    if found or other_calls(*(calls_of(each, sides.step) for each in (sides.right, sides.other))):
        return ("optimizer-differs", found) if found else None
    a, b = right["config"], other["config"]
    if apart > CLOSE and isinstance(a.get("learning_rate"), dict) and not isinstance(b.get("learning_rate"), dict):
        return _without_schedule(sides, a["learning_rate"], rates)
    settings = {key: both for key, both in settings_apart(b, a).items() if not key.endswith("learning_rate")}
    of_schedule = {key: settings.pop(key) for key in list(settings) if "learning_rate" in key.split(".")}
    clipping = {key: settings.pop(key) for key in list(settings) if "clip" in key}
    pairs = zip(sides.close_ups, sides.traces, strict=True)
    clips = any(each.of(sides.step, "clip") for each, trace in pairs if not clipping_of(trace))
    if clipping and not clips and not clip_alike(sides, own=True):
        seen = Measurement.of("script-settings", optimizer="optimizer", settings=clipping, variables=[])
        return "clipping-differs", Variant({}, seen)
    begun, update = None, located.of(UPDATE)
    as_apart = not settings and update is not None and update.gap and abs(update.gap - apart) <= 0.1 * apart
    if apart > CLOSE or (apart and as_apart):  # such as one rate in float32 and the other in float64
        begun = a.get("learning_rate") if a.get("learning_rate") == b.get("learning_rate") else None
        digits = 6 if apart > CLOSE else 10
        now = {"learning_rate": [float(f"{rate:.{digits}g}") for rate in reversed(rates)]}
        settings = now | of_schedule | settings
    if settings:
        seen = Measurement.of("script-settings", settings=settings, optimizer=other["class"], variables=variables)
        if isinstance(begun, float) and len(settings) == 1:
            remedy = "optimizer.learning_rate = ...  # set, or not, in both scripts, and in the same step"
            return "optimizer-differs", Variant({}, seen.but(begun=begun), remedy=remedy, called=None)
        known = not variables and not isinstance(begun, Mapping)  # one schedule may be at other steps
        return "optimizer-differs", Variant({}, seen, remedy=with_options(right, settings) if known else "")
    again = made_again(sides)
    counted = Variant({}, again) if again else _counted_without_data(sides)
    return ("optimizer-differs", counted) if counted else None


def _without_schedule(
    sides: Sides, schedule: Mapping[str, Any], rates: tuple[float | None, float | None]
) -> tuple[str, Variant]:
    """Another rate than that of a schedule, from an optimizer that has none; its script may set rates itself."""
    set_rates = [rate for step in sides.other.steps for rate in learning_rates_of(sides.other, step).values()]
    if same(min(set_rates), max(set_rates)):
        seen = Measurement.of("script-schedule", schedule=schedule.get("class_name", "a schedule"))
        return "learning-rate-schedule-missing", Variant({}, seen.but(learning_rate=rates[1], expected=rates[0]))
    used = sides.other_trace.optimizers[0]["class"]
    settings = {"learning_rate": [float(f"{rate:.6g}") for rate in reversed(rates) if rate is not None]}
    seen = Measurement.of("script-settings", settings=settings, optimizer=used, variables=[])
    return "optimizer-differs", Variant({}, seen, remedy=AS_SCHEDULED, called=None)


def with_options(right: Mapping[str, Any], settings: Mapping[str, Sequence[Any]]) -> str:
    """An optimizer with the options of another one; empty where more is to be done than to write them."""
    given = {name: value for name, (_, value) in settings.items()}
    if right["config"].get("use_ema"):
        return ""
    if "learning_rate" in given and isinstance(right["config"].get("learning_rate"), Mapping):
        return f"optimizer = {class_of(right)}(schedule, ...)  # with the schedule of the other script's optimizer"
    if not all(map(str.isidentifier, given)):
        return ""
    options = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"optimizer = {class_of(right)}(..., {options})"


def _updated_by_hand(sides: Sides, own: Mapping[str, Any], right: Mapping[str, Any]) -> Variant | None:
    """An update that a script makes without an optimizer: if each side subtracts a multiple of all its gradients.

    After the first step, an optimizer with momentum does so by chance only, as with a single number to train.
    """
    names = ["" if each["class"] == BY_HAND else each["class"] for each in (own, right)]
    rate, expected = (subtracted(each, sides.step) for each in (sides.other, sides.right))
    numbers = sum(each.size for each in gradients_of(sides.other, sides.step).values())
    momentum, nesterov = (right["config"].get(name) for name in ("momentum", "nesterov"))
    with_momentum = "" if nesterov else WITH_MOMENTUM.format(momentum=momentum or 0.0)
    by_chance = sides.step > 1 and (numbers == 1 or bool(momentum or own["config"].get("momentum")))
    if momentum and by_chance and numbers > 1 and rate is not None and expected is None:
        seen = Measurement.of("script-without-momentum", optimizer=names[1], momentum=momentum, rate=rate)
        return Variant({}, seen, remedy=with_momentum)
    if rate is None or expected is None or by_chance:
        return None
    remedy = f"optimizer = tf.keras.optimizers.SGD({expected:.3g})"
    if own["class"] == BY_HAND:
        remedy = f"variable.assign_sub({expected * sides.other.scale:.3g} * gradient)"
        remedy = with_momentum if momentum else remedy
    return Variant({}, Measurement.of("script-by-hand", optimizers=names, rates=[rate, expected]), remedy=remedy)


def optimizer_of(trace: Trace, rate: float | None) -> Mapping[str, Any] | None:
    """The first optimizer of a training, or of several the first that begins with the learning rate of a step."""
    return next(iter([*(each for each in trace.optimizers if begins_with(rate, each)), *trace.optimizers]), None)


def begins_with(rate: float | None, optimizer: Mapping[str, Any]) -> bool:
    """Whether an optimizer is made with a learning rate."""
    begun = optimizer["config"].get("learning_rate")
    return isinstance(begun, float) and rate is not None and relative_gap(begun, rate) <= CLOSE


def settings_apart(own: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The settings of an optimizer that differ, without those of averages of weights if none are kept."""
    averages = own.get("use_ema") or right.get("use_ema")
    found = other_settings(own, right)
    return {key: both for key, both in found.items() if averages or not key.startswith("ema_")}


def _matrices_agree(sides: Sides) -> bool:
    """Whether both sides change a variable that no optimizer is told to treat otherwise, such as a bias, alike."""
    right, other = (each.after.get(sides.step, ()) for each in (sides.right, sides.other))
    before = sides.right.after.get(sides.step - 1, ())
    pairs = zip(before, right, other, strict=False)
    return any(np.ndim(a) > 1 and np.array_equal(a, b) and not np.array_equal(old, a) for old, a, b in pairs)


def _recorded_rates(sides: Sides) -> tuple[tuple[float | None, float | None], list[str]]:
    """The learning rates of both sides, and the variables that have them where others have equal ones."""
    right, other = (learning_rates_of(each, sides.step) for each in (sides.right, sides.other))
    both = sorted(right.keys() & other.keys())
    apart = [i for i in both if relative_gap(right[i], other[i]) > CLOSE]
    if not both:
        return (next(iter(right.values()), None), next(iter(other.values()), None)), []
    first = (apart or both)[0]
    names = [sides.right_trace.variables[i].name for i in apart]
    return (right[first], other[first]), names if len(names) < len(both) else []


def _applied_otherwise(sides: Sides) -> Variant | None:
    """An optimizer that only one side applies several times to the same gradients."""
    calls = [calls_of(each, sides.step) or 0 for each in (sides.right, sides.other)]
    more = int(calls[1] > calls[0])
    close_up, times = (sides.right, sides.other)[more], calls[more]
    steps = [gradients_of(close_up, step) for step in range(sides.step, sides.step + times)]
    if calls[1 - more] != 1 or times < 2 or not all(equal_gradients(steps[0], each) for each in steps):
        return None
    return Variant({}, Measurement.of("applied-again", times=times), remedy=ONCE, by_right=not more)


def _recorded_in_parts(sides: Sides) -> Variant | None:
    """One optimizer of equal settings that only one side applies several times in a step, each time to other weights.

    It counts as many steps, which changes the rate of a schedule, or what Adam makes of all gradients but the first.
    """
    of_step = [[event for event in each.of(sides.step, "gradients") if not event.replica] for each in sides.close_ups]
    many = int(len(of_step[1]) > len(of_step[0]))
    positions = [set(event.info["positions"]) for event in of_step[many]]
    apart = sum(map(len, positions)) == len(set().union(*positions))
    one_each = all(len(trace.optimizers) == 1 for trace in sides.traces)
    if not (len(positions) > len(of_step[1 - many]) == 1 and apart and one_each):
        return None
    if settings_apart(*(trace.config for trace in sides.traces)):
        return None
    rates, changes = ([seen(each, sides.step) for each in sides.close_ups] for seen in (learning_rates_of, changes_of))
    scheduled = any(relative_gap(rates[0][i], rates[1][i]) > CLOSE for i in rates[0].keys() & rates[1].keys())
    first = positions[0] if sides.step == 1 else ()
    gaps = [relative_gap(changes[0].get(i, 0.0), changes[1].get(i, 0.0)) for i in first]
    first_agrees = bool(gaps) and max(gaps) <= A_RATE
    if not (scheduled or first_agrees):
        return None
    of_right = sides.names[many] == sides.right_name
    return Variant({}, Measurement.of("applied-in-parts", times=len(positions)), remedy=ONCE_FOR_ALL, by_right=of_right)


def _kept(sides: Sides) -> Variant | None:
    """An optimizer that only one side has used before its first step, from equal weights."""
    traces = sides.right_trace, sides.other_trace
    begun = [trace.parts[0][1] if trace.parts else 0 for trace in traces]
    configs = [{**trace.config, "name": ""} for trace in traces]
    if sides.step != 1 or begun[0] == begun[1] or configs[0] != configs[1]:
        return None
    more = int(begun[1] > begun[0])
    numbers = {"iterations": begun[more], "expected": begun[1 - more]}
    used = next((str(each["class"]) for each in traces[more].optimizers), "optimizer")
    seen = Measurement.of("script-kept-optimizer", optimizer=used, **numbers)
    remedy = f"model.set_weights(weights)\noptimizer = tf.keras.optimizers.{used}(...)  # a new one, without slots"
    return Variant({}, seen, remedy=remedy, by_right=not more)


def _counted_without_data(sides: Sides) -> Variant | None:
    """An optimizer that has counted steps without data, if that scales the updates of all variables alike."""
    counts = [sides.step - 1 + sum(step < sides.step for step in trace.empty) for trace in sides.traces]
    changes = [changes_of(close_up, sides.step) for close_up in sides.close_ups]
    trained = [i for i in gradients_of(sides.right, sides.step) if i in changes[0] and i in changes[1]]
    if counts[0] == counts[1] or not trained:
        return None
    first, second = ([each[i] for i in trained] for each in changes)
    factor = multiple(second, first) or 0.0
    if same(factor, 1.0) or any(relative_gap(b, factor * a) > A_RATE for a, b in zip(first, second, strict=True)):
        return None
    more = int(counts[1] > counts[0])
    used = next((str(each["class"]) for each in sides.traces[more].optimizers), "optimizer")
    numbers = {"iterations": counts[more], "expected": counts[1 - more]}
    of_right = sides.names[more] == sides.right_name
    return Variant({}, Measurement.of("script-counted-more", optimizer=used, **numbers), remedy=SIZE, by_right=of_right)


def made_again(sides: Sides) -> Measurement | None:
    """Evidence that one side makes the same optimizer again, where the sides part as it takes its first step."""
    made = [(each["class"], each["config"] | {"name": ""}) for each in sides.other_trace.optimizers]
    again = len(made) > 1 and all(each == made[0] for each in made)
    if not again or len(sides.right_trace.optimizers) != 1 or (sides.step - 1, 0) not in sides.other_trace.parts:
        return None
    return Measurement.of("script-new-optimizer", optimizer=made[0][0])


def _rate_not_followed(
    sides: Sides, rates: Sequence[float | None], right: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> tuple[str, Variant] | None:
    """A rate that a callback of fit has changed, or that a script sets by a name which Keras 3 does not know."""
    if other is not None and other.get("lr") is not None and begins_with(rates[1], other) and rates[0] != rates[1]:
        numbers = {"lr": other["lr"], "learning_rate": rates[1], "expected": rates[0]}
        return "optimizer-differs", Variant({}, Measurement.of("script-lr", **numbers), remedy=BY_ITS_NAME, called=None)
    seen = _recorded_callbacks(sides, rates, right, other)
    return ("callbacks-missing", Variant({}, seen)) if seen else None


def _recorded_callbacks(
    sides: Sides, rates: Sequence[float | None], right: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Measurement | None:
    """Evidence that a callback of fit has set another learning rate than the one at which it began."""
    callbacks = _recorded_list(sides, but=(*NEVER, *STOP, SWAPS))
    of_rate = [name for name in callbacks if "LearningRate" in name or "LR" in name]
    callbacks = [name for name in of_rate if name in SET_RATES] or of_rate or callbacks
    if not callbacks or right is None or other is None or rates[0] is None or rates[1] is None:
        return None
    begun = right["config"].get("learning_rate")
    if same(rates[0], rates[1]) or not isinstance(begun, float) or same(begun, rates[0]):
        return None
    numbers = {"learning_rate": rates[0], "other_rate": rates[1]}
    names = {"side": sides.right_name, "other": sides.other_name}
    return Measurement.of("script-rate-changed", callbacks=callbacks, **numbers, **names)


def _recorded_end(sides: Sides, located: Located) -> Iterator[Variant]:
    """A callback that ends fit before its last epoch."""
    fit, callbacks = sides.right_trace, _recorded_list(sides, but=(*NEVER, *SET_RATES, SWAPS))
    wanted = int(fit.fit.get("epochs", 0)) - int(fit.fit.get("initial_epoch", 0))
    if callbacks and sides.step > fit.last and len(fit.epochs) < wanted:
        numbers = {"epochs": len(fit.epochs), "callbacks": callbacks}
        yield Variant({}, Measurement.of("script-ended", side=sides.right_name, **numbers))


def _recorded_list(sides: Sides, but: Sequence[str]) -> list[str]:
    """The callbacks of fit that may have acted, which is after its first epoch, without those that never do this."""
    fit = sides.right_trace
    callbacks = [name for name in fit.fit.get("callbacks", ()) if name not in but]
    return callbacks if callbacks and sides.step > fit.epochs[0].steps else []


SET_RATES = ("LearningRateScheduler", "ReduceLROnPlateau")
"""Keras's callbacks that set the learning rate."""
RESTORES = "EarlyStopping"
"""The callback that sets weights after the last step (``restore_best_weights``)."""
STOP = (RESTORES, "TerminateOnNaN")
"""Those that end training."""
SWAPS = "SwapEMAWeights"
"""The one that sets weights at the end of each epoch."""
NEVER = ("BackupAndRestore", "CSVLogger", "History", "ModelCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard")
"""Those that do nothing of this."""
WITH_MOMENTUM = (
    "velocity.assign({momentum:g} * velocity - learning_rate * gradient)  # one for each variable, 0 at first\n"
    "variable.assign_add(velocity)"
)
AS_SCHEDULED = "optimizer.learning_rate = schedule(optimizer.iterations)  # before each step, as fit's schedule does"
BY_ITS_NAME = "optimizer.learning_rate = rate  # not optimizer.lr"
ONCE = "optimizer.apply_gradients(zip(gradients, variables))  # once in each step"
ONCE_FOR_ALL = f"{ONCE}, for all variables"
SIZE = "dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))  # fit then sees where an epoch ends"
OWN_OPTIMIZER = "model, optimizer, loss_object, metrics = run.build()  # use this optimizer unchanged"
OF_EMA = "optimizer.finalize_variable_values(model.trainable_variables)  # after the last epoch, with use_ema only"
OPTIONS_OF_FIT = "optimizer = {optimizer}(...)  # with fit's options"
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
        recognised="The gradients are right but the updates are not; the updates match if they are simulated with the "
        "class, hyperparameters, learning rates or step counts of the loop's optimizer, or applied in as many parts.",
        met='"Adam/Adagrad gives different derivatives when initializing globaly and localy": an optimizer '
        "created in every step, https://github.com/tensorflow/tensorflow/issues/29675",
        update=_other_optimizer,
        recorded={UPDATE: one_of(kind_of_setting, "optimizer-differs")},
        fact=_average_not_taken,
    ),
    Cause(
        id="learning-rate-schedule-missing",
        stages=(UPDATE,),
        symptom="The first step is equal; later the loop's steps are larger than fit's.",
        explanation="The loop keeps the learning rate of the first step; fit's learning rate changes.",
        wrong="optimizer = tf.keras.optimizers.Adam(float(optimizer.learning_rate))  # its current value, as a "
        "constant",
        remedy="model, optimizer, loss_object, metrics = run.build()  # the optimizer has the schedule\n"
        "optimizer.learning_rate = schedule(epoch)  # in every epoch, only if a callback sets it under fit",
        remedies={
            f"{SCRIPT} {SETS_RATE}": f"{SCHEDULE_OF_FIT}\noptimizer.learning_rate = schedule(epoch)  # in every epoch",
            SCRIPT: SCHEDULE_OF_FIT,
        },
        recognised="fit's learning rate changes from step to step, the loop's does not, and the updates match if "
        "they are simulated with the constant learning rate.",
        met='"Learning Rate scheduler with custom training using tf.GradientTape", '
        "https://github.com/tensorflow/tensorflow/issues/37862\n"
        '"How learning rate scheduler works with Custom training loop using tf.GradientTape()", '
        "https://github.com/tensorflow/models/issues/7687",
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
        recognised="Until then all weights agree, fit has callbacks, and from this step on its learning rate has "
        "changed without a schedule while the loop's has not; or fit has ended in another epoch, or has changed "
        "weights outside of its steps.",
        update=_no_callbacks,
        recorded={"": _recorded_end, EXAMPLES: _recorded_end, UPDATE: one_of(kind_of_setting, "callbacks-missing")},
        fact=_callbacks_missing,
    ),
)
