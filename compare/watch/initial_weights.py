"""Gives the second of two scripts, or of two trainings of one, the initial weights of the first."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import container, described
from compare.engine.insides_keras import MAKES_VARIABLES, KerasTensor, compute_output_spec, keras
from compare.engine.insides_tensorflow import ResourceVariable
from compare.patching import Inside, patch
from compare.records.files import replace_file
from compare.records.model import Variable, npz, read_arrays
from compare.watch.pairing import in_order, paired, shapes_of
from compare.watch.settings import ALL_BEGUN, AWAITED, ENDED, WEIGHTS, Detail
from compare.watch.weights import seeds_of, set_value, value_of, weights_of


@dataclass
class Mark:
    """What is known of a variable of the script.

    Attributes:
        value: its value when it had one first, or when the script had set it before a step.
        begun: whether it has its initial value.
        alike: whether that is surely its value in the first script, or in the first training.
        assigned: whether the script itself has set it since it was made.
        used: whether a gradient or an optimizer has used it.
        used_first: the hash of its value when one did first; None if it had none yet.
    """

    value: np.ndarray | None = None
    begun: bool = False
    alike: bool = False
    assigned: bool = False
    used: bool = False
    used_first: int | None = None


def mark_of(variable: Any) -> Mark:
    """What is known of a variable; kept with the variable itself."""
    variable = container(variable)
    if not hasattr(variable, "_watched"):
        object.__setattr__(variable, "_watched", Mark())
    mark: Mark = variable._watched
    return mark


@dataclass
class Group:
    """Initial values of variables that belong together: of a model or a layer, or one variable.

    Attributes:
        seeds: the states of its random number generators.
        used: the variables that values were given to, by the number of the value.
    """

    variables: list[Variable]
    values: list[np.ndarray]
    seeds: list[np.ndarray] = field(default_factory=list)
    used: dict[int, Mark] = field(default_factory=dict)


def matching(groups: Sequence[Group], wanted: Sequence[Variable], last: bool) -> tuple[list[tuple[Group, int]], bool]:
    """The values for variables: by position and shape, then by path, else by shape, in the order of equal shapes.

    Args:
        last: whether no more values will come; until then, only whole sequences are taken.

    Returns:
        For each variable, a group and the number of a value, empty if not all have one; and whether they are sure to be
        the right ones, since not only the order of equal shapes tells them.
    """
    shapes = shapes_of(wanted)
    for group in groups:
        if not group.used and shapes_of(group.variables) == shapes:
            return [(group, i) for i in range(len(shapes))], True
    free = [(group, i) for group in groups for i in range(len(group.values)) if i not in group.used]
    there = [group.variables[i] for group, i in free]
    for start in range(len(there) - len(shapes) + 1):
        if shapes_of(there)[start : start + len(shapes)] == shapes:
            return free[start : start + len(shapes)], True
    if not last:
        return [], True
    sure = paired(there, wanted)
    return [free[i] for i in sure or in_order(there, wanted)], bool(sure)


class InitialWeights:
    """Keeps the initial weights of the first script, and gives them to the second.

    Of one script, it gives those of the first training to the second one. What has weights is a model, a layer that is
    in no model, or a variable of the script's own; ``matching`` pairs them, in the order in which they are first used.

    Args:
        settings: say whether the weights are made alike.
        folder: where they are.
        provides: whether this script provides them, rather than taking those that are there.

    Attributes:
        aside: what is not the script's own doing, such as an optimizer's update.
        trained: whether this script has made an optimizer step.
        on_begun: called with variables that have just got their initial values.
    """

    def __init__(self, settings: Detail, folder: str = "", *, provides: bool = False) -> None:
        self._folder, self._provides = Path(folder), provides
        self._folder.mkdir(parents=True, exist_ok=True)
        self._alone = settings.alone
        self._own = WEIGHTS in settings.own
        self._roots: list[weakref.ref[Any]] = []
        self._seeds: list[tuple[weakref.ref[Any], list[np.ndarray]]] = []
        self._read: dict[str, Group] = {}
        self._first: list[Group] = []
        self._vain: dict[tuple[Variable, ...], int] = {}
        self._missed = False  # whether something was given no values in this look
        self._made = 0  # how many variables and roots were made
        self._over: tuple[int, int] | None = None  # that number, and that of built roots, when all had begun
        self._fresh: list[Any] = []
        self.aside = Inside()
        self.trained = False
        self.on_begun: Callable[[list[Any]], None] = lambda variables: None
        patch(keras.Model, "__new__", self._create)
        patch(ResourceVariable, "__init__", self._create_variable)
        patch(*MAKES_VARIABLES, self.aside.call)

    # What the script makes and sets.

    def _create(self, original: Any, cls: type, *args: Any, **options: Any) -> Any:
        model = original(cls, *args, **options)
        self._add(model)
        return model

    def _create_variable(self, original: Any, variable: Any, *args: Any, **options: Any) -> None:
        original(variable, *args, **options)
        self._made += 1
        given = options.get("initial_value", args[0] if args else None)
        if self.aside or not tf.executing_eagerly() or tf.distribute.has_strategy():
            return
        if not isinstance(given, int | float | list | tuple):  # else it is a constant, such as a weight of a loss
            self._begin_alone(variable)

    def begin_made_in_graph(self, variables: Sequence[Any]) -> None:
        """Begins the script's own variables that a function of TensorFlow's has made, before it first runs."""
        self._made += len(variables)
        known = {id(container(weight)) for root in self.roots() for weight in weights_of(root)}
        for variable in variables:
            if id(container(variable)) not in known:
                self._begin_alone(variable)

    def _begin_alone(self, variable: Any) -> None:
        fixed = variable.shape.rank and variable.shape.is_fully_defined()
        if variable.trainable and variable.dtype.is_floating and fixed:
            self.look()  # a model's weights come before what is made for them, such as sums of its gradients
            self._add(variable)
            self.begin([variable])
            self.restart([variable])

    def assigned(self, variable: Any) -> None:
        """Says that the script sets a variable."""
        mark = mark_of(variable)
        mark.assigned = True
        if not mark.used:
            self._fresh.append(variable)

    def add(self, layer: Any) -> None:
        """Adds a layer that is called outside of all models."""
        if self.place(layer) == len(self._roots):
            self._add(layer)

    def _add(self, root: Any) -> None:
        self._roots.append(weakref.ref(root))
        self._made += 1

    def roots(self) -> list[Any]:
        """The built models and layers, in their order; a model that is just being made has no ``built`` yet."""
        return [each for each in self._there() if not isinstance(each, tf.Variable) and getattr(each, "built", False)]

    def smallest_first(self) -> list[Any]:
        """The same, by their number of weights."""
        return sorted(self.roots(), key=lambda root: len(weights_of(root)))

    def variables(self) -> list[Any]:
        """The script's own variables that exist, in their order."""
        return [root for root in self._there() if isinstance(root, tf.Variable)]

    def _there(self) -> list[Any]:
        roots: list[Any] = [reference() for reference in self._roots]
        return [root for root in roots if root is not None]

    def place(self, root: Any) -> int:
        """The number of a model or layer in the order of creation; one that is not known comes last."""
        return next((i for i, reference in enumerate(self._roots) if reference() is root), len(self._roots))

    # Beginning.

    def look(self) -> None:
        """Begins everything that was built since the last look.

        Values that come after a model was given none are for a later look: they may be that model's. Most steps find
        nothing new, and asking every model for its weights takes a hundredth of a step.
        """
        roots = self.roots()
        if self._over == (self._made, len(roots)):
            return
        self._missed = False
        for root in roots:
            if weights := weights_of(root):
                self.begin(weights, root)
        over = all(mark_of(weight).begun for root in roots for weight in weights_of(root))
        self._over = (self._made, len(roots)) if over else None

    def refresh(self) -> None:
        """Keeps the values of what the script has set since, before a step changes its state."""
        if not self._fresh:
            return
        fresh = {id(variable) for variable in self._fresh}
        self._fresh.clear()
        for root in self._there():
            weights = weights_of(root)
            if any(id(container(weight)) in fresh for weight in weights):
                for weight in weights:
                    mark_of(weight).value = value_of(weight)

    def begin(self, variables: Sequence[Any], root: Any = None, late: bool = False) -> None:
        """Gives variables their initial values, if they have none yet.

        Args:
            variables: the variables; those that have begun are left out.
            root: the model or layer that they belong to, if there is one.
            late: whether they are about to be trained, so that their values are waited for while the first script runs.
        """
        new = [variable for variable in variables if not mark_of(variable).begun]
        if not new:
            return
        marks = [mark_of(variable) for variable in new]
        try:
            for variable, mark in zip(new, marks, strict=True):
                mark.value = value_of(variable) if mark.value is None else mark.value
        except tf.errors.FailedPreconditionError:  # made in a graph that has not run yet
            if self._own or self._provides:
                return
        went_on = self.trained and any(mark.assigned for mark in marks)
        trainable = [mark for variable, mark in zip(new, marks, strict=True) if variable.trainable]
        loaded = bool(trainable) and all(mark.assigned for mark in trainable)  # such as with load_weights
        if not (self._own or self._provides or went_on or loaded):
            found, sure = self._found(new, late)
            if not found:
                return
            self._give(new, found, root, alike=sure and not self._alone)
        for mark in marks:
            mark.begun = True
        if root is not None:
            self._seeds.append((weakref.ref(root), [value_of(seed) for seed in seeds_of(root)]))
        if self._provides and not went_on:
            self._publish(new, root)
        self.on_begun(new)

    def begin_late(self, variables: Sequence[Any], root: Any) -> None:
        """Gives variables that are about to be trained their initial values, if they have any values yet."""
        with suppress(tf.errors.FailedPreconditionError):
            self.begin(variables, root, late=True)
            self.restart(variables, root)

    def restart(self, variables: Sequence[Any], root: Any = None) -> None:
        """Gives variables the initial values of the first training, if this script is compared with itself.

        Those that were used before, and those that the script has set itself, are left as they are.
        """
        marks = [mark_of(variable) for variable in variables]
        if self._alone and self.trained and not self._own:
            new = [
                variable
                for variable, mark in zip(variables, marks, strict=True)
                if not mark.used and not mark.assigned and not mark.alike
            ]
            found, sure = matching(self._first, list(map(described, new)), last=True) if new else ([], True)
            if found:
                self._give(new, found, root, alike=sure)
                self.on_begun(new)

    def use(self, variables: Sequence[Any], root: Any, *, begin: bool) -> None:
        """Says that a gradient or an optimizer uses variables, which may have to begin before."""
        if begin and not all(mark_of(variable).used for variable in variables):
            self.begin_late(variables, root)
        for variable in variables:
            mark = mark_of(variable)
            if not mark.used:
                with suppress(tf.errors.FailedPreconditionError):  # made in a graph that has not run yet
                    mark.used_first = hash(value_of(variable).tobytes())
            mark.used = True

    def keep(self, variables: Sequence[Any], values: Sequence[np.ndarray], root: Any) -> None:
        """Keeps what a training begins with for the second training of the same script."""
        if self._alone and not any(mark_of(variable).alike for variable in variables):
            seeds = next((seeds for reference, seeds in self._seeds if root is not None and reference() is root), [])
            self._first.append(Group(list(map(described, variables)), list(values), seeds))

    def step_made(self) -> None:
        self.trained = True
        if self._provides:
            (self._folder / ALL_BEGUN).touch()

    def alike(self, variables: Sequence[Any]) -> bool:
        """Whether variables could be made alike, or were set by the script, or need not be alike."""
        marks = [mark_of(variable) for variable in variables]
        return self._own or (self._provides and not self._alone) or all(mark.alike or mark.assigned for mark in marks)

    def _give(self, variables: Sequence[Any], found: Sequence[tuple[Group, int]], root: Any, alike: bool) -> None:
        with self.aside:
            for variable, (group, i) in zip(variables, found, strict=True):
                set_value(variable, group.values[i])
                group.used[i] = mark = mark_of(variable)
                mark.value, mark.alike = value_of(variable), alike
            group, seeds = found[0][0], seeds_of(root) if root is not None else []
            whole = len(group.values) == len(found) and all(each is group for each, _ in found)
            if whole and [tuple(seed.shape) for seed in seeds] == [value.shape for value in group.seeds]:
                for seed, value in zip(seeds, group.seeds, strict=True):
                    drawn = np.maximum(value[-1:], value_of(seed)[-1:])  # a model may have been called before it began
                    set_value(seed, np.concatenate([value[:-1], drawn]))

    def _publish(self, variables: Sequence[Any], root: Any) -> None:
        values = [value_of(variable) for variable in variables]
        seeds = [value_of(seed) for seed in seeds_of(root)] if root is not None else []
        path = self._folder / f"{len(list(self._folder.glob('*.npz')))}.npz"
        names = np.array([described(variable).name for variable in variables], dtype=str)
        replace_file(path, npz([names, *values, *seeds]))

    def _found(self, variables: Sequence[Any], late: bool) -> tuple[list[tuple[Group, int]], bool]:
        """The values of the first script for variables; it is waited for until it has made a step, or has ended."""
        wanted = tuple(map(described, variables))
        while True:
            ended = (self._folder / ENDED).exists()
            over = ended or ((self._folder / ALL_BEGUN).exists() and not late)
            if late or not self._missed:
                self._read_new()
            groups = list(self._read.values())
            if over and not late and self._vain.get(wanted) == len(groups):
                self._missed = True
                return [], True
            found, sure = matching(groups, wanted, over)
            if over and late and not found:
                # A script may have made a model for a first try, which it does not train: its values are free again.
                for group in groups:
                    group.used = {i: mark for i, mark in group.used.items() if mark.used}
                found, sure = matching(groups, wanted, over)
            if found:
                return found, sure
            if over:
                self._vain[wanted] = len(groups)
                self._missed = not late
                return [], True
            if not (awaited := self._folder / AWAITED).exists():
                awaited.touch()
            time.sleep(0.05)

    def _read_new(self) -> None:
        """Reads what the first script has published since."""
        for path in sorted(self._folder.glob("*.npz"), key=lambda path: int(path.stem)):
            if path.name not in self._read:
                names, *values = read_arrays(path, path.read_bytes())
                pairs = zip(names.tolist(), values, strict=False)
                variables = [Variable(name, value.shape, value.dtype.name) for name, value in pairs]
                self._read[path.name] = Group(variables, values[: len(names)], values[len(names) :])


