"""From a name to a ``tf.distribute`` strategy, and the devices that it needs."""

from __future__ import annotations

import itertools
from importlib.metadata import version
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from compare import signals
from compare.engine.tf_config import meet, this_task
from compare.errors import RequestError


def configure(replicas: int | None = None, *, deterministic: bool = True) -> None:
    """Set up this process for runs with up to ``replicas`` replicas; call it before using TensorFlow.

    Without a GPU the replicas are logical CPU devices, which TensorFlow makes only before its first
    operation. Op determinism is switched on (``tf.config.experimental.enable_op_determinism``): from
    here on random operations need a seed. Threads are left as they are, and recorded with each run.

    Args:
        replicas: how many devices to provide; None leaves the devices as they are.
        deterministic: whether to switch op determinism on. XLA cannot have it: Keras's fit then leaves XLA out
            without a word, and there is no max pooling.

    Raises:
        RequestError: when there are fewer devices and no more can be made, or when op determinism is to be off
            and was switched on before.
    """
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    elif is_op_determinism_enabled():
        raise RequestError(
            "--jit: this process has switched op determinism on, which XLA cannot have, and there is no way back: "
            "compile with XLA in a process of its own"
        )
    if replicas is None or len(devices()) >= replicas:
        return
    if tf.config.list_physical_devices("GPU"):
        raise RequestError(f"--replicas {replicas}: this machine has {len(devices())} GPUs; ask for at most that many")
    try:
        # One entry per logical device; they share the processor's threads.
        cpu, *_ = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    except RuntimeError:
        raise RequestError(
            f"{replicas} replicas were asked for, and TensorFlow, already in use in this process, has "
            f"{len(devices())} device(s): call compare.configure(replicas={replicas}) before anything else"
        ) from None


def keras_version() -> str:
    """The version of what ``tf.keras`` is in this process: Keras 3, or tf-keras, which is Keras 2."""
    return str(getattr(tf.keras, "__version__", None) or version("tf-keras"))


def devices() -> list[str]:
    """The names of the devices that replicas can run on: all GPUs, else all logical CPUs.

    Asking TensorFlow for its logical devices would start its runtime, so configured ones are counted.
    """
    for kind in ("GPU", "CPU"):
        if found := tf.config.list_physical_devices(kind):
            logical = [tf.config.get_logical_device_configuration(device) or [None] for device in found]
            return [f"{kind}:{i}" for i in range(sum(len(each) for each in logical))]
    raise RequestError("TensorFlow sees no CPU and no GPU here")


def make(name: str, replicas: int | None = None) -> tf.distribute.Strategy:
    """Make a strategy; those of several processes before any other TensorFlow operation.

    Args:
        name: one of ``compare.options.STRATEGIES``.
        replicas: how many; None for all visible devices (one, where the strategy has one only).

    Raises:
        RequestError: when the devices do not suffice, or there is no TPU.
    """
    available = devices()
    if replicas is not None and replicas > len(available):
        raise RequestError(f"--replicas {replicas}: there are {len(available)} devices; ask for at most that many")
    chosen = available[: replicas or len(available)]
    makers: dict[str, Any] = {
        "default": tf.distribute.get_strategy,
        "one-device": lambda: tf.distribute.OneDeviceStrategy(chosen[0]),
        "mirrored": lambda: _mirrored(chosen),
        "central-storage": lambda: tf.distribute.experimental.CentralStorageStrategy(compute_devices=chosen),
        "multi-worker": _multi_worker,
        "parameter-server": _parameter_server,
        "tpu": _tpu,
    }
    return makers[name]()


_collective_key_bases = itertools.count(100_000, 100_000)


def _mirrored(chosen: list[str]) -> tf.distribute.Strategy:
    """A MirroredStrategy that can follow others in the same process.

    Strategies number their all-reduce groups from the same key, and TensorFlow remembers the size
    and shapes of each: a second strategy dies of "Shape mismatch in the collective instance". The
    way out is that of TensorFlow's own tests, ``distribute/strategy_combinations.py``.
    """
    own_keys = {"_collective_key_base": next(_collective_key_bases)}
    strategy = type("MirroredStrategy", (tf.distribute.MirroredStrategy,), own_keys)
    return strategy(chosen)


def _multi_worker() -> tf.distribute.Strategy:
    if this_task() is not None:
        meet()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    signals.catch_again()  # TensorFlow takes SIGTERM for itself
    return strategy


def _parameter_server() -> tf.distribute.Strategy:
    if this_task() is not None:
        meet()
    return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


def _tpu() -> tf.distribute.Strategy:
    """As TensorFlow's guide to TPUs has it; never run on one by the authors."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # TensorFlow raises ValueError, IndexError or NotFoundError for "there is none"
        reason = " ".join(str(error).split())
        raise RequestError(f"--strategy tpu: no TPU was found ({reason}); choose another strategy") from None


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> Any:
    """A data set of global batches as a strategy's replicas take them; with one replica on a CPU that is itself.

    Distributing would hand each batch from one CPU thread to another, and ending an epoch's iterator would take as
    long as the epoch now and then: the thread that tunes the hand-over is woken before ``CancellationManager`` has
    noted the end, and sleeps on for its whole period, of up to a minute (``Model::OptimizeLoop``, TensorFlow 2.21).
    """
    if isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy):
        device, *others = strategy.extended.worker_devices
        if not others and tf.DeviceSpec.from_string(device).device_type == "CPU":
            return dataset
    return strategy.experimental_distribute_dataset(dataset)


def serve() -> None:
    """Be a worker or parameter server of a ParameterServerStrategy, until the process is ended."""
    meet()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        start=True,
    )
    server.join()
