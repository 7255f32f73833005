"""What is used of the insides of TensorFlow, which any version may move; nothing else imports them.

TensorFlow 2.15 to 2.21 have all of it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from compare.errors import RequestError

try:
    from tensorflow.python.data.ops import multi_device_iterator_ops
    from tensorflow.python.data.ops.scan_op import _ScanDataset as ScanDataset
    from tensorflow.python.eager.context import context
    from tensorflow.python.eager.execute import execute
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    from tensorflow.python.framework.config import is_op_determinism_enabled
    from tensorflow.python.framework.ops import gradient_registry
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as in_xla
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable, UninitializedVariable
    from tensorflow.python.util._pywrap_util_port import IsMklEnabled as uses_onednn
    from tensorflow.python.util.deprecation import silence as without_deprecations
    from tensorflow.python.util.tf_decorator import unwrap
except ImportError as error:
    raise RequestError(f"TensorFlow {tf.__version__}: {error}; this works with TensorFlow 2.15 to 2.21") from None

F = TypeVar("F", bound=Callable[..., Any])


def leaves_onednn_off() -> bool:
    """Whether TensorFlow itself leaves oneDNN off, on a processor that can have it, and no GPU takes the work."""
    can = sys.platform in ("linux", "win32") and platform.machine().lower() in ("x86_64", "amd64")
    asked = "TF_ENABLE_ONEDNN_OPTS" in os.environ
    return can and not (asked or uses_onednn() or tf.config.list_physical_devices("GPU"))


def called_as_it_is(function: F) -> F:
    """Has AutoGraph call a function without converting it, which takes 20 to 200 ms and would not change its graph.

    What the function calls is not converted either, as what a user has written may have to be.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function


def converted(function: F) -> F:
    """A function that AutoGraph converts wherever it is called, also where a data set makes one."""
    autograph = tf.__internal__.autograph
    return cast(F, autograph.tf_convert(function, autograph.control_status_ctx()))


def data_set_of(source: Any) -> Any:
    """The data set that an iterator takes elements from, or that a strategy has distributed, as on the first worker."""
    for name in ("_iterators", "_cloned_datasets", "_datasets"):
        if parts := getattr(source, name, ()):
            return data_set_of(parts[0])
    return getattr(source, "_dataset", source)


def own_graph(function: Any, **options: Any) -> Any:
    """A ``tf.function`` of this toolkit's; TensorFlow's warning that many are traced is for those of users."""
    graph = tf.function(function, **options)
    graph._omit_frequent_tracing_warning = True
    return graph


def reductions() -> set[str]:
    """The names under which TensorFlow keeps the gradients of ``all_reduce``, each with the graph that it is in.

    Every optimizer that is traced adds one, and nothing removes it: the graph of each training stays for ever.
    """
    return {name for name in gradient_registry.list() if "all_reduce" in _gradient_name(name)}


def forget_reductions(names: set[str]) -> None:
    """Lets go of graphs that no training uses any more, by the names of ``reductions``."""
    for name in names:
        gradient_registry._registry.pop(name, None)


def _gradient_name(name: str) -> str:
    """What the function of a custom gradient is called where it was written; empty if it is none."""
    if not name.startswith("CustomGradient-"):
        return ""
    inner = _closed_over(gradient_registry.lookup(name), "tape_grad_fn")
    return getattr(_closed_over(inner, "grad_fn"), "__qualname__", "")


def _closed_over(function: Any, name: str) -> Any:
    """The value of a variable of the function around; None if there is none."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)) if function else {}
    return cells[name].cell_contents if name in cells else None
