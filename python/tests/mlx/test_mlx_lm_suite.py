"""mlx-lm's own tests of caches and models, each with our class in the place of its KVCache."""

from __future__ import annotations

import unittest

import kvik.mlx as kmlx
import mlx_lm_suite as suite
import pytest

pytestmark = pytest.mark.usefixtures("with_extension")

NO_METAL = "runs a Metal kernel, with the stock cache too"
NO_FLOAT16_EXPERTS = "evaluates experts of float16, which MLX's CPU back end refuses"
TOO_LARGE = "evaluates a whole model of gigabytes, which mlx-lm's test only describes"

SKIPPED = suite.SKIPPED | {
    f"test_models.TestModels.{name}": NO_METAL
    for name in ("test_bitnet", "test_gated_delta", "test_gated_delta_masked")
}
# The paged cache evaluates rows as they come, where the stock one leaves the graph to the caller.
SKIPPED_PAGED = (
    SKIPPED
    | {
        f"test_models.TestModels.{name}": NO_FLOAT16_EXPERTS
        for name in (
            "test_all_models",
            "test_bailing_moe_v3",
            "test_deepseek_v3",
            "test_hunyuan",
            "test_lfm2_moe",
            "test_mistral4",
            "test_mixtral",
            "test_phimoe",
            "test_phixtral",
            "test_qwen2_moe",
            "test_qwen3_moe",
            "test_step3p5",
        )
    }
    | {
        f"test_models.TestModels.{name}": TOO_LARGE
        for name in (
            "test_cohere",
            "test_cohere2",
            "test_gpt_neox",
            "test_gpt_oss",
            "test_gptj",
            "test_phi2",
            "test_phi3",
            "test_qwen",
        )
    }
    | {"test_server.TestLRUPromptCache.test_caching": "stores integers, which it refuses"}
)

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
