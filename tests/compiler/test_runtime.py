"""Running artifacts: results, the state of kernels, threads, fork."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from korch.artifact.load import load
from korch.artifact.pack import pack
from korch.codegen.target import host_target
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.errors import InvalidInput
from tests.compiler.sample_artifact import (
    BIAS,
    MACHINE,
    PRELUDE,
    expected_y,
    run_python,
    runtime,
    sample_artifact,
    sample_inputs,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "sample.korch"
    pack(sample_artifact(), path)
    return path


@pytest.fixture(scope="module")
def model(path):
    return load(path)


# Results


def test_the_model_says_what_it_takes_and_gives(model):
    assert {n: str(t) for n, t in model.inputs.items()} == {
        "x": "float32[40,1000]",
        "flag": "bool[3]",
        "h": "float16[]",
        "e": "float32[0,4]",
    }
    assert list(model.outputs) == ["y", "no", "k", "e2", "control"]
    assert model.manifest["plans"][0]["certificate"] == {"objective_us": 4.0}


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 7, 300])
def test_results_are_the_same_with_any_number_of_threads(model, threads):
    inputs = sample_inputs()
    results = model.run(inputs, threads=threads)
    np.testing.assert_array_equal(results["y"], expected_y(inputs["x"]))
    assert results["no"].tolist() == [False, True, False] and results["no"].dtype == np.bool_
    assert results["k"].shape == () and results["k"] == np.float16(1.5) and results["k"].dtype == np.float16
    assert results["e2"].shape == (0, 4)


def test_inputs_of_any_strides_are_taken(model):
    inputs = sample_inputs()
    x = inputs["x"]
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    for same in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1], unaligned):
        results = model.run({**inputs, "x": same})
        np.testing.assert_array_equal(results["y"], expected_y(x))
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(model.run({**inputs, "x": frozen})["y"], expected_y(x))


def test_outputs_are_written_where_asked(model):
    inputs = sample_inputs()
    y = np.full((40, 1000), 7, np.float32)
    results = model.run(inputs, out={"y": y})
    assert results["y"] is y and list(results) == list(model.outputs)
    np.testing.assert_array_equal(y, expected_y(inputs["x"]))
    first, second = model.run(inputs)["y"], model.run(inputs)["y"]
    assert not np.may_share_memory(first, second)


def test_inputs_that_do_not_fit_are_named(model):
    inputs = sample_inputs()
    takes = r"the model takes x float32\[40,1000\], flag bool\[3\], h float16\[\], e float32\[0,4\]"
    with pytest.raises(InvalidInput, match=rf"{takes}; it was given x, flag, h$"):
        model.run({k: v for k, v in inputs.items() if k != "e"})
    with pytest.raises(InvalidInput, match=rf"{takes}; it was given x, flag, h, e, z$"):
        model.run({**inputs, "z": BIAS})
    with pytest.raises(InvalidInput, match=rf"input x has dtype float64; {takes}"):
        model.run({**inputs, "x": inputs["x"].astype(np.float64)})
    with pytest.raises(InvalidInput, match=rf"input x has dtype >f4; {takes}"):
        model.run({**inputs, "x": inputs["x"].astype(">f4")})
    with pytest.raises(InvalidInput, match=rf"shapes x \(1, 1000\), flag \(3,\), .*; {takes}"):
        model.run({**inputs, "x": inputs["x"][:1]})


def test_outputs_that_do_not_fit_are_named(model):
    inputs = sample_inputs()
    fitting = np.zeros((40, 1000), np.float32)
    with pytest.raises(InvalidInput, match=r"out y is float64\[40, 1000\]; expected float32\[40,1000\]"):
        model.run(inputs, out={"y": fitting.astype(np.float64)})
    with pytest.raises(InvalidInput, match=r"out has 'z', which is no output; the outputs are: y, no, k, e2, control"):
        model.run(inputs, out={"z": fitting})
    with pytest.raises(InvalidInput, match="out y must be row-major"):
        model.run(inputs, out={"y": np.asfortranarray(fitting)})
    with pytest.raises(InvalidInput, match="out y overlaps an input"):
        model.run(inputs, out={"y": inputs["x"]})
    frozen = fitting.copy()
    frozen.flags.writeable = False
    with pytest.raises(InvalidInput, match="writable"):
        model.run(inputs, out={"y": frozen})


def test_a_file_holds_plans_for_several_shapes_and_targets(tmp_path):
    pack(sample_artifact((2, 64), ("x86_64", "aarch64", "host")), tmp_path / "a.korch")
    model = load(tmp_path / "a.korch")
    assert [p.record["target"] for p in model.plans] == [host_target().name] * 2  # the best of each shape
    for rows in (64, 2, 64):
        inputs = sample_inputs(rows)
        np.testing.assert_array_equal(model.run(inputs)["y"], expected_y(inputs["x"]))
    with pytest.raises(InvalidInput, match=r"x float32\[2,1000\].* or x float32\[64,1000\]"):
        model.run(sample_inputs(3))


# The state that kernels run in


def test_the_floating_point_control_is_the_kernels_and_then_the_callers(model, tmp_path):
    if host_target().triple.startswith("aarch64"):
        pytest.skip("the helper below is for x86-64")
    source = """
    #define PUBLIC __attribute__((visibility("default")))
    PUBLIC unsigned get(void) { unsigned v; __asm__ volatile("stmxcsr %0" : "=m"(v)); return v; }
    PUBLIC void set(unsigned v) { __asm__ volatile("ldmxcsr %0" :: "m"(v)); }
    """
    compile_shared(find_toolchain(), source, host_target(), tmp_path / "control.so")
    control = ctypes.CDLL(str(tmp_path / "control.so"))
    inputs, before = sample_inputs(), control.get()
    unusual = 0x9FC0 | 0x6000  # flush to zero, denormals are zero, round toward zero
    control.set(unusual)
    results = model.run(inputs, threads=2)
    after = control.get()
    control.set(before)
    assert after & 0xFFC0 == unusual & 0xFFC0
    assert set(results["control"].tolist()) == {0x1F80}
    np.testing.assert_array_equal(results["y"], expected_y(inputs["x"]))


# Threads and processes


def test_many_threads_share_one_model(path):
    model = load(path)
    cases = [sample_inputs(seed=seed) for seed in range(4)]
    wanted = [expected_y(c["x"]) for c in cases]

    def hammer(k: int) -> int:
        wrong = 0
        for i in range(60):
            n = (k + i) % len(cases)
            y = model.run(cases[n], threads=1 + (k + i) % 3)["y"]
            wrong += not np.array_equal(y, wanted[n], equal_nan=True)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(hammer, range(8))) == [0] * 8


def test_the_interpreter_is_free_during_a_run(path):
    model, inputs = load(path), sample_inputs()
    barrier = threading.Barrier(2, timeout=30)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, call, ctypes.c_void_p)
    def host(_unused, count, each, argument):
        for k in range(count):
            each(argument, k)
        barrier.wait()  # returns only if the other thread runs Python meanwhile

    model._library.korch_set_parallel_for(ctypes.cast(host, ctypes.c_void_p), None)
    try:
        waiting = threading.Thread(target=lambda: [barrier.wait() for _ in range(2)])
        waiting.start()
        model.run(inputs, threads=2)
        waiting.join()
    finally:
        model._library.korch_set_parallel_for(None, None)


def test_the_host_may_lend_its_own_pool(model):
    inputs, seen = sample_inputs(), []
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, call, ctypes.c_void_p)
    def host(_unused, count, each, argument):
        seen.append(count)
        for k in reversed(range(count)):  # any order
            thread = threading.Thread(target=each, args=(argument, k))
            thread.start()
            thread.join()

    model._library.korch_set_parallel_for(ctypes.cast(host, ctypes.c_void_p), None)
    try:
        results = model.run(inputs, threads=5)
    finally:
        model._library.korch_set_parallel_for(None, None)
    assert seen == [5, 5]  # the sample has two parallel loops
    np.testing.assert_array_equal(results["y"], expected_y(inputs["x"]))
    assert set(results["control"].tolist()) <= {0x1F80, 0}


RUN = """
import sys, os, numpy as np
from korch.artifact.load import load
from tests.compiler.sample_artifact import expected_y, sample_inputs
model, inputs = load(sys.argv[1]), sample_inputs()
def right(threads=2):
    return np.array_equal(model.run(inputs, threads=threads)["y"], expected_y(inputs["x"]), equal_nan=True)
