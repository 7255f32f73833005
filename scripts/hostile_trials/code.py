"""Hostile user code: in an experiment or a trainer, at every place that is executed, and what may never come of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from scripts.hostile_trials.common import LOOP, SMALL, TASK, Place, Request, Result

PLACES = {
    "task.py imported": ("task.py", "import compare\n"),
    "load_data": ("task.py", "def load_data():\n"),
    "build_model": ("task.py", "def build_model():\n"),
    "build_loss": ("task.py", "def build_loss():\n"),
    "build_optimizer": ("task.py", "def build_optimizer():\n"),
    "build_metrics": ("task.py", "def build_metrics():\n"),
    "loop.py imported": ("loop.py", "import tensorflow as tf\n"),
    "class of the trainer": ("loop.py", '    name = "my-loop"\n'),
    "train begins": ("loop.py", "    def train(self, run):\n"),
    "after build": ("loop.py", "run.build()\n"),
    "traced step": ("loop.py", "        def step(x, y):\n"),
    "after a step": ("loop.py", "                run.end_step()\n"),
    "between epochs": ("loop.py", "        for epoch in run.epochs:\n"),
    "train ends": ("loop.py", "            run.end_epoch(epoch, {})\n"),
}
"""Where code is put: into which file, and after which text."""
INDENTS = {"train ends": 8, "after build": 8}
"""Columns where they are not those of the next line."""

RAISED = [
    "raise ValueError('no')", "raise Exception", "raise BaseException('no')", "raise SystemExit(0)",
    "raise SystemExit(1)", "raise SystemExit('text')", "import sys; sys.exit(2)", "raise MemoryError",
    "raise OSError(28, 'No space left')", "raise GeneratorExit", "raise StopIteration",
    "raise RecursionError('deep')", "raise AssertionError", "1 / 0", "raise ValueError('a\\nb\\rc')",
    "raise ValueError('\\x1b[31mred\\x07')", "raise ValueError('x' * 10**6)",
    "raise ExceptionGroup('several', [ValueError('one'), ValueError('two')])", "raise KeyError('\\udcff')",
    "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()", "import gone", "undefined",
    "raise type('E', (Exception,), {'__str__': lambda self: 3})()",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'no')", "f = lambda: f(); f()",
    "raise type('E' * 500, (Exception,), {})()", "raise NotImplementedError('[bold]{x}%s')",
    "import os; os._exit(0)", "import os; os._exit(1)", "import os; os.execv('/bin/true', ['true'])", "exit()",
    "quit(1)", "import compare; raise compare.RequestError('a\\nb')", "import warnings; raise UserWarning('w')",
    "import asyncio; raise asyncio.CancelledError", "raise BrokenPipeError",
    "raise FileNotFoundError(2, 'gone', 'x')", "raise EOFError", "raise TimeoutError",
    "import subprocess; subprocess.run(['false'], check=True)", "import posix; posix._exit(0)",
    "import compare; raise compare.RequestError('[bold]no[/bold]')",
    "from compare.errors import StorageError as E; raise E",
    "raise ValueError from RuntimeError('cause')", "raise type('Q', (BaseException,), {})",
    "assert False, {'a': object()}",
    "int('x')", "[][0]", "{}['gone']", "None.nothing", "raise TypeError(b'\\xff')", "open('/proc/nothing')",
    "raise ValueError(('a', 'tuple'))", "import threading; threading.current_thread().nothing()",
    "import warnings; warnings.simplefilter('error'); warnings.warn('w')", "raise StopAsyncIteration",
    "import json; json.loads('{')", "import numpy as np; np.zeros(3) @ np.zeros(4)", "exec('1 +')",
    "import tensorflow as tf; tf.zeros(3) + tf.zeros(4)", "import concurrent.futures as c; raise c.BrokenExecutor",
]  # fmt: skip
"""Code that ends what calls it; its line must be named."""

DONE = [
    "print('x' * 10**7)", "import sys; sys.stderr.write('x' * 10**6)", "import sys; sys.stdout.close()",
    "import sys; sys.stdout = None", "import sys; sys.stdout = sys.stderr = None", "import os; os.close(1)",
    "import os; os.chdir('/')", "import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x')",
    "import os; os.umask(0o777)", "import os; os.environ.clear()", "import sys; sys.setrecursionlimit(200)",
    "import sys; sys.argv.clear()", "import gc; gc.disable()",
    "import warnings; warnings.simplefilter('error')",
    "import threading; threading.Thread(target=lambda: 1 / 0).start()",
    "import threading, time; threading.Thread(target=time.sleep, args=[3]).start()",
    "import threading, time; [threading.Thread(target=time.sleep, args=[9], daemon=True).start() for _ in range(50)]",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "import sys; sys.excepthook = None",
    "import time; time.perf_counter = lambda: 0.0",
    "import random; random.seed(1)", "import numpy as np; np.random.seed(1); np.seterr(all='raise')",
    "import tensorflow as tf; tf.random.set_seed(7)",
    "import tensorflow as tf; tf.config.run_functions_eagerly(True)",
    "import tensorflow as tf; tf.keras.backend.clear_session()",
    "import tensorflow as tf; tf.keras.backend.set_floatx('float64')",
    "import tensorflow as tf; tf.keras.mixed_precision.set_global_policy('mixed_float16')",
    "import tensorflow as tf; tf.keras.utils.set_random_seed(7)", "import logging; logging.disable()",
    "import subprocess; subprocess.Popen(['sleep', '2'])", "import os; os.fork() or os._exit(0)",
    "import multiprocessing as m; m.set_start_method('spawn', force=True)",
    "import locale; locale.setlocale(0, 'C')",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))",
    "import decimal; decimal.getcontext().prec = 1", "import os; os.chdir('/proc')", "import os; os.nice(1)",
    "import os; os.environ['TF_CONFIG'] = '{'", "import os; os.environ['KERAS_BACKEND'] = 'jax'",
    "import sys; sys.stderr = None", "import sys; sys.stdout = sys.stderr = open('/dev/full', 'w')",
    "import sys; sys.settrace(lambda *_: None)", "import sys; sys.dont_write_bytecode = False",
    "import threading; [threading.Thread(target=lambda: __import__('time').sleep(2)).start() for _ in range(20)]",
    "import threading, time; threading.Thread(target=lambda: [time.sleep(1) for _ in iter(int, 1)]).start()",
    "import faulthandler; faulthandler.disable()", "import logging; logging.shutdown()",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)", "import time; time.sleep(0.2)",
    "import socket; socket.setdefaulttimeout(0.001)", "import asyncio; asyncio.run(asyncio.sleep(0.01))",
    "import sys; sys.setswitchinterval(1e-6)",
    "import numpy as np; np.set_printoptions(1)",
    "import sys; sys.argv[:] = ['x', '--help']", "import os; os.environ['HOME'] = '/gone'", "print('\\udcff\\x1b[2J')",
    "import multiprocessing as m; m.Process(target=print).start()",
    "import tensorflow as tf; tf.get_logger().setLevel('ERROR')", "import builtins; builtins.compare = 1",
]  # fmt: skip
"""Code that leaves something behind in the process and returns."""

DESTROYED = [
    "import builtins; builtins.print = None", "import json; json.dumps = None", "import time; time.time = None",
    "import os; os.fsync = None", "import sys; sys.path.clear()",
    "import shutil; shutil.rmtree('reports')", "import shutil; shutil.rmtree('reports'); open('reports', 'w').close()",
    "import glob, shutil; [shutil.rmtree(f) for f in glob.glob('reports/task*/records')]",
    "import glob, os; [os.remove(f) for f in glob.glob('reports/task*/*.*')]",
    "import glob; [open(f, 'w').close() for f in glob.glob('reports/task*/*.*')]",
    "import glob, os; [os.chmod(f, 0) for f in glob.glob('reports/task*')]", "import os; os.rename('reports', 'moved')",
    "import builtins; builtins.open = None", "import os; os.replace = os.rename = None", "import os; os.close(2)",
    "import os; os.closerange(0, 3)", "import sys; sys.stderr.close()", "import sys; sys.modules.clear()",
    "import tensorflow as tf; tf.keras.Model.fit = None", "import os; os.abort()", "import os; os.kill(os.getpid(), 9)",
    "import signal; signal.alarm(1)", "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "raise KeyboardInterrupt", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))",
]  # fmt: skip
"""Code that takes away what a verdict needs."""

RETURNED = [
    "None", "3", "'text'", "[]", "{}", "object()", "float('nan')", "lambda: None", "print", "b''", "...",
    "(1, 2, 3)", "[None]", "type", "iter([])", "{'a': 1}", "np.zeros(3)", "tf.zeros(3)", "(tf.keras, tf.keras)",
    "float", "range(3)", "1j", "10**400", "(lambda: (yield))()", "type('A', (), {'__call__': lambda s: s})()",
    "float('inf')", "tf.data.Dataset.range(3)", "[1, 'a', None]", "{'x': None}", "set()", "memoryview(b'x')",
    "np.array([object()])", "tf.Variable(1.0)", "Ellipsis, NotImplemented", "tf.keras.metrics.Mean()",
    "'accuracy'", "['accuracy', 'accuracy']", "(m for m in ['accuracy'])", "tf.keras.metrics.Mean",
]  # fmt: skip
REPORTED = [
    "None", "3", "[]", "{'loss': None}", "{'loss': 'x'}", "{'loss': float('nan')}", "{'loss': 1j}", "{3: 1.0}",
    "{'': 1.0}", "{'a\\nb': 1.0}", "{'epoch': 1.0}", "{'seconds': 1.0}", "{'loss': 10**400}", "{'=1+1': 1.0}",
    "{'loss': tf.constant(1.0)}", "{'loss': tf.zeros(3)}", "{'x' * 3000: 1.0}", "{'../x': 1.0}", "{'loss': True}",
    "{'\\udcff': 1.0}", "{'\\x1b[31m': 1.0}", "{'trainer': 1.0}", "{'loss': float('inf')}",
    "{'a,b': 1.0, '\"': 2.0}", "{'loss': -0.0}", "{'loss': 5e-324}", "{'loss': b'1'}",
    "{'loss': [1.0]}", "{'loss': {}}", "{None: 1.0}", "{'val_loss': 'nan'}", "iter(())", "[('loss', 1.0)]",
    "{'loss': object()}", "{str(i): 1.0 for i in range(300)}", "{'\\u202eloss': 1.0}", "{'loss ': 1.0, 'loss': 2.0}",
    "{'loss': 10**30}", "{'VAL_LOSS': 1.0}", "{'[bold]': 1.0}", "{'loss': tf.constant(1)}",
]  # fmt: skip
CALLED = [
    "''", "' '", "'../../x'", "'a/b'", "'\\x1b[31mred'", "'x' * 300", "'fit'", "3", "None", "'a\\nb'", "'=1+1'",
    "'\\udcff'", "'\\u202etxt'", "'.'", "'..'", "'a' * 5000", "property(lambda self: 1 / 0)", "'loop:1'", "'<b>&'",
    "'CON'", "'a b'", "'/'", "'/etc/passwd'", "'~'", "'%s'", "'{x}'", "b'loop'", "['loop']", "'[red]x[/]'", "'-x'",
    "'e\\u0301'", "'😀' * 60", "'a\\0b'", "'truth'", "'fit-2'", "'FIT'", "' fit'", "True", "float('nan')", "'<script>'",
]  # fmt: skip
TRAIN, EPOCHS = "    def train(self, run):\n", "        for epoch in run.epochs:\n"
NAME, BUILD, END_STEP = '    name = "my-loop"\n', "= run.build()\n", "run.end_step()\n"
TRAINERS = {
    "train is no function": (TRAIN, "    train = 3\n    def other(self, run):\n"),
    "train without run": (TRAIN, "    def train(self):\n        run = None\n"),
    "train takes more": (TRAIN, "    def train(self, run, more):\n"),
    "train is a coroutine": (TRAIN, "    async def train(self, run):\n"),
    "train is a generator": (TRAIN, TRAIN + "        yield\n"),
    "train is static": (TRAIN, "    @staticmethod\n    def train(run):\n"),
    "no name": (NAME, ""),
    "cannot be made": (NAME, '    name = "x"\n    def __init__(self): raise ValueError("no")\n'),
    "ends when it is made": (NAME, '    name = "x"\n    def __init__(self): raise SystemExit(0)\n'),
    "builds twice": (BUILD, BUILD + "        run.build()\n"),
    "does not build": (BUILD, "= [None] * 4\n"),
    "epochs backwards": (EPOCHS, "        for epoch in reversed(run.epochs):\n"),
    "one epoch too many": (EPOCHS, "        for epoch in range(1, run.epochs[-1] + 2):\n"),
    "no epoch": (EPOCHS, "        for epoch in ():\n"),
    "an epoch twice": ("run.end_epoch(epoch, {})\n", "[run.end_epoch(epoch, {}) for _ in range(2)]\n"),
    "no step": ("step(x, y)\n", "pass\n"),
    "too many steps": (END_STEP, "run.end_step(10**9)\n"),
    "huge count": (END_STEP, "run.end_step(10**30)\n"),
    "negative count": (END_STEP, "run.end_step(-1)\n"),
    "closes the run": (END_STEP, "run.end_step(); run.close()\n"),
    "weights not a number": (END_STEP, "[v.assign(v * float('nan')) for v in model.variables]; run.end_step()\n"),
    "other weights": (END_STEP, "run.end_step(); model.set_weights([w * 0 for w in model.get_weights()])\n"),
    "changes the run": (BUILD, BUILD + "        run.epochs = range(1, 99)\n"),
    "a model of its own": (BUILD, BUILD + "        model = tf.keras.models.clone_model(model)\n"),
    "the data is changed": ("step(x, y)\n", "x = x * 0; step(x, y)\n"),
}
"""Trainers: a text of the loop, and what takes its place."""
NAN = "class Nan(tf.keras.losses.Loss):\n    def call(self, y, p): return tf.reduce_sum(p, -1) * float('nan')\n\n\n"
CONTENTS = ["float('nan')", "float('inf')", "1e38", "0.0", "-1e-45"]


@dataclass(frozen=True)
class Hostile:
    """A user's two files, and what is to be expected of them."""

    task: str
    loop: str
    what: str
    kind: str
    told: str = ""
    harmless: bool = True


