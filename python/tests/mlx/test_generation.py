"""Greedy generation with SmolLM2's real weights: the same tokens with every cache."""

from __future__ import annotations

import json
import os

import kvik.mlx as kmlx
import mlx.core as mx
import pytest
import smollm2
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache

pytestmark = [pytest.mark.usefixtures("with_extension")]

GOLDEN = smollm2.ROOT / "tests" / "golden" / "smollm2-135m-instruct-q4_1" / "greedy.jsonl"
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def model():
    if not smollm2.path().exists():
        if "smollm2" in os.environ.get("KVIK_REQUIRE_MODELS", "").split():
            pytest.fail(f"{smollm2.path()} is missing; run scripts/fetch-model smollm2")
        pytest.skip("SmolLM2 is not in the cache folder; run scripts/fetch-model smollm2")
    return smollm2.load()


@pytest.fixture(scope="module")
def prompts():
    with GOLDEN.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file][2:4]


def generate(model, prompt, cache, num_tokens=NUM_TOKENS):
    steps = generate_step(mx.array(prompt), model, max_tokens=num_tokens, prompt_cache=cache)
    return [int(token) for token, _ in steps]


@pytest.fixture(scope="module")
def stock_answers(model, prompts):
    return [generate(model, p["prompt_ids"], make_prompt_cache(model)) for p in prompts]


def test_the_model_is_read_as_its_file_says(stock_answers, prompts):
    """The stock cache gives the tokens of the recorded answers of another program."""
    assert stock_answers == [p["gen_ids"][:NUM_TOKENS] for p in prompts]


@pytest.mark.parametrize("cls", [kmlx.TailOwnedKVCache, kmlx.BlockOwnedKVCache])
def test_owned_caches_give_the_tokens_of_the_stock_cache(model, prompts, stock_answers, cls):
    for prompt, wanted in zip(prompts, stock_answers, strict=True):
        cache = [cls() for _ in model.layers]
        assert generate(model, prompt["prompt_ids"], cache) == wanted
        assert all(c.tail_owner_stats()["copies"] == 0 for c in cache)


def test_the_paged_cache_gives_the_tokens_of_the_stock_cache(model, prompts, stock_answers):
    try:
        for prompt, wanted in zip(prompts, stock_answers, strict=True):
            cache = make_prompt_cache(model)
            assert kmlx.install(cache)["entries"] == 30
            assert generate(model, prompt["prompt_ids"], cache) == wanted
            stats = cache[0].paged_stats()
            assert stats["paged_attention_calls"] == stats["updates"] >= NUM_TOKENS
            assert stats["dense_fallback_calls"] == 0
    finally:
        kmlx.uninstall()


@pytest.mark.parametrize(("mode", "num_tokens"), [("q8", 16), ("q6", 8)])
def test_low_bit_caches_give_the_first_tokens_of_the_stock_cache(
    model, prompts, stock_answers, mode, num_tokens
):
    try:
        for prompt, wanted in zip(prompts, stock_answers, strict=True):
            cache = make_prompt_cache(model)
            kmlx.install(cache, kv_quant_config=mode)
            answer = generate(model, prompt["prompt_ids"], cache, num_tokens)
            assert answer == wanted[:num_tokens]
            stats = cache[0].paged_stats()
            assert stats["format"] == f"{mode}:{mode}"
            assert stats["kv_quant_kernel_calls"] == stats["updates"] >= num_tokens
    finally:
        kmlx.uninstall()


def test_a_trimmed_conversation_gives_the_tokens_of_a_new_one(model, prompts, stock_answers):
    prompt = prompts[0]["prompt_ids"]
    for make in (KVCache, kmlx.TailOwnedKVCache, kmlx.PagedKVCache):
        cache = [make() for _ in model.layers]
        generate(model, prompt, cache, 8)
        extra = cache[0].offset - (len(prompt) - 1)
        assert all(c.trim(extra) == extra for c in cache)
        assert generate(model, prompt[-1:], cache, 8) == stock_answers[0][:8]
