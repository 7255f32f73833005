"""How the optimizers of two recorded sides differ, and what they make of equal gradients; no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compare.check.causes.base import Measurement, Variant
from compare.check.recipe import multiple, norm_of
from compare.check.recorded import A_RATE, CLOSE, SMALL, clipping_of, same, settings_apart, subtracted
from compare.check.stages import Located
from compare.check.step_values import UPDATE, Sides, equal_gradients, other_calls, relative_gap
from compare.check.used import class_of
from compare.naming import some
from compare.watch.seen import CloseUp
from compare.watch.trace import BY_HAND, EXCLUDED, Trace


def kind_of_setting(sides: Sides, located: Located, *, limits: bool = True) -> tuple[str, Variant] | None:
    """The cause that makes other updates of equal gradients; with ``limits``, those of gradients come first."""
    rates, variables = _recorded_rates(sides)
    right, other = (_in_use(trace, sides.step, rate) for trace, rate in zip(sides.traces, rates, strict=True))
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
    recognisers = (_applied_otherwise, _recorded_in_parts, _kept)
    shown = ((at, recognise(at)) for recognise in recognisers for at in (sides, sides.turned()))
    found = next((replace(variant, by_right=at is not sides) for at, variant in shown if variant), None)
    # What one side applies besides, such as a decay of its own, may do what a setting does.
    if found or other_calls(*sides.both(CloseUp.calls)):
        return ("optimizer-differs", found) if found else None
    a, b = right["config"], other["config"]
    if apart > CLOSE and isinstance(a.get("learning_rate"), dict) and not isinstance(b.get("learning_rate"), dict):
        return _without_schedule(sides, other, a["learning_rate"], rates)
    settings = {key: both for key, both in settings_apart(b, a).items() if not key.endswith("learning_rate")}
    of_schedule = {key: settings.pop(key) for key in list(settings) if "learning_rate" in key.split(".")}
    clipping = {key: settings.pop(key) for key in list(settings) if "clip" in key}
    pairs = zip(sides.close_ups, sides.traces, strict=True)
    limited = any(each.of(sides.step, "clip") for each, trace in pairs if not clipping_of(trace))
    clips = limited and not equal_gradients(*sides.gradients())  # else that limit was not reached
    if limits and clipping and not clips and not sides.clip_alike(own=True):
        seen = Measurement.of("script-settings", optimizer="optimizer", settings=clipping, variables=[])
        return "clipping-differs", Variant({}, seen, remedy=with_options(right, clipping))
    begun, update, others = None, located.of(UPDATE), dict[str, Any]()
    as_apart = not settings and update is not None and update.gap and abs(update.gap - apart) <= 0.1 * apart
    if apart > CLOSE or (apart and as_apart):  # such as one rate in float32 and the other in float64
        begun = _begun(right) if _begun(right) == _begun(other) else None
        digits = 6 if apart > CLOSE else 10
        now = {"learning_rate": [float(f"{rate:.{digits}g}") for rate in reversed(rates)]}
        others = settings if located.stage == UPDATE and _is_of_rate(sides, rates) else {}
        settings = now | of_schedule | ({} if others else settings)
    if settings:
        seen = Measurement.of("script-settings", settings=settings, optimizer=other["class"], variables=variables)
        others = others | (clipping if limits and not limited else {})  # which has limited nothing yet
        seen = seen.but(others=others) if others else seen
        if "learning_rate" in settings and (later := _set_later(other, rates[1], begun)):
            options = {name: both for name, both in settings.items() if name != "learning_rate"}
            as_there = f"optimizer.learning_rate = ...  # in this step {rates[0]:.6g}, as in {sides.right_name}"
            remedy = "\n".join(filter(None, (with_options(right, options | others), as_there)))
            return "optimizer-differs", Variant({}, seen.but(**later), remedy=remedy, called="" if options else None)
        known = not isinstance(begun, Mapping)  # one schedule may be at other steps
        own, every = others.get(OF_GRADIENTS[0], (None, None))
        in_micro_batches = every and not own and isinstance(a.get("learning_rate"), Mapping) and not of_schedule
        remedy = with_options(right, settings | others) if known else ""
        remedy += f"  # of {some(list(variables))}" if remedy and variables else ""
        remedy = OF_MICRO_BATCHES.format(every, every - 1) if in_micro_batches else remedy
        return "optimizer-differs", Variant({}, seen, remedy=remedy)
    both = (sides, sides.turned())
    again = (
        Variant({}, made, remedy=MADE_ONCE.format(class_of(at.other_trace.optimizers[0])), by_right=at is not sides)
        for at in both
        for made in made_again(at, located)
    )
    counted = next(again, None) or _counted_without_data(sides)
    return ("optimizer-differs", counted) if counted else None


def _in_use(trace: Trace, step: int, rate: float | None) -> Mapping[str, Any] | None:
    """The optimizer of a step: of several, if it is not known which, the first that begins with its learning rate."""
    return next((each for each in trace.optimizers_at(step) if begins_with(rate, each)), trace.optimizer_at(step))


def _is_of_rate(sides: Sides, rates: tuple[float | None, float | None]) -> bool:
    """Whether another rate alone explains another update, but for a small part."""
    right, other = sides.both(CloseUp.changes)
    trained = [i for i in sides.right.gradients(sides.step) if i in right and i in other]
    factor = (rates[1] or 0.0) / (rates[0] or np.inf)
    apart, rest = (norm_of([other[i] - times * right[i] for i in trained]) for times in (1.0, factor))
    return rest <= SMALL * apart


def _without_schedule(
    sides: Sides, other: Mapping[str, Any], schedule: Mapping[str, Any], rates: tuple[float | None, float | None]
) -> tuple[str, Variant]:
    """Another rate than that of a schedule, from an optimizer that has none; its script may set rates itself."""
    set_rates = [rate for step in sides.other.steps for rate in sides.other.learning_rates(step).values()]
    later = _set_later(other, rates[1], None) or ({"set_later": _begun(other)} if other.get("rate_set") else {})
    if same(min(set_rates), max(set_rates)) and not later:
        seen = Measurement.of("script-schedule", schedule=schedule.get("class_name", "a schedule"))
        return "learning-rate-schedule-missing", Variant({}, seen.but(learning_rate=rates[1], expected=rates[0]))
    settings = {"learning_rate": [float(f"{rate:.6g}") for rate in reversed(rates) if rate is not None]}
    seen = Measurement.of("script-settings", settings=settings, optimizer=other["class"], variables=[])
    return "optimizer-differs", Variant({}, seen.but(**later), remedy=AS_SCHEDULED, called=None)


def with_options(right: Mapping[str, Any], settings: Mapping[str, Sequence[Any]]) -> str:
    """An optimizer with the options of another one; empty where more is to be done than to write them."""
    given = {name: value for name, (_, value) in settings.items() if name not in OF_GRADIENTS}
    if right["config"].get("use_ema"):
        return ""
    if "learning_rate" in given and isinstance(right["config"].get("learning_rate"), Mapping):
        return f"optimizer = {class_of(right)}(schedule, ...)  # with the schedule of the other script's optimizer"
    excluded = given.pop(EXCLUDED, None)
    if not (given or excluded) or not all(map(str.isidentifier, given)):
        return ""
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    called = f"\noptimizer.{EXCLUDED}(var_names={excluded!r})" if excluded else ""
    return f"optimizer = {class_of(right)}(...{options}){called}"


def _updated_by_hand(sides: Sides, own: Mapping[str, Any], right: Mapping[str, Any]) -> Variant | None:
    """An update that a script makes without an optimizer: if each side subtracts a multiple of all its gradients.

    After the first step, an optimizer with momentum does so by chance only, as with a single number to train.
    """
    names = ["" if each["class"] == BY_HAND else each["class"] for each in (own, right)]
    expected, rate = sides.both(subtracted)
    numbers = sum(each.size for each in sides.other.gradients(sides.step).values())
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


def begins_with(rate: float | None, optimizer: Mapping[str, Any]) -> bool:
    """Whether an optimizer is made with a learning rate."""
    begun = _begun(optimizer)
    return isinstance(begun, float) and rate is not None and relative_gap(begun, rate) <= CLOSE


def _set_later(optimizer: Mapping[str, Any], rate: float | None, begun: Any) -> dict[str, Any]:
    """What says that the script sets the rate of an optimizer that it has made with another: both do, or it alone."""
    if isinstance(begun, float):
        return {"begun": begun}
    constant = optimizer.get("begins") and not isinstance(_begun(optimizer), Mapping)
    return {"set_later": _begun(optimizer)} if constant and not begins_with(rate, optimizer) else {}


def _begun(optimizer: Mapping[str, Any]) -> Any:
    """The learning rate with which an optimizer is made, or its schedule; where that was not seen, of its first use."""
    used = optimizer["config"].get("learning_rate")
    return used if isinstance(used, Mapping) else optimizer.get("begins") or used


def _matrices_agree(sides: Sides) -> bool:
    """Whether both sides change a variable that no optimizer is told to treat otherwise, such as a bias, alike."""
    right, other = (each.after.get(sides.step, ()) for each in sides.close_ups)
    before = sides.right.after.get(sides.step - 1, ())
    pairs = zip(before, right, other, strict=False)
    return any(np.ndim(a) > 1 and np.array_equal(a, b) and not np.array_equal(old, a) for old, a, b in pairs)


def _recorded_rates(sides: Sides) -> tuple[tuple[float | None, float | None], list[str]]:
    """The learning rates of both sides, and the variables that have them where others have equal ones."""
    right, other = sides.both(CloseUp.learning_rates)
    both = sorted(right.keys() & other.keys())
    apart = [i for i in both if relative_gap(right[i], other[i]) > CLOSE]
    if not both:
        return (next(iter(right.values()), None), next(iter(other.values()), None)), []
    first = (apart or both)[0]
    names = [sides.variables[i] for i in apart]
    return (right[first], other[first]), names if len(names) < len(both) else []


def _applied_otherwise(sides: Sides) -> Variant | None:
    """An optimizer that the other side alone applies several times to the same gradients."""
    once, times = (calls or 0 for calls in sides.both(CloseUp.calls))
    steps = [sides.other.gradients(step) for step in range(sides.step, sides.step + times)]
    if once != 1 or times < 2 or not all(equal_gradients(steps[0], each) for each in steps):
        return None
    return Variant({}, Measurement.of("applied-again", times=times), remedy=ONCE)


def _recorded_in_parts(sides: Sides) -> Variant | None:
    """One optimizer of equal settings that the other side alone applies several times in a step, to other weights each.

    It counts as many steps, which changes the rate of a schedule, or what Adam makes of all gradients but the first.
    """
    few, many = ([each for each in side.of(sides.step, "gradients") if not each.replica] for side in sides.close_ups)
    positions = [set(event.info["positions"]) for event in many]
    apart = sum(map(len, positions)) == len(set().union(*positions))
    one_each = all(len(trace.optimizers) == 1 for trace in sides.traces)
    if not (len(positions) > len(few) == 1 and apart and one_each):
        return None
    if settings_apart(*(trace.config for trace in sides.traces)):
        return None
    rates, changes = sides.both(CloseUp.learning_rates), sides.both(CloseUp.changes)
    scheduled = any(relative_gap(rates[0][i], rates[1][i]) > CLOSE for i in rates[0].keys() & rates[1].keys())
    first = positions[0] if sides.step == 1 else ()
    gaps = [relative_gap(changes[0].get(i, 0.0), changes[1].get(i, 0.0)) for i in first]
    first_agrees = bool(gaps) and max(gaps) <= A_RATE
    if not (scheduled or first_agrees):
        return None
    seen = Measurement.of("applied-in-parts", times=len(positions))
    return Variant({}, seen, remedy=ONCE_FOR_ALL)


def _kept(sides: Sides) -> Variant | None:
    """An optimizer that the other side alone has used before its first step, or more often, from equal weights."""
    right, begun = (trace.parts[0][1] if trace.parts else 0 for trace in sides.traces)
    configs = [{**trace.config, "name": ""} for trace in sides.traces]
    if sides.step != 1 or begun <= right or configs[0] != configs[1]:
        return None
    used = next((str(each["class"]) for each in sides.other_trace.optimizers), "optimizer")
    seen = Measurement.of("script-kept-optimizer", optimizer=used, iterations=begun, expected=right)
    remedy = f"model.set_weights(weights)\noptimizer = tf.keras.optimizers.{used}(...)  # a new one, without slots"
    return Variant({}, seen, remedy=remedy)


def _counted_without_data(sides: Sides) -> Variant | None:
    """An optimizer that has counted steps without data, if that scales the updates of all variables alike."""
    counts = [sides.step - 1 + sum(step < sides.step for step in trace.empty) for trace in sides.traces]
    changes = sides.both(CloseUp.changes)
    trained = [i for i in sides.right.gradients(sides.step) if i in changes[0] and i in changes[1]]
    if counts[0] == counts[1] or not trained:
        return None
    first, second = ([each[i] for i in trained] for each in changes)
    factor = multiple(second, first) or 0.0
    if same(factor, 1.0) or any(relative_gap(b, factor * a) > A_RATE for a, b in zip(first, second, strict=True)):
        return None
    more = int(counts[1] > counts[0])
    used = next((str(each["class"]) for each in sides.traces[more].optimizers), "optimizer")
    numbers = {"iterations": counts[more], "expected": counts[1 - more]}
    return Variant({}, Measurement.of("script-counted-more", optimizer=used, **numbers), remedy=SIZE, by_right=not more)


def made_again(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Evidence that one side makes the same optimizer again, where the sides part as it takes its first step.

    Its rate may be another one.
    """
    made = [
        (each["class"], each["config"] | {"name": "", "learning_rate": None}) for each in sides.other_trace.optimizers
    ]
    again = len(made) > 1 and all(each == made[0] for each in made)
    if again and len(sides.right_trace.optimizers) == 1 and (sides.step - 1, 0) in sides.other_trace.parts:
        yield Measurement.of("script-new-optimizer", optimizer=made[0][0])


