"""What is used of the insides of Keras 3 on TensorFlow, which any version may move; nothing else imports them.

Keras 3.3 to 3.15 have all of it.
"""

from __future__ import annotations

import keras

from compare.errors import RequestError

__all__ = ["BaseOptimizer", "KerasVariable", "LossFunctionWrapper", "any_symbolic_tensors", "compute_output_spec"]

try:
    from keras.src.backend import compute_output_spec
    from keras.src.backend.common.keras_tensor import any_symbolic_tensors
    from keras.src.backend.tensorflow.core import Variable as KerasVariable
    from keras.src.losses.losses import LossFunctionWrapper
    from keras.src.optimizers.base_optimizer import BaseOptimizer
except ImportError as error:
    raise RequestError(f"Keras {keras.__version__}: {error}; this works with Keras 3.3 to 3.15") from None