def trial(place: Place, generator: random.Random) -> Result:
    """One command with hostile user code."""
    place.fresh()
    hostile = generator.choices(
        [_raising, _lasting, _destroying, _returning, _reporting, _naming, _holding, _training],
        [26, 18, 10, 12, 8, 8, 10, 8],
    )[0](generator)
    (place.here / "task.py").write_text(hostile.task)
    (place.here / "loop.py").write_text(hostile.loop)
    options = generator.choice([[], [], ["--check"], ["--tensorboard"], ["--strategy", "mirrored", "--replicas", "2"]])
    if generator.random() < 0.08:
        options = generator.choice([["--parallel"], ["--seeds", "2", "--jobs", "2"]])
    trainers = ["fit", "loop.py:MyLoop"] if hostile.loop != LOOP or generator.random() < 0.3 else ["fit", "loop"]
    deadly = any(word in hostile.what for word in ("abort", "kill", "alarm", "KeyboardInterrupt"))
    request = Request(
        [*SMALL, *options, "--trainers", *trainers],
        hostile.kind,
        told=hostile.told,
        statuses=(0, 1, 2, 3, 130, -6, -9, -14, -15) if deadly else (0, 1, 2, 3),
        reports="reports" if hostile.harmless else None,
        silent=not hostile.harmless,
        noisy=True,
        keeps=hostile.harmless,
        what=hostile.what,
    )
    return place.tried(request)


