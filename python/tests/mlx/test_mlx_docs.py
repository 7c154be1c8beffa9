"""The examples of docs/mlx.md run, one after the other."""

from __future__ import annotations

import pathlib
import re

import kvik.mlx as kmlx
import pytest

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "mlx.md"


@pytest.mark.usefixtures("appends")
def test_the_examples_of_the_page_run():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names = {}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102
    finally:
        kmlx.uninstall()
