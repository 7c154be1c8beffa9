"""mlx-lm's own tests, run from its source distribution with its KVCache replaced by another class.

The distribution is fetched once into the cache folder, its SHA-256 checked; nothing of it is kept
in the repository.
"""

import contextlib
import importlib.util
import pathlib
import subprocess
import sys
import tarfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from fetching import FetchError, cache_dir, fetch  # noqa: E402

VERSION = "0.32.2"
SUM = "1af8a92f6a141c3e2bf5b0369ac4464203a8e2189c47b9e40d3e921e5b3a1fe9"
MODULES = ("test_prompt_cache", "test_models", "test_server")
# Of test_server only these concern caches.
SERVER_CLASSES = ("TestLRUPromptCache",)

NEEDS_HUB = "needs a model of the Hugging Face Hub"
SKIPPED = {
    "test_prompt_cache.TestPromptCache.test_cache_with_generate": NEEDS_HUB,
    "test_prompt_cache.TestPromptCache.test_trim_cache_with_generate": NEEDS_HUB,
    "test_prompt_cache.TestPromptCache.test_cache_to_quantized": NEEDS_HUB,
}


def _download(folder):
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        "mlx-lm",
        "--dest",
        str(folder),
        f"mlx-lm=={VERSION}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        raise FetchError(f"cannot fetch mlx-lm {VERSION}: {done.stderr.strip()[-500:]}")
    return found[0]


def sources():
    """The folder of mlx-lm's tests. Raises FetchError."""
    archive = fetch(cache_dir() / f"mlx_lm-{VERSION}.tar.gz", SUM, _download)
    folder = cache_dir() / f"mlx_lm-{VERSION}-tests"
    names = [f"mlx_lm-{VERSION}/tests/{name}.py" for name in MODULES]
    if not all((folder / pathlib.Path(name).name).exists() for name in names):
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar:
            for name in names:
                (folder / pathlib.Path(name).name).write_bytes(tar.extractfile(name).read())
    return folder


def load_modules():
    """The test modules. None of them loads a model: the Hub is not asked."""
    modules = {}
    for name in MODULES:
        spec = importlib.util.spec_from_file_location(
            f"mlx_lm_suite_{name}", sources() / f"{name}.py"
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.load = mock.Mock(return_value=(None, None))
        modules[name] = module
    return modules


def test_ids(modules):
    """'module.Class.test' of every test that concerns caches."""
    ids = []
    for name, module in modules.items():
        for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
            for test in suite:
                cls, method = type(test).__name__, test._testMethodName
                if name != "test_server" or cls in SERVER_CLASSES:
                    ids.append(f"{name}.{cls}.{method}")
    return ids


@contextlib.contextmanager
def in_the_place_of_kv_cache(cls):
    """Within it, every module of mlx-lm and of its tests has `cls` under the name of mlx-lm's
    KVCache."""
    import mlx_lm.models.cache as cache

    stock = cache.KVCache

    def rebind(old, new):
        for name, module in list(sys.modules.items()):
            if (
                name.startswith(("mlx_lm.", "mlx_lm_suite_"))
                and getattr(module, "KVCache", None) is old
            ):
                module.KVCache = new

    rebind(stock, cls)
    try:
        yield
    finally:
        rebind(cls, stock)


def run(modules, test_id):
    """Runs one test; returns the text of what failed, or None; raises unittest.SkipTest where it
    skips itself."""
    name, cls, method = test_id.split(".")
    result = unittest.TestResult()
    unittest.TestSuite([getattr(modules[name], cls)(method)]).run(result)
    for _, reason in result.skipped:
        raise unittest.SkipTest(reason)
    failed = result.errors + result.failures
    if failed or result.testsRun != 1:
        return failed[0][1] if failed else "the test did not run"
    return None