def _with(where: str, code: str) -> tuple[dict[str, str], str]:
    """The two files with a line of code more, and the place of that line."""
    files = {"task.py": TASK, "loop.py": LOOP}
    name, after = PLACES[where]
    head, found, tail = files[name].partition(after)
    assert found, where
    line = tail.lstrip("\n").splitlines()[0] if tail.strip() else ""
    indent = INDENTS.get(where, len(line) - len(line.lstrip()))
    files[name] = f"{head}{found}{' ' * indent}{code}\n{tail}"
    return files, f"{name}, line {(head + found).count(chr(10)) + 1}"


def _placed(generator: random.Random, code: str, kind: str, *, told: bool, harmless: bool) -> Hostile:
    where = generator.choice(list(PLACES))
    files, line = _with(where, code)
    what = f"{where}: {code}"
    if where == "traced step":  # the line may be that of the call
        line = line.partition(" ")[0]
    told = told and "RequestError" not in code  # its text is taken for the product's own
    return Hostile(files["task.py"], files["loop.py"], what, kind, line if told else "", harmless)


def _raising(generator: random.Random) -> Hostile:
    return _placed(generator, generator.choice(RAISED), "code that raises or exits", told=True, harmless=True)


def _lasting(generator: random.Random) -> Hostile:
    return _placed(generator, generator.choice(DONE), "code that changes the process", told=False, harmless=True)


