from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import kvik
import pytest


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine changes a result."""
    for name in list(os.environ):
        if name.startswith(("KVIK_", "MTPLX_")) and not name.startswith("KVIK_REQUIRE_"):
            monkeypatch.delenv(name)
    yield


CACHES = {
    "tail": lambda: kvik.TailOwnedKVCache(step=4),
    "block": lambda: kvik.BlockOwnedKVCache(block_size=4),
    "paged": lambda: kvik.PagedKVCache(block_size=4, num_blocks=64),
}


@pytest.fixture(params=CACHES)
def make_cache(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Makes an empty cache of each kind."""
    return CACHES[request.param]


@pytest.fixture(params=["tail", "block"])
def make_owned(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """The kinds whose reads are views."""
    return CACHES[request.param]