def _rate_not_followed(
    sides: Sides, rates: Sequence[float | None], right: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> tuple[str, Variant] | None:
    """A rate that a callback of fit has changed, or that a script sets by a name which Keras 3 does not know."""
    if other is not None and other.get("lr") is not None and begins_with(rates[1], other) and rates[0] != rates[1]:
        numbers = {"lr": other["lr"], "learning_rate": rates[1], "expected": rates[0]}
        return "optimizer-differs", Variant({}, Measurement.of("script-lr", **numbers), remedy=BY_ITS_NAME, called=None)
    callbacks = setting_rate(_recorded_callbacks(sides, SET_RATE))
    if other is not None and other.get("rate_set"):
        return None  # it sets the rate itself, at another time or to something else
    if not callbacks or right is None or other is None or rates[0] is None or rates[1] is None:
        return None
    begun = right["config"].get("learning_rate")
    if same(rates[0], rates[1]) or not isinstance(begun, float) or same(begun, rates[0]):
        return None
    numbers = {"learning_rate": rates[0], "other_rate": rates[1]}
    names = {"side": sides.right_name, "other": sides.other_name}
    seen = Measurement.of("script-rate-changed", callbacks=callbacks, **numbers, **names)
    return "callbacks-missing", Variant({}, seen)


def recorded_end(sides: Sides, located: Located) -> Iterator[Variant]:
    """A callback that ends fit before its last epoch."""
    fit, callbacks = sides.right_trace, _recorded_callbacks(sides, END)
    wanted = int(fit.fit.get("epochs", 0)) - int(fit.fit.get("initial_epoch", 0))
    if callbacks and sides.step > fit.last and len(fit.epochs) < wanted:
        numbers = {"epochs": len(fit.epochs), "callbacks": callbacks}
        yield Variant({}, Measurement.of("script-ended", side=sides.right_name, **numbers), called=None)


def _recorded_callbacks(sides: Sides, act: str) -> list[str]:
    """The callbacks of fit that may have acted so, which is after its first epoch."""
    fit = sides.right_trace
    callbacks = acting(fit.fit.get("callbacks", ()), act)
    return callbacks if callbacks and sides.step > fit.epochs[0].steps else []


def setting_rate(callbacks: Sequence[str]) -> list[str]:
    """Those of some callbacks, by class, that set the rate: Keras's, or those named after it, or any that may."""
    callbacks = acting(callbacks, SET_RATE)
    of_rate = [name for name in callbacks if "LearningRate" in name or "LR" in name]
    return [name for name in of_rate if name in OF_KERAS] or of_rate or callbacks


def acting(callbacks: Sequence[str], act: str) -> list[str]:
    """Those of some callbacks, by class, that may do something; one that is not Keras's may do anything."""
    return [name for name in callbacks if act in OF_KERAS.get(name, (act,))]


SET_RATE, END, SET_WEIGHTS, RESTORES = "set the rate", "end training", "set weights", "EarlyStopping"
NOTHING = "BackupAndRestore", "CSVLogger", "History", "ModelCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard"
OF_KERAS: Mapping[str, Sequence[str]] = {
    "LearningRateScheduler": (SET_RATE,),
    "ReduceLROnPlateau": (SET_RATE,),
    RESTORES: (END, SET_WEIGHTS),  # the weights only with restore_best_weights
    "TerminateOnNaN": (END,),
    "SwapEMAWeights": (SET_WEIGHTS,),
    **dict.fromkeys(NOTHING, ()),
}
"""What each of Keras's callbacks does to a training."""
OF_GRADIENTS = ("gradient_accumulation_steps", "loss_scale_factor")
"""Options of an optimizer by which it takes other gradients, so that steps are not the same."""
WITH_MOMENTUM = (
    "velocity.assign({momentum:g} * velocity - learning_rate * gradient)  # one for each variable, 0 at first\n"
    "variable.assign_add(velocity)"
)
OF_MICRO_BATCHES = (
    "# the other schedule counts micro-batches; make the optimizer with a constant rate, and before each update set:\n"
    "optimizer.learning_rate = schedule({} * update + {})  # update is counted from 0"
)
AS_SCHEDULED = "optimizer.learning_rate = schedule(optimizer.iterations)  # before each step, as fit's schedule does"
MADE_ONCE = "optimizer = {}(...)  # once, before the first epoch: all steps use this one"
BY_ITS_NAME = "optimizer.learning_rate = rate  # not optimizer.lr"
ONCE = "optimizer.apply_gradients(zip(gradients, variables))  # once in each step"
ONCE_FOR_ALL = f"{ONCE}, for all variables"
SIZE = "dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))  # fit then sees where an epoch ends"
