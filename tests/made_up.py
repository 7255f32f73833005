"""Steps that nothing has trained: made up from a recipe and an update, as an observation of a loop would have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compare.check.observation import ApplyCall, Observation, OptimizerStep, State
from compare.check.recipe import Recipe, Update

RATE = 0.125


def observed(
    replay: Any, initial: State, recipe: Recipe | None = None, update: Update | None = None, *, name: str = "loop"
) -> Observation:
    """Two epochs whose steps are those of a recipe and an update."""
    from compare.check.observation import configuration
    from compare.check.optimizer_replay import simulate
    from compare.engine.described import layers_of

    recipe, update = recipe or Recipe(), update or Update()
    optimizer, trained = replay.experiment.build_optimizer(), replay.trainable
    names = [variable.path for variable in replay.variables]
    seen = Observation(name, replay.replicas, names, trained, initial=initial)
    seen.layers = seen.layers_at_end = layers_of(replay.model)
    own = configuration(optimizer)
    seen.optimizers = [(type(optimizer), config) for config in (own, own | dict(update.overrides))]
    spans, now = [span for epoch in (1, 2) for span in replay.spans[epoch]], seen.initial
    for i, (span, used) in enumerate(zip(spans, recipe.feed or spans, strict=True)):
        rate = update.learning_rates[i] if update.learning_rates else replay.scheduled(i) or RATE
        call = ApplyCall(int(i >= update.since), rate, i, frozenset(range(trained)))
        step = OptimizerStep(span.epoch, [], now, now, [call])
        if len(now[0]) > trained:  # the forward pass changes the others
            part = replay.parts(used)[0]
            step.state = [replay.replica_pass(step, 0, part, recipe).state for _ in now]
        step.gradients = replay.typed_gradients(step, used, recipe)
        seen.optimizer_steps.append(step)
        flat = simulate(replay, seen.optimizer_steps, update)[-1]
        made = [[part.astype("float32") for part in replay.unflatten(each)] for each in flat]
        step.after = now = [[*one, *state[trained:]] for one, state in zip(made, step.state, strict=True)]
        seen.step_states.append(now)
        seen.updates_made.append(i + 1)
        seen.last_step_states[span.epoch] = seen.epoch_end_states[span.epoch] = now
    seen.final = now
    return seen


def judge_of(replay: Any, initial: State) -> Callable[..., Any]:
    """Judges made-up steps of a loop, beside those of a right fit."""
    from compare.check.case import Case
    from compare.check.judge import judge_training

    fit = Case(observed(replay, initial, name="fit"), replay)
    fit.calibrate()
    expected = judge_training(fit)

    def judge(*of: Any, changed: Callable[[Observation], None] = lambda seen: None) -> Any:
        seen = observed(replay, initial, *of)
        changed(seen)
        return judge_training(Case(seen, replay, fit), expected)

    assert expected.right
    return judge


def values_of(replay: Any) -> State:
    """The variables of a replay as they were built, with weights large enough for gradients that are not alike."""
    generator = np.random.default_rng(5)
    built = [np.array(variable.numpy()) for variable in replay.variables]
    trained = [generator.normal(size=each.shape).astype(each.dtype) for each in built[: replay.trainable]]
    return [[*trained, *built[replay.trainable :]]]
