"""mlx-lm's own tests of caches and models, each with our class in the place of its KVCache."""

from __future__ import annotations

import unittest

import kvik.mlx as kmlx
import mlx_lm_suite as suite
import pytest

pytestmark = pytest.mark.usefixtures("with_extension")

NO_METAL = "runs a Metal kernel, with the stock cache too"
NO_FLOAT16_EXPERTS = (
    "sets half of the rows of a model with experts of float16, which MLX's CPU back end refuses"
)

SKIPPED = suite.SKIPPED | {
    f"test_models.TestModels.{name}": NO_METAL
    for name in ("test_bitnet", "test_gated_delta", "test_gated_delta_masked")
}
SKIPPED_PAGED = SKIPPED | {
    "test_models.TestModels.test_all_models": NO_FLOAT16_EXPERTS,
    "test_server.TestLRUPromptCache.test_caching": "stores integers, which it refuses",
}

MODULES = suite.load_modules()
TESTS = suite.test_ids(MODULES)
CLASSES = {
    "tail": (kmlx.TailOwnedKVCache, SKIPPED),
    "block": (kmlx.BlockOwnedKVCache, SKIPPED),
    "paged": (kmlx.PagedKVCache, SKIPPED_PAGED),
}


def test_every_skipped_test_exists():
    assert set(SKIPPED_PAGED) <= set(TESTS) and len(TESTS) == 145


@pytest.mark.filterwarnings("ignore::kvik.FallbackWarning")
@pytest.mark.parametrize("test_id", TESTS)
@pytest.mark.parametrize("kind", CLASSES)
def test_with(kind, test_id):
    cls, skipped = CLASSES[kind]
    if test_id in skipped:
        pytest.skip(skipped[test_id])
    if kind == "paged":
        kmlx.route()
    try:
        with suite.in_the_place_of_kv_cache(cls):
            failed = suite.run(MODULES, test_id)
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))
    finally:
        kmlx.uninstall()
    assert failed is None, failed
