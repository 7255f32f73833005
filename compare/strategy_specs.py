"""The distribution strategies that a run can train under: one entry each; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compare.engine.preflight import Facts

CALL_FIT = ("fit", "train-step")
"""The built-in trainers that call Keras's ``fit``, by name."""


MOST_REPLICAS = 256
"""The largest number of replicas: more logical CPU devices take longer to create than anything takes to train."""


@dataclass(frozen=True)
class Limit:
    """Something that does not work under a strategy, measured with TensorFlow 2.21, Keras 3.15 and tf-keras 2.21.

    Attributes:
        message: what does not work, with TensorFlow's message; ``{workers}`` stands for their number.
        of_fit: whether it affects only the trainers that call Keras's ``fit``.
        only_warns: whether the run is possible all the same.
        metrics: whether it makes metrics wrong, whoever computes them.
    """

    id: str
    applies: Callable[[Facts], bool]
    message: str
    remedy: str
    of_fit: bool = False
    only_warns: bool = False
    metrics: bool = False


@dataclass(frozen=True)
class StrategySpec:
    """What the toolkit needs to know about a ``tf.distribute`` strategy.

    ``compare.engine.strategies.make`` creates it.

    Attributes:
        several_processes: whether each worker is a process of its own, with one replica or as many as it has GPUs.
        parameter_servers: whether other processes hold the variables, and a coordinator sends single steps to the
            workers, which do not wait for each other.
        in_one_process: of a strategy of several processes, the strategy that computes the same in one process.
        even_first_batch: whether Keras 3's fit fails if an epoch's first batch splits unevenly over the replicas.
    """

    name: str
    one_replica: bool = False
    several_processes: bool = False
    parameter_servers: bool = False
    in_one_process: str = ""
    even_first_batch: bool = False
    limits: tuple[Limit, ...] = ()

    @property
    def synchronous(self) -> bool:
        """Whether all replicas make each step together, so that runs can be compared step by step."""
        return not self.parameter_servers


def _keras_3_replicas(facts: Facts) -> bool:
    return facts.keras == 3 and facts.replicas > 1


CENTRAL_STORAGE = (
    Limit(
        "central-storage-state-keras-3",
        lambda facts: _keras_3_replicas(facts) and (facts.batch_norm or facts.dropout),
        "under Keras 3, a model with batch normalization or dropout does not run under CentralStorageStrategy with "
        "several replicas (You must specify an aggregation method to update a AggregatingVariable)",
        "use --strategy mirrored, or --keras 2",
    ),
    Limit(
        "central-storage-metrics-keras-3",
        _keras_3_replicas,
        "under Keras 3 and CentralStorageStrategy with several replicas, metrics are wrong for every trainer: each "
        "update doubles their accumulators",
        "use --strategy mirrored or --keras 2; the weights are correct",
        only_warns=True,
        metrics=True,
    ),
)
MULTI_WORKER = (
    Limit(
        "fit-multi-worker-keras-3",
        lambda facts: facts.keras == 3 and facts.workers > 1,
        "Keras 3's fit does not run under MultiWorkerMirroredStrategy with several workers "
        "(ValueError: Attempt to convert a value (PerReplica…) with an unsupported type)",
        "use --keras 2, or train with the custom loop, which works there",
        of_fit=True,
    ),
)
PARAMETER_SERVER = (
    Limit(
        "fit-parameter-server-keras-3",
        lambda facts: facts.keras == 3,
        "Keras 3's fit does not run under ParameterServerStrategy "
        "(ValueError: … pass this dataset to ClusterCoordinator.create_per_worker_dataset)",
        "use --keras 2, or train with the custom loop, which works there",
        of_fit=True,
    ),
    Limit(
        "parameter-server-asynchronous",
        lambda facts: facts.workers > 1,
        "{workers} workers update the parameters without waiting for each other, so no two runs are equal and weights "
        "cannot be compared directly",
        "use --workers 1 for an exact comparison, or --strategy multi-worker, which is synchronous",
        only_warns=True,
    ),
)

SPECS = {
    spec.name: spec
    for spec in (
        StrategySpec("default", one_replica=True),
        StrategySpec("one-device", one_replica=True),
        StrategySpec("mirrored", even_first_batch=True),
        StrategySpec("central-storage", even_first_batch=True, limits=CENTRAL_STORAGE),
        StrategySpec("multi-worker", several_processes=True, in_one_process="mirrored", limits=MULTI_WORKER),
        StrategySpec(
            "parameter-server",
            several_processes=True,
            parameter_servers=True,
            in_one_process="default",
            limits=PARAMETER_SERVER,
        ),
        StrategySpec("tpu"),
    )
}
"""All strategies, by name, in the order in which messages list them."""
CLUSTERS = tuple(spec.name for spec in SPECS.values() if spec.several_processes)
"""The names of the strategies of several processes."""
