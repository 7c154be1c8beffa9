"""The process around the caches: the GIL, forks of the process, what importing brings in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import kvik
import numpy as np
import pytest
from rows import make_rows, same


def long_call(seconds: float):
    """A call that runs that long at least, and its measured duration is stored in the list."""
    queries = np.ones((1, 8, 64, 128), np.float32)
    keys = np.ones((1, 1, 512, 128), np.float32)
    while True:
        start = time.perf_counter()
        kvik.attend(queries, keys, keys)
        if time.perf_counter() - start > seconds:
            return lambda: kvik.attend(queries, keys, keys)
        keys = np.concatenate([keys, keys], axis=2)


def test_other_threads_run_during_a_long_call():
    before = kvik.get_num_threads()
    kvik.set_num_threads(1)
    try:
        call = long_call(0.25)
        span: list[float] = []

        def work() -> None:
            span.append(time.perf_counter())
            call()
            span.append(time.perf_counter())

        thread = threading.Thread(target=work)
        thread.start()
        ticks = []
        while thread.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0.001)
        thread.join()
        inside = [t for t in ticks if span[0] < t < span[1]]
        # With the GIL held, this thread could tick at the start and the end of the call only.
        middle = [t for t in inside if 0.1 < (t - span[0]) / (span[1] - span[0]) < 0.9]
        assert len(middle) >= 5
    finally:
        kvik.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_fork_attends_with_threads_of_its_own():
    q, (k, v) = make_rows(600, seed=3)[0], make_rows(600)
    want = kvik.attend(q, k, v, mask="causal")
    child = os.fork()
    if child == 0:
        ok = same(kvik.attend(q, k, v, mask="causal"), want)
        os._exit(0 if ok else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def run_python(code: str, **variables: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=True,
    )
    return result.stdout.strip()


def test_importing_needs_numpy_and_nothing_else():
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import numpy\n"
        "numpys = set(sys.modules)\n"
        "import kvik\n"
        "new = {n.split('.')[0] for n in set(sys.modules) - numpys}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert run_python(code) == "['kvik']"


def test_importing_starts_no_thread():
    code = "import kvik, os; print(len(os.listdir('/proc/self/task')))"
    assert run_python(code, OPENBLAS_NUM_THREADS="1") == "1"


def test_the_number_of_threads_comes_from_the_environment():
    code = "import kvik; print(kvik.get_num_threads())"
    assert run_python(code, KVIK_NUM_THREADS="3") == "3"
    assert run_python(code) == str(len(os.sched_getaffinity(0)))


def test_threads_end_with_the_process():
    code = (
        "import numpy as np, kvik\n"
        "r = np.ones((1, 2, 300, 64), np.float32)\n"
        "kvik.attend(r, r, r)\n"
        "print('done')"
    )
    assert run_python(code, KVIK_NUM_THREADS="4") == "done"


def test_the_package_is_typed_and_has_a_version():
    folder = os.path.dirname(kvik.__file__)
    assert os.path.exists(os.path.join(folder, "py.typed"))
    stubs = open(os.path.join(folder, "_core.pyi")).read()
    for name in kvik.__all__:
        assert hasattr(kvik, name), name
    for name in ("PagedKVCache", "TailOwnedKVCache", "BlockOwnedKVCache"):
        assert f"class {name}" in stubs
    assert "def paged_attention(self, queries: kvik._types.ArrayLike" in stubs
    assert kvik.__version__.count(".") == 2


def test_every_public_member_says_what_it_does():
    undocumented = []
    for name in kvik.__all__:
        member = getattr(kvik, name)
        if not (getattr(member, "__doc__", None) or isinstance(member, str)):
            undocumented.append(name)
        if isinstance(member, type) and member.__module__ in ("kvik", "kvik._core"):
            undocumented += [
                f"{name}.{m}"
                for m, value in vars(member).items()
                if not m.startswith("_") and not getattr(value, "__doc__", None)
            ]
    assert not undocumented


def test_cpu_info_names_the_instruction_set():
    info = kvik.cpu_info()
    assert info["instruction_set"] == info["instruction_sets"][0]
    assert info["instruction_sets"][-1] == "scalar"
    assert info["backend"] == "cpu-" + info["instruction_set"]
    assert info["num_threads"] >= 1