"""


def test_a_forked_child_runs_on(path):
    code = (
        RUN
        + """
import threading
assert right()
stop = []
def keep_busy():
    while not stop: assert right(2)
other = threading.Thread(target=keep_busy); other.start()  # so that some forks happen in the middle of a run
for _ in range(30):
    child = os.fork()
    if child == 0:
        threads = lambda: open("/proc/self/status").read().split("Threads:")[1].split()[0]
        alone = threads() == "1"
        fine = alone and all(right(3) for _ in range(20)) and threads() == "3"
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
stop.append(1); other.join()
assert right()
"""
    )
    run_python(code, path)


def test_an_idle_pool_sleeps(path):
    code = (
        RUN
        + """
import time, resource
assert right()
time.sleep(0.05)
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before)
"""
    )
    assert float(run_python(code, path)) < 0.05


def test_two_runtimes_share_one_pool(path, tmp_path):
    other = dataclasses.replace(sample_artifact(), runtimes={MACHINE: runtime(MACHINE) + b"\0"})
    pack(other, tmp_path / "other.korch")
    code = (
        RUN
        + """
def threads(): return int(open("/proc/self/status").read().split("Threads:")[1].split()[0])
assert right(4)
first = threads()
model = load(sys.argv[2])
assert right(4) and right(3)
assert threads() == first, (first, threads())
import korch.artifact.load as loading
assert len(loading._runtimes) == 2
"""
    )
    run_python(code, path, tmp_path / "other.korch")


def test_the_default_number_of_threads_honours_affinity(path):
    code = (
        RUN
        + """
