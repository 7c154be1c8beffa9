"""The examples of docs/python.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import kvik

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, object] = {}
    before = kvik.get_num_threads()
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102
    finally:
        kvik.set_num_threads(before)


def test_the_page_names_every_variable_that_is_read():
    source = (PAGE.parents[1] / "python" / "src" / "environment.h").read_text()
    page = PAGE.read_text()
    names = re.findall(r'"((?:KVIK|MTPLX)_\w+)"', source)
    assert len(names) >= 40
    assert not [name for name in names if f"`{name}`" not in page]