def _destroying(generator: random.Random) -> Hostile:
    return _placed(generator, generator.choice(DESTROYED), "code that destroys", told=False, harmless=False)


def _returning(generator: random.Random) -> Hostile:
    where = generator.choice([each for each in PLACES if each.startswith(("load", "build"))])
    files, line = _with(where, f"return {generator.choice(RETURNED)}")
    what = f"{where}: {files['task.py'].splitlines()[int(line.split()[-1]) - 1].strip()}"
    return Hostile(files["task.py"], files["loop.py"], what, "code that returns something else")


def _reporting(generator: random.Random) -> Hostile:
    logs = generator.choice(REPORTED)
    return Hostile(TASK, LOOP.replace("{})", f"{logs})"), f"end_epoch(epoch, {logs})", "numbers reported")


def _naming(generator: random.Random) -> Hostile:
    name = generator.choice(CALLED)
    kind = "names"
    if generator.random() < 0.5:
        return Hostile(TASK, LOOP.replace('"my-loop"', name), f"trainer's name {name}", kind)
    part = generator.choice(['name="task"', 'name="accuracy"'])
    return Hostile(TASK.replace(part, f"name={name}"), LOOP, f"{part.replace('=', ' is ')} no more, but {name}", kind)


def _holding(generator: random.Random) -> Hostile:
    value, array = generator.choice(CONTENTS), generator.choice(["x[:40]", "x[40:]", "x", "y[:40]"])
    kinds: dict[str, Any] = {
        f"{array} holds {value}": ("    return (x", f"    {array.replace('y', 'x')}[1] = {value}\n    return (x"),
        f"all of {array} is {value}": ("    return (x", f"    {array.replace('y', 'x')}[:] = {value}\n    return (x"),
        "labels out of range": ("(x[:, 0] > 0)", "7 + (x[:, 0] > 0)"),
        "labels below 0": ("(x[:, 0] > 0)", "-7 * (x[:, 0] > 0)"),
        "no examples": ("(x[:40], y[:40])", "(x[:0], y[:0])"),
        "no validation": ("(x[40:], y[40:])", "(x[:0], y[:0])"),
        "objects": ('.astype("float32")', ".astype(object)"),
        "text": ('.astype("float32")', ".astype(str)"),
        "complex": ('.astype("float32")', '.astype("complex64")'),
        "float16": ('.astype("float32")', '.astype("float16")'),
        "learning rate": ("SGD(0.1)", f"SGD({value})"),
        "100,000 outputs": ("Dense(2)", "Dense(100_000)"),
        "0 outputs": ("Dense(2)", "Dense(0)"),
        "one example": ("(x[:40], y[:40])", "(x[:1], y[:1])"),
        "one validation example": ("(x[40:], y[40:])", "(x[40:41], y[40:41])"),
        "mismatched lengths": ("(x[:40], y[:40])", "(x[:40], y[:39])"),
        "mismatched widths": ("(x[40:], y[40:])", "(x[40:, :3], y[40:])"),
        "a scalar": ("(x[:40], y[:40])", "(1.0, y[:40])"),
        "four parts": ("(x[:40], y[:40])", "(x[:40], y[:40], y[:40], y[:40])"),
        "weights of another length": ("(x[:40], y[:40])", "(x[:40], y[:40], x[:3, 0])"),
        "negative weights": ("(x[:40], y[:40])", "(x[:40], y[:40], -abs(x[:40, 0]))"),
        "no y": ("(x[:40], y[:40])", "(x[:40],)"),
        "ragged lists": ("(x[:40], y[:40])", "([[1.0], [1.0, 2.0]] * 20, y[:40])"),
        "labels as floats": ('.astype("int32")', '.astype("float64")'),
        "labels as text": ('.astype("int32")', ".astype(str)"),
        "dates": ('.astype("float32")', '.astype("datetime64[s]")'),
        "big-endian": ('.astype("float32")', '.astype(">f4")'),
        "structured": ("(x[:40], y[:40])", "(x[:40].view([('a', 'f4')]), y[:40])"),
        "masked": ("(x[:40], y[:40])", "(np.ma.masked_less(x[:40], 0), y[:40])"),
        "read-only": ("(x[:40], y[:40])", "(np.broadcast_to(x[:1], (40, 4)), y[:40])"),
        "no trainable weights": ("layers.Dense(2)", "layers.Dense(2, trainable=False)"),
        "no weights": ("layers.Dense(2)", "layers.Activation('linear')"),
        "loss is not a number": ("build_loss=build_loss", "build_loss=lambda: Nan()"),
        "momentum 2": ("SGD(0.1)", "SGD(0.1, momentum=2)"),
        "model of a lambda": ("layers.Dense(2)", "layers.Lambda(lambda x: x[:, :2])"),
        "experiment's name": ('name="task"', "name='../../x'"),
        "callbacks of another kind": ("build_loss=build_loss,", "build_loss=build_loss, build_callbacks=lambda: [3],"),
        "class weights of another kind": ("build_loss=build_loss,", "build_loss=build_loss, class_weight={'a': 1},"),
        "class weights without a class": ("build_loss=build_loss,", "build_loss=build_loss, class_weight={0: 1.0},"),
        "prepare returns nothing": ("build_loss=build_loss,", "build_loss=build_loss, prepare=lambda x, y: None,"),
    }
    what = generator.choice(list(kinds))
    task = TASK.replace(*kinds[what])
    if "Nan()" in task:
        task = task.replace("experiment = ", NAN + "experiment = ")
    return Hostile(task, LOOP, f"{what}: {kinds[what][1].strip()}", "data and settings")


def _training(generator: random.Random) -> Hostile:
    """A trainer that is none, or trains in a way that no one expects."""
    trainer = generator.choice(list(TRAINERS))
    old, new = TRAINERS[trainer]
    assert old in LOOP, trainer
    return Hostile(TASK, LOOP.replace(old, new), f"{trainer}: {new.strip()[:80]}", "odd trainers")
