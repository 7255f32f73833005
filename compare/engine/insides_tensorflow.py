"""What is used of the insides of TensorFlow, which any version may move; nothing else imports them.

TensorFlow 2.15 to 2.21 have all of it.
"""

from __future__ import annotations

import tensorflow as tf

from compare.errors import RequestError

__all__ = [
    "Function",
    "ResourceVariable",
    "context",
    "execute",
    "in_xla",
    "is_op_determinism_enabled",
    "multi_device_iterator_ops",
    "uses_onednn",
]

try:
    from tensorflow.python.data.ops import multi_device_iterator_ops
    from tensorflow.python.eager.context import context
    from tensorflow.python.eager.execute import execute
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    from tensorflow.python.framework.config import is_op_determinism_enabled
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as in_xla
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable
    from tensorflow.python.util._pywrap_util_port import IsMklEnabled as uses_onednn
except ImportError as error:
    raise RequestError(f"TensorFlow {tf.__version__}: {error}; this works with TensorFlow 2.15 to 2.21") from None