library = model._library
assert library.korch_default_threads() <= len(os.sched_getaffinity(0))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(library.korch_default_threads())
"""
    )
    assert run_python(code, path).strip() == "1"


V2 = "0::/outer/inner\n"
V1 = "5:memory:/\n4:cpu,cpuacct:/outer/inner\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "limited"),
    [
        (V2, {"outer/inner/cpu.max": "150000 100000"}, True),
        (V2, {"outer/inner/cpu.max": "max 100000", "outer/cpu.max": "50000 100000"}, True),
        (V2, {"outer/inner/cpu.max": "max 100000", "cpu.max": "6400000 100000"}, False),
        (V2, {}, False),
        (V1, {"cpu/outer/cpu.cfs_quota_us": "100000", "cpu/outer/cpu.cfs_period_us": "100000"}, True),
        (V1, {"cpu/outer/cpu.cfs_quota_us": "-1", "cpu/outer/cpu.cfs_period_us": "100000"}, False),
        ("0::/\n", {"cpu.max": "100000 100000"}, True),
    ],
)
def test_the_default_number_of_threads_honours_the_quota(path, tmp_path, groups, files, limited):
    # a private view of /sys/fs/cgroup and /proc/self/cgroup, where the system allows one to be made
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (tmp_path / "root").mkdir(exist_ok=True)
    (tmp_path / "groups").write_text(groups)
    view = 'mount --bind "$0/root" /sys/fs/cgroup && mount --bind "$0/groups" /proc/$$/cgroup && exec "$@"'
    private = ["unshare", "--mount", "sh", "-c", view, str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("this process may not make a private view of the file system")
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).korch_default_threads())"
    library = tmp_path / "libkorch.so"
    library.write_bytes(runtime(MACHINE))
    found = subprocess.run([*private, sys.executable, "-c", code, str(library)], capture_output=True, text=True)
    assert int(found.stdout) == (1 if limited else len(os.sched_getaffinity(0)))


def test_code_is_loaded_where_anonymous_files_are_refused(path, tmp_path):
    # with nothing in /proc/self/fd, the anonymous file has no name to load it by
    view = 'mount -t tmpfs none /proc/$$/fd && exec "$@"'
    private = ["unshare", "--mount", "sh", "-c", view, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("this process may not make a private view of the file system")
    code = RUN + "assert not os.listdir('/proc/self/fd') and right(); print('right')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    found = subprocess.run(
        [*private, sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment
    )
    assert found.stdout == "right\n", found.stderr
    assert not list(tmp_path.iterdir())


def test_loading_needs_numpy_only(path):
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED: raise ImportError(f"{name} is blocked")
BLOCKED = {"onnx", "highspy", "ziglang", "rich", "typer", "platformdirs", "ml_dtypes", "torch"}
sys.meta_path.insert(0, Blocked())
import numpy as np
from korch.artifact.load import load
model = load(sys.argv[1])
inputs = {"x": np.full((40, 1000), 4, np.float32), "flag": np.ones(3, bool), "h": np.array(1, np.float16),
          "e": np.empty((0, 4), np.float32)}
print(model.run(inputs)["y"][0, 0])
heavy = BLOCKED & {name.split(".")[0] for name in sys.modules}
assert not heavy, heavy
"""
    assert float(run_python(code, path)) == 2 + BIAS[0]


