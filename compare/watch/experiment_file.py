"""Writes an ``Experiment`` file from what a script gives to ``compile`` and ``fit``, for ``--write-experiment``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np

from compare.engine.insides_keras import keras
from compare.naming import printable

TEMPLATE = '''"""An experiment made from {script}. Complete the lines marked TODO, then run:

    python scripts/compare.py --experiment {name}
"""

from pathlib import Path

import keras
import numpy as np

import compare

HERE = Path(__file__).resolve().parent
{definitions}

experiment = compare.Experiment(
    name={stem!r},
    load_data=load_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_metrics=build_metrics,
    class_weight={class_weight!r},
)
'''
DATA = """

def load_data():
    with np.load(HERE / {file!r}) as data:
        return ({train}), ({validation})
"""
OBJECT = """

{constant} = {configuration}


def {function}():
    return keras.saving.deserialize_keras_object({constant})
"""
MISSING = """

def {function}():
    # TODO: return {what}.
    raise NotImplementedError("{function}")
"""
METRICS = """

METRICS = {configuration}


def build_metrics():
    return [keras.saving.deserialize_keras_object(each) for each in METRICS]
"""


def write_experiment(path: Path, script: str, model: Any, fit: Mapping[str, Any]) -> None:
    """Writes the file, and the arrays given to fit beside it, from the arguments of ``fit`` by name."""
    names = _in_string(Path(script).name)
    metrics = getattr(getattr(model, "_compile_metrics", None), "metrics", None) or []
    loss = model.loss
    if isinstance(loss, str):  # that of the class which computes the function, since an experiment has an object
        function = keras.losses.get(loss).__name__.replace("_", "")
        loss = next((each() for name, each in vars(keras.losses).items() if name.lower() == function), loss)
    definitions = [
        _data(path, fit),
        _object("build_model", "the model", model, names),
        _object("build_loss", "the loss", loss, names),
        _object("build_optimizer", "the optimizer", model.optimizer, names),
        METRICS.format(configuration=pformat([each for each in map(_plain, metrics) if each is not None], width=110)),
    ]
    text = TEMPLATE.format(
        script=names, name=_in_string(shlex.quote(path.name)), stem=path.stem, definitions="".join(definitions),
        class_weight=fit.get("class_weight"),
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")


def _in_string(name: str) -> str:
    """A file's name within a docstring or a comment of the code, which it cannot end."""
    return json.dumps(printable(name), ensure_ascii=False)[1:-1]


def _data(path: Path, fit: Mapping[str, Any]) -> str:
    validation = fit.get("validation_data")
    arrays = {"x": fit.get("x"), "y": fit.get("y"), "w": fit.get("sample_weight")}
    if isinstance(validation, tuple | list):
        arrays |= dict(zip(("x_val", "y_val", "w_val"), validation, strict=False))
    arrays = {name: array for name, array in arrays.items() if array is not None}
    plain = all(
        (isinstance(array, np.ndarray) or hasattr(array, "numpy")) and not np.asarray(array).dtype.hasobject
        for array in arrays.values()
    )
    if not plain or not {"x", "y", "x_val", "y_val"} <= arrays.keys():
        kind = type(fit.get("x")).__name__ + ("" if validation is not None else ", and no validation")
        what = f"((x_train, y_train), (x_val, y_val)) as NumPy arrays; the script gives fit a {kind}"
        return MISSING.format(function="load_data", what=what)
    file = path.with_suffix(".npz")
    plain_arrays: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    np.savez(file, **plain_arrays)

    def part(names: tuple[str, ...]) -> str:
        return ", ".join(f'data["{name}"]' for name in names if name in arrays)

    return DATA.format(file=file.name, train=part(("x", "y", "w")), validation=part(("x_val", "y_val", "w_val")))


def _object(function: str, what: str, thing: Any, script: str) -> str:
    configuration = _plain(thing)
    if configuration is None:
        return MISSING.format(function=function, what=f"{what} as {script} makes it")
    constant = function.removeprefix("build_").upper()
    return OBJECT.format(constant=constant, configuration=pformat(configuration, width=110), function=function)


def _plain(thing: Any) -> Any:
    """A Keras object's configuration, if it can be made again from that alone; else None."""
    try:
        configuration = json.loads(json.dumps(keras.saving.serialize_keras_object(thing)))
        keras.saving.deserialize_keras_object(configuration)
    except Exception:
        return None
    return configuration
