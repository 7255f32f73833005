"""What to write instead of what raised: for messages of TensorFlow and Keras that do not say so themselves.

Most of the table is about code for older versions. Each entry is for an error that TensorFlow 2.21 with Keras 3.15, or
with tf-keras, raises; Keras 2 still accepts some of this code, and there neither error nor advice appears.
"""

from __future__ import annotations

import re

OPTIMIZER = r"'(?:SGD|RMSprop|Ada\w+|Nadam|Ftrl|Lion|Lamb|Muon|\w*Optimizer)' object has no attribute "
"""The beginning of a message about an optimizer, for names that other objects may have as well."""


def _no(*names: str) -> str:
    """Returns the pattern of a message about a name that no longer exists, as an attribute or in an import."""
    return rf"(?:has no attribute|cannot import name) '(?:{'|'.join(names)})'"


REMEDIES = {
    "failed to map segment|[Cc]annot allocate memory|^MemoryError": (
        "there is too little memory: free some, or allow more (ulimit -v)"
    ),
    "Collective ops is aborted by": "another process of the cluster has ended: what it printed last says why",
    # Data.
    "Random ops require a seed": (
        "give shuffle a seed, such as shuffle(n, seed=epoch, reshuffle_each_iteration=False), and random images "
        "a seed for each example, as in tf.image.stateless_random_flip_left_right(image, seed=(epoch, i)); in a "
        "graph of TensorFlow 1, call tf.compat.v1.set_random_seed first"
    ),
    "Input dataset was expected to contain": "give every epoch as many examples as epoch 1, for example with take(n)",
    "Cannot batch tensors with different shapes|Cannot add tensor to the batch": (
        "give all examples the same shape, by padding or cropping"
    ),
    # Calls of a model, and of fit.
    "Only input tensors may be passed as positional arguments|got multiple values for argument 'training'": (
        "give what is no tensor by its name, as in model(x, training=True)"
    ),
    _no("fit_generator"): "write model.fit, which takes generators and datasets",
    _no("evaluate_generator", "predict_generator"): "write model.evaluate or model.predict, which take generators",
    _no("predict_classes"): "write np.argmax(model.predict(x), axis=-1)",
    _no("predict_proba"): "write model.predict(x)",
    "^ValueError: None values not supported": (
        "there is None where a tensor belongs; where it is fit, give labels: fit(x, y, validation_data=(x_val, y_val))"
    ),
    r"fit\(\) got an unexpected keyword argument '(?:workers|use_multiprocessing|max_queue_size)'": (
        "leave it out; a tf.keras.utils.PyDataset takes it"
    ),
    r"\.compile\(\) got an unexpected keyword argument '(?:optimizer|loss|metrics|weighted_metrics)'": (
        "an experiment's model is compiled as Keras's own are; compare one with its own compile, such as a GAN, as "
        "two scripts: fit-vs-loop scripts FIT.py LOOP.py"
    ),
    "unexpected keyword argument '(?:experimental_run_tf_function|reset_metrics)'": "leave it out",
    # Gradients and variables.
    r"Passed in object .* of type 'Variable', not tf\.Tensor": (
        "leave out tape.watch: a tape watches trainable variables by itself (tape.watch(variable.value) works, too)"
    ),
    "'Variable' object has no attribute 'read_value'": "write variable.value",
    "'ResourceVariable' object is not callable": "write variable.value, without parentheses",
    _no("experimental_ref"): "use id(variable) as a key",
    r"'Variable' object has no attribute 'ref'": "use id(variable) as a key",
    # Loss scaling and mixed precision.
    _no("get_scaled_loss"): (
        "write optimizer.scale_loss(loss), and apply_gradients unscales the gradients; with Keras 2, only a "
        "LossScaleOptimizer has get_scaled_loss"
    ),
    _no("get_unscaled_gradients"): (
        "leave it out: apply_gradients unscales the gradients; with Keras 2, only a LossScaleOptimizer has it"
    ),
    "mixed_precision.*experimental|'experimental'.*mixed_precision": (
        'write tf.keras.mixed_precision.set_global_policy("mixed_float16")'
    ),
    r"LossScaleOptimizer.*(?:arguments: `loss_scale`|argument 'loss_scale')": (
        "leave out loss_scale (dynamic scaling is the default)"
    ),
    # Optimizers.
    OPTIMIZER + "'lr'": "write optimizer.learning_rate (optimizer.lr = … would change nothing)",
    r"Argument\(s\) not recognized: \{'lr'": "write learning_rate=…",
    "^ValueError: decay is deprecated": (
        "give a schedule: learning_rate=tf.keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)"
    ),
    _no("_decayed_lr"): "write optimizer.learning_rate, which is the current one even with a schedule",
    _no("_get_hyper", "_set_hyper", "_hyper"): "write optimizer.learning_rate, optimizer.momentum and so on",
    "property 'iterations' of .* has no setter": "write optimizer.iterations.assign(n)",
    OPTIMIZER + "'get_weights'": "write [v.numpy() for v in optimizer.variables]",
    OPTIMIZER + "'weights'": "write optimizer.variables",
    OPTIMIZER + "'get_slot'": "look for it in optimizer.variables",
    OPTIMIZER + "'minimize'": (
        "compute gradients with a tf.GradientTape and write optimizer.apply_gradients(zip(gradients, variables))"
    ),
    OPTIMIZER + r"'(?:_?compute_gradients|get_gradients|get_updates)'": (
        "write tape.gradient(loss, variables) with a tf.GradientTape"
    ),
    OPTIMIZER + r"'(?:_create_all_weights|_create_slots)'": "write optimizer.build(variables)",
    r"apply_gradients\(\) got an unexpected keyword argument "
    "'(?:experimental_aggregate_gradients|skip_gradients_aggregation)'": (
        "leave it out and give each replica's own gradients: Keras 3 always sums them over the replicas"
    ),
    r"apply_gradients\(\) got an unexpected keyword argument '(?:name|global_step)'": "leave it out",
    r"optimizers\.legacy` is not supported": ("write tf.keras.optimizers.SGD and the like"),
    r"optimizers(?:' has no attribute '|\.)experimental'": "write tf.keras.optimizers.SGD and the like",
    # Losses and metrics.
    r"`reduction`.*Received: reduction=auto": 'leave reduction out, or write reduction="sum_over_batch_size"',
    r"losses.*'Reduction'|'Reduction'.*losses": 'write reduction="none", "sum" or "sum_over_batch_size"',
    _no("reset_states"): "write reset_state()",
    # Strategies and datasets.
    "You must feed a value for placeholder tensor 'cond/": (
        "with Keras 3, variables cannot be made inside strategy.run: in strategy.scope(), begin the model with "
        "keras.Input, and write optimizer.build(model.trainable_variables)"
    ),
    "^TypeError: .* indices must be integers.*, not MirroredVariable|^RuntimeError: Need to be inside .*scope": (
        "in strategy.scope() make the optimizer and write optimizer.build(model.trainable_variables); a loop without a "
        "strategy is compared with --strategy default"
    ),
    _no("experimental_run_v2"): "write strategy.run",
    _no("experimental_make_numpy_dataset"): "write tf.data.Dataset.from_tensor_slices",
    r"reduce\(\) missing 1 required positional argument: 'axis'": "write strategy.reduce(op, value, axis=None)",
    _no("make_one_shot_iterator", "make_initializable_iterator"): "write iter(dataset), and next(iterator)",
    "has no attribute 'get_next'": "write next(iterator), once for each batch",
    r"Dataset' object has no attribute 'output_(?:types|shapes)'": "write dataset.element_spec",
    r"utils(?:' has no attribute '|\.)experimental'|'DatasetCreator'": (
        "give fit the tf.data.Dataset itself, and a loop strategy.distribute_datasets_from_function(dataset_fn)"
    ),
    # Names that have moved.
    r"layers(?:' has no attribute '|\.)experimental'": "write tf.keras.layers.Rescaling and the like",
    _no("np_utils"): "write tf.keras.utils.to_categorical",
    _no("learning_phase", "set_learning_phase"): "write model(x, training=True) or training=False",
    r"unexpected keyword argument 'keep_dims'": "write keepdims",
    # TensorFlow 1.
    "module 'tensorflow' has no attribute '(?:Session|InteractiveSession|placeholder|global_variables_initializer)'": (
        "TensorFlow 2 has no sessions: call a function (a tf.function, if it is to be fast) with the values"
    ),
    _no("set_random_seed"): "write tf.random.set_seed",
    r"train' has no attribute '\w+Optimizer'": "write tf.keras.optimizers.Adam, SGD and the like",
    "module 'tensorflow' has no attribute '(?:log|random_normal|random_uniform|to_float|to_int32|get_variable|assign|"
    "assign_add|layers|contrib|app|flags|logging|enable_eager_execution|ConfigProto|GraphKeys|gfile)'": (
        "this is TensorFlow 1; https://www.tensorflow.org/guide/migrate lists today's names"
    ),
}
"""Patterns of "TYPE: MESSAGE" of an exception, and what to do about it; the first that is found counts."""


def remedy_for(text: str) -> str:
    """Returns what to do about an exception; empty if only its own message says it."""
    return next((advice for symptom, advice in REMEDIES.items() if re.search(symptom, text)), "")
