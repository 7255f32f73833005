"""Where a run comes from, everything needed to repeat it: the request, the code, the machine, and what is trained."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compare import __version__
from compare.app.processes import cores, division
from compare.engine.preflight import Facts, Problem, problems
from compare.engine.tf_config import this_task
from compare.modes import Study, Trained
from compare.naming import is_file, listed, source_and_attribute
from compare.options import as_json
from compare.records.run_json import now
from compare.request import Request
from compare.user_errors import imported_by

if TYPE_CHECKING:
    from compare.app.ready import Session


OF_KERNELS = (
    "TF_XLA_FLAGS", "XLA_FLAGS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)  # fmt: skip
"""Variables of the environment that choose kernels, which round otherwise; oneDNN reads its older names too, DNNL's."""


def provenance(options: Request, trainers: Sequence[str]) -> dict[str, Any]:
    """Values for ``RunJson`` that are known before anything is loaded."""
    packages = {package: version(package) for package in ("tensorflow", "keras", "numpy")}
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "options": as_json(options),
        "trainers": list(trainers),
        "versions": {"python": platform.python_version(), **packages, "fit-vs-loop": __version__},
        "machine": {"platform": platform.platform(), "processors": os.cpu_count()},
        "started": now(),
        "code": code(options),
    }


def code(options: Request) -> dict[str, str]:
    """SHA-256 digests of the code that runs: this package and each file that the options name."""
    package = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        package.update(path.read_bytes())
    return {"compare": package.hexdigest(), **code_of_user(options)}


def code_of_user(options: Request) -> dict[str, str]:
    """SHA-256 digests of each file that the options name."""
    digests = {}
    for wanted in options.named:
        located = options.located(wanted)
        source, attribute = source_and_attribute(located)
        if not is_file(located):  # the file of a package.module:ATTR, if that module is imported
            source = (getattr(sys.modules.get(source), "__file__", None) if attribute else None) or ""
        if os.path.isfile(source):  # a pipe would be waited for
            with suppress(OSError):  # loading the file reports the error
                digests[wanted] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return digests


def imported(options: Request) -> dict[str, str]:
    """SHA-256 digests of the files that those of the options have imported from their own folders, by path."""
    located = map(options.located, options.named)
    return imported_by(Path(source_and_attribute(each)[0]) for each in located if is_file(each))


def before_training(session: Session) -> dict[str, Any]:
    """Values for ``RunJson`` that are known once the data are loaded and the strategy is made."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    from compare.engine import strategies  # noqa: PLC0415 (lazy)
    from compare.engine.insides_tensorflow import uses_onednn  # noqa: PLC0415 (lazy)
    from compare.engine.keras_generation import keras_version  # noqa: PLC0415 (lazy)

    options, task, trainers = session.options, session.task, list(session.trainers)
    strategy, experiment = task.strategy, task.experiment
    replicas = strategy.num_replicas_in_sync
    member = this_task()
    title = f"{experiment.name}: {listed(trainers)} under {options.strategy}, "
    if options.spec.parameter_servers and member is not None:
        title += f"{member.workers} worker{'s' * (member.workers > 1)}"
    else:
        title += f"{replicas} replica{'s' * (replicas > 1)}"
    title += ", Keras 2" * (options.keras == 2) + f", {len(options.all_seeds)} seeds" * (len(options.all_seeds) > 1)
    known = provenance(options, trainers)
    return known | {
        "title": title,
        "notes": list(experiment.notes),
        "strategy": {
            "name": options.strategy,
            "class": type(strategy).__name__,
            "replicas": replicas,
            "workers": member.workers if member else 1,
            "global_batch_size": task.global_batch_size,
            "devices": strategies.devices() if member else strategies.devices()[:replicas],
        },
        "data": {
            "source": experiment.data_source,
            "training_examples": task.train.count,
            "validation_examples": task.validation.count,
            "training_sha256": task.train.sha256,
            "validation_sha256": task.validation.sha256,
        },
        "versions": known["versions"] | {"keras": keras_version(), "oneDNN": "on" if uses_onednn() else "off"},
        "arithmetic": arithmetic(),
        "imported": imported(options),
        "threads": {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            **_threads_of_sums(options, len(trainers)),
        },
    }


def arithmetic() -> dict[str, str]:
    """What rounding depends on beside versions and threads: Keras's ``floatx``, and variables; "" if one is not set."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    return {"floatx": tf.keras.backend.floatx()} | {name: os.environ.get(name, "") for name in OF_KERNELS}


def _threads_of_sums(options: Trained, trainers: int) -> dict[str, int]:
    """The number of threads that share an operation's work, on which sums depend, by name; none if a GPU does it."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    if tf.config.list_physical_devices("GPU"):
        return {}
    if isinstance(options, Study):
        return {"used": division(options, trainers * len(options.all_seeds))[1]}
    asked = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    given = tf.config.threading.get_intra_op_parallelism_threads() or (int(asked) if asked.isdigit() else 0)
    return {"used": given or cores()}


def preflight_problems(session: Session) -> list[Problem]:
    """What the checks before training find; builds a model and discards it."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    from compare.engine.building import built  # noqa: PLC0415 (lazy)
    from compare.engine.insides_tensorflow import leaves_onednn_off  # noqa: PLC0415 (lazy)

    options, task, member = session.options, session.task, this_task()
    layers = [type(layer).__name__ for layer in built(task.experiment, "build_model")._flatten_layers()]
    facts = Facts(
        strategy=options.strategy,
        keras=options.keras,
        trainers=list(session.trainers),
        replicas=task.strategy.num_replicas_in_sync,
        workers=member.workers if member else 1,
        examples=(task.train.count, task.validation.count),
        global_batch_size=task.global_batch_size,
        batch_norm=any("BatchNormalization" in name for name in layers),
        convolution=any("Conv" in name for name in layers),
        without_onednn=leaves_onednn_off(),
        dropout=any("Dropout" in name for name in layers),
        steps_per_execution=options.steps_per_execution,
        jit_compile=options.jit,
        text=any(spec.dtype == tf.string for spec in tf.nest.flatten(task.train.spec)),
    )
    return problems(facts)


def digest(weights: Sequence[np.ndarray]) -> str:
    """SHA-256 of the dtypes, shapes and bytes of weights."""
    checksum = hashlib.sha256()
    for weight in weights:
        checksum.update(f"{weight.dtype} {weight.shape}".encode())
        checksum.update(np.ascontiguousarray(weight).data)
    return checksum.hexdigest()