def test_a_model_is_freed(path):
    code = (
        RUN
        + """
import gc
def descriptors(): return len(os.listdir("/proc/self/fd"))
def mapped(): return open("/proc/self/maps").read().count(".korch")
assert right()
before = descriptors()
for _ in range(20):
    model = load(sys.argv[1]); assert right()
gc.collect()
assert descriptors() == before, (before, descriptors())
assert mapped() == 1, mapped()
"""
    )
    run_python(code, path)


# Kernels without a model


def test_single_kernels_are_called_in_the_state_of_a_run(tmp_path):
    body = "((int64_t *)context)[task] += 10 * task;"
    kernel = """
      int64_t *seen = (int64_t *)p[1];
      seen[0] = r->threads, seen[1] = (int64_t)r->scratch % 64, seen[2] = r->scratch_stride;
      r->parallel_for(r, 100, body, p[0]);
    """
    call = kernel_caller(body, kernel, tmp_path)
    sums, seen, seconds = np.zeros(100, np.int64), np.zeros(3, np.int64), np.zeros(5)
    assert call(2, (sums, seen), 5, scratch=1000, seconds=seconds) == 2
    assert sums.tolist() == [50 * k for k in range(100)]
    assert seen.tolist() == [2, 0, 1024]
    assert (seconds > 0).all() and seconds.max() < 1


def test_every_task_runs_once_whatever_their_number(tmp_path):
    body = "__atomic_fetch_add((int64_t *)context + task, 1, __ATOMIC_RELAXED);"
    call = kernel_caller(body, "r->parallel_for(r, *(int64_t *)p[1], body, p[0]);", tmp_path)
    for threads in (1, 2, 3, 7):
        for tasks in (0, 1, 2, 3, 5, 6, 7, 8, 100):
            counts = np.zeros(101, np.int64)
            call(threads, (counts, np.array([tasks])), 50)
            assert counts.tolist() == [50] * tasks + [0] * (101 - tasks), (threads, tasks)


def test_workers_have_numbers_and_scratch_of_their_own(tmp_path):
    # each task writes its number to its worker's scratch, does other work, and finds it again
    body = """
      const korch_runtime *r = *(const korch_runtime **)context;
      volatile int64_t *own = (volatile int64_t *)(r->scratch + worker * r->scratch_stride);
      *own = task;
      for (volatile int k = 0; k < 200; k++) {}
      if (*own != task || worker < 0 || worker >= r->threads) __atomic_fetch_add((int64_t *)context + 1, 1, 0);
    """
    call = kernel_caller(body, "*(const korch_runtime **)p[0] = r; r->parallel_for(r, 64, body, p[0]);", tmp_path)
    for threads in (2, 7):
        state = np.zeros(2, np.int64)
        call(threads, (state,), 300, scratch=8)
        assert state[1] == 0


def kernel_caller(body: str, kernel: str, tmp_path: Path) -> Callable[..., int]:
    """Calls a kernel of those two function bodies: `call(threads, arrays, repeats)`."""
    source = f"""{PRELUDE}
    static void body(void *context, int64_t task, int64_t worker) {{ {body} }}
    __attribute__((visibility("default"))) void kernel(const korch_runtime *r, char *const *p) {{ {kernel} }}
    """
    compile_shared(find_toolchain(), source, host_target(), tmp_path / "kernel.so")
    (tmp_path / "libkorch.so").write_bytes(runtime(MACHINE))
    library, code = ctypes.CDLL(str(tmp_path / "libkorch.so")), ctypes.CDLL(str(tmp_path / "kernel.so"))
    library.korch_runtime_new.restype = ctypes.c_void_p
    library.korch_runtime_new.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.korch_runtime_free.argtypes = [ctypes.c_void_p]
    library.korch_call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]

    def call(threads, arrays, repeats, scratch=0, seconds=None):
        table = library.korch_runtime_new(threads, scratch)
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        function = ctypes.cast(code.kernel, ctypes.c_void_p)
        taken = library.korch_call(
            table, function, pointers, repeats, seconds.ctypes.data if seconds is not None else None
        )
        library.korch_runtime_free(table)
        return taken

    return call
