"""Creates ``tf.distribute`` strategies by name, with the devices they need."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import tensorflow as tf

from compare import signals
from compare.engine.insides_tensorflow import is_op_determinism_enabled, multi_device_iterator_ops
from compare.engine.tf_config import meet, this_task
from compare.errors import NoVerdictError, RequestError
from compare.patching import modules_with, patch, undone
from compare.strategy_specs import MOST_REPLICAS, SPECS


def enable_op_determinism() -> None:
    """Enables op determinism, but lets what trains read the clock, which TensorFlow refuses then."""

    def timestamp(name: str | None = None) -> tf.Tensor:
        now = tf.numpy_function(lambda: np.float64(time.time()), [], tf.float64, name=name)  # a float would be float32
        return tf.ensure_shape(now, [])

    tf.config.experimental.enable_op_determinism()
    for module in modules_with("timestamp", "tensorflow"):
        vars(module)["timestamp"] = timestamp


def configure(replicas: int | None = None, *, deterministic: bool = True) -> None:
    """Configures this process for runs with up to ``replicas`` replicas; call it before using TensorFlow.

    Without a GPU, replicas run on logical CPU devices, which TensorFlow can create only before its first
    operation. Op determinism is enabled (``tf.config.experimental.enable_op_determinism``): afterwards random
    operations need a seed. Thread settings are not changed; they are recorded with each run.

    Args:
        replicas: number of devices to provide; None leaves the devices unchanged.
        deterministic: whether to enable op determinism. It is incompatible with XLA: under op determinism
            Keras's fit silently skips XLA, and max pooling is not available.

    Raises:
        RequestError: if there are fewer devices and no more can be created, or if ``deterministic`` is False and
            op determinism is already enabled.
    """
    if not isinstance(deterministic, bool):
        raise RequestError(f"configure(deterministic={deterministic!r}): give True or False")
    if deterministic:
        enable_op_determinism()
    elif is_op_determinism_enabled():
        raise RequestError(
            "--jit: op determinism is already enabled in this process; it is incompatible with XLA and cannot be "
            "disabled again: use a separate process for --jit"
        )
    if replicas is not None and (isinstance(replicas, bool) or not isinstance(replicas, Integral) or replicas < 1):
        raise RequestError(f"configure(replicas={replicas!r}): give a whole number, at least 1, or None")
    if replicas is None or len(devices()) >= replicas:
        return
    if replicas > MOST_REPLICAS:
        raise RequestError(f"--replicas {replicas}: at most {MOST_REPLICAS} logical devices are made")
    if tf.config.list_physical_devices("GPU"):
        raise RequestError(f"--replicas {replicas}: this machine has {len(devices())} GPUs; use at most that many")
    try:
        # One entry per logical device; all of them share the CPU's threads.
        cpu, *_ = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    except RuntimeError:
        raise RequestError(
            f"--replicas {replicas}: TensorFlow is already in use in this process, with {len(devices())} device(s); "
            f"call compare.configure(replicas={replicas}) before any other use of TensorFlow"
        ) from None


def devices() -> list[str]:
    """Returns the names of the devices that replicas can run on: all GPUs, or else all logical CPUs.

    ``tf.config.list_logical_devices`` would initialize the runtime, so the configured devices are counted instead.
    """
    for kind in ("GPU", "CPU"):
        if found := tf.config.list_physical_devices(kind):
            logical = [tf.config.get_logical_device_configuration(device) or [None] for device in found]
            return [f"{kind}:{i}" for i in range(sum(len(each) for each in logical))]
    raise RequestError("TensorFlow finds no CPU and no GPU on this machine; check the TensorFlow installation")


def make(name: str, replicas: int | None = None) -> tf.distribute.Strategy:
    """Creates a strategy. A strategy of several processes must be created before any other TensorFlow operation.

    Args:
        name: one of ``compare.strategy_specs.SPECS``.
        replicas: number of replicas; None for all visible devices (for one, if the strategy has a single replica).

    Raises:
        RequestError: if there are too few devices, or no TPU.
    """
    available = devices()
    if replicas is not None and replicas > len(available):
        raise RequestError(f"--replicas {replicas}: this process has {len(available)} device(s); use at most that many")
    chosen = available[: replicas or len(available)]
    if SPECS[name].several_processes and this_task() is not None:
        meet()
    match name:
        case "default":
            return tf.distribute.get_strategy()
        case "one-device":
            return tf.distribute.OneDeviceStrategy(chosen[0])
        case "mirrored":
            return _mirrored(chosen)
        case "central-storage":
            return tf.distribute.experimental.CentralStorageStrategy(compute_devices=chosen)
        case "multi-worker":
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            signals.catch_again()  # TensorFlow replaces the SIGTERM handler
            return strategy
        case "parameter-server":
            return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    return _tpu()


_collective_key_bases = itertools.count(100_000, 100_000)


def _mirrored(chosen: list[str]) -> tf.distribute.Strategy:
    """Creates a MirroredStrategy that works even if the process has created others before.

    Every strategy numbers its all-reduce groups from the same key, and TensorFlow remembers the size and shapes
    of each group, so a second strategy fails with "Shape mismatch in the collective instance". A distinct key
    base for each strategy avoids this, as in TensorFlow's own tests (``distribute/strategy_combinations.py``).
    """
    own_keys = {"_collective_key_base": next(_collective_key_bases)}
    strategy = type("MirroredStrategy", (tf.distribute.MirroredStrategy,), own_keys)
    return strategy(chosen)


def _tpu() -> tf.distribute.Strategy:
    """Creates a TPUStrategy as TensorFlow's TPU guide does. The authors have not tested it on a TPU."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # without a TPU: ValueError, IndexError or NotFoundError
        reason = " ".join(str(error).split())
        raise RequestError(f"--strategy tpu: no TPU was found ({reason}); choose another strategy") from None


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> Any:
    """Distributes a dataset of global batches over a strategy's replicas.

    With a single replica on a CPU the dataset is returned unchanged: distributing it would pass each batch from one
    CPU thread to another.
    """
    return dataset if _on_one_cpu(strategy) else strategy.experimental_distribute_dataset(dataset)


