from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

pytest.importorskip("mlx.core", reason="mlx is not installed")

from kvik.mlx import build, extension, owned, paged, snapshots  # noqa: E402


@pytest.fixture(scope="session")
def append_extension():
    """The extension, built for the installed MLX if it is not there yet."""
    build.build()
    module = extension.append_extension()
    assert module is not None
    return module


@pytest.fixture(params=["extension", "slice updates"])
def appends(request, monkeypatch, append_extension):
    """How the caches append: both ways have the same contract."""
    module = append_extension if request.param == "extension" else None
    for user in (owned, paged, snapshots):
        monkeypatch.setattr(user, "append_extension", lambda: module)
    return request.param


@pytest.fixture
def with_extension(monkeypatch, append_extension):
    for user in (owned, paged, snapshots):
        monkeypatch.setattr(user, "append_extension", lambda: append_extension)
    return append_extension