class Builds:
    """Makes the weights of models before they are called for the first time, so that they can be set.

    Attributes:
        under_way: the building of a model, which calls it.
    """

    def __init__(self) -> None:
        self.under_way = Inside()
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()

    def is_due(self, model: Any) -> bool:
        """Whether a model has no weights yet; a subclassed one may have been built without its layers."""
        return not (model.built and weights_of(model)) and model not in self._built

    def build_from(self, model: Any, x: Any) -> None:
        """Makes the weights of a model that ``fit`` would make later, from the data that it is given."""
        if (model.built and weights_of(model)) or x is None:
            return
        spec = x.element_spec if isinstance(x, tf.data.Dataset) else None
        if isinstance(spec, tuple):
            spec = spec[0]
        example = spec if spec is not None else tf.nest.map_structure(lambda each: each[:1], x)
        with model.distribute_strategy.scope():
            self.build(model, (example,), {"training": False})

    def build(self, model: Any, args: Any, options: Any) -> None:
        """Makes the weights of a model that has none, without computing anything."""

        def symbolic(value: Any) -> Any:
            if not hasattr(value, "shape"):
                return value
            return KerasTensor(value.shape, str(tf.as_dtype(value.dtype).name))

        self._built.add(model)
        with self.under_way, suppress(Exception):  # the call itself says what is wrong
            args, options = tf.nest.map_structure(symbolic, (args, options))
            compute_output_spec(model, *args, **options)