def _on_one_cpu(strategy: tf.distribute.Strategy) -> bool:
    if not isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy):
        return False
    device, *others = strategy.extended.worker_devices
    return not others and tf.DeviceSpec.from_string(device).device_type == "CPU"


@contextmanager
def without_needless_distribution(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets ``fit``, too, take datasets as they are where ``distribute`` returns them unchanged.

    It gets the same batches in the same order. Keras would distribute to a single CPU as well, and trace several
    functions for every validation, which makes an epoch of a few seconds a tenth longer.
    """
    with undone():
        if _on_one_cpu(strategy):
            patch(strategy, "experimental_distribute_dataset", lambda original, dataset, options=None: dataset)
        yield


MADE = "_create_device_dataset"
"""TensorFlow's function that makes the dataset of each device's iterator."""


@contextmanager
def without_idle_waits() -> Iterator[None]:
    """Lets the iterators of distributed datasets that are made in this block end at once.

    Deleting an iterator sometimes takes as long as the epoch did, up to a minute: the autotuning thread is woken before
    ``CancellationManager`` has recorded the cancellation, and sleeps for another full period (``Model::OptimizeLoop``,
    TensorFlow 2.21). A dataset can turn autotuning off (``Options.autotune``), but not for the iterators that
    ``tf.distribute`` makes for each device, so they are made without it. No number depends on it.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    with undone():
        if hasattr(multi_device_iterator_ops, MADE):  # it may not in another TensorFlow
            patch(multi_device_iterator_ops, MADE, lambda make, *args: make(*args).with_options(options))
        yield


def serve() -> None:
    """Runs a worker or parameter server of a ParameterServerStrategy until the process is terminated."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    kind, index = resolver.task_type, resolver.task_id
    try:
        # First: the chief connects to what answers, and TensorFlow 2.16 aborts it if that was something else.
        server = tf.distribute.Server(resolver.cluster_spec(), job_name=kind, task_index=index, protocol="grpc")
    except tf.errors.UnknownError as error:
        raise NoVerdictError(f"{error.message} of {kind} {index} in TF_CONFIG: choose a free port") from None
    meet(serving=True)
    server.join()
