"""Four CPU devices, no silent rank promotion; warnings are errors (pyproject.toml).

Letters and numbers in the names of tests are cases: faults that users of such systems
met, each kept apart by its number so that it stays tested.

A  reductions and losses: sums taken for means, a last batch that weighs too much
B  compression: what is lost must be kept, every shape and type, restarts after zeros
C  local steps and outer loops: signs, periods, degenerate settings, one worker
D  batch sizes, learning rates and schedules: what they scale with and are counted in
E  data order and random numbers: disjoint shares, new in every epoch, resumed
F  state besides parameters, and evaluation: averaged by rule, exact over batches
G  what is not finite, and workers that fail: all workers decide alike
H  checkpoints: whole, atomic, of this model, continued to the bit
I  devices, processes and buffers: said in time, donated without aliases
J  sweeps and the command line: failures apart, keys by name
K  measurement, logs, documents: bytes that equal formulas, commands that run
"""

import atexit
import os
import shutil
import signal
import tempfile
import threading

import jax

if threading.current_thread() is threading.main_thread():
    # A shell in the background, or nohup, has these ignored, and processes that tests
    # start would ignore them too.
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Most of the tests' time is compilation; results do not depend on this.
# Some do, on how XLA's fast loops treat NaN: CI runs those with =0, as users' code is.
# The variable is JAX's, and processes that tests start inherit it.
fast = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1"
jax.config.update("jax_disable_most_optimizations", fast)
# Nor on this: what is compiled is kept, for all processes of a session; they inherit
# the names. A folder that one names oneself is kept.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="parsgd-tests-")
    atexit.register(
        shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True
    )
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
for name in ("min_compile_time_secs", "min_entry_size_bytes"):
    os.environ[f"JAX_PERSISTENT_CACHE_{name.upper()}"] = "0"
    jax.config.update(f"jax_persistent_cache_{name}", 0)
# The devices are made now: a test that asks for 99 would get them if it was the first
# to use JAX, and then all others have them.
assert jax.device_count() == 4
