"""encode, decode and the list of formats, against tests/golden/formats."""

from __future__ import annotations

import kvik
import numpy as np
import pytest
from golden import BF16, bell, digest, load, stored

MANIFEST = load("formats/manifest.json")
TRELLIS = load("formats/manifest_tcq.json")


def name_of(format: str) -> str:
    """The library's name of a format of the vectors."""
    if format.startswith("kv_"):
        return format[3:]
    if format.startswith("tq_k_"):
        return "tqk_" + format[5:]
    if format.startswith("tq_v_"):
        return f"tqv_q{format[5:]}_0"
    return format


def packed_rows(arrays):
    """Codes, scales and zero points of each row, joined as they are stored."""
    parts = [stored("formats", arrays[n]) for n in ("packed", "scale", "zero") if n in arrays]
    num_rows = parts[0].shape[0]
    return np.concatenate(
        [np.ascontiguousarray(p).reshape(num_rows, -1).view(np.uint8) for p in parts], axis=1
    )


def cut(case):
    return stored("formats", case["input"])[case["rows"]]


@pytest.mark.parametrize("case", MANIFEST["cases"], ids=[c["id"] for c in MANIFEST["cases"]])
def test_encoding_and_decoding_match_the_vectors(case):
    name, arrays = name_of(case["format"]), case["arrays"]
    packed = packed_rows(arrays)
    np.testing.assert_array_equal(kvik.encode(cut(case), name), packed)
    for key, is_stored in (("dequant", False), ("dequant_rotated", True)):
        if key in arrays:
            values = kvik.decode(packed, name, case["D"], stored=is_stored)
            dtype = {"f32": np.float32, "f16": np.float16, "bf16": BF16}[arrays[key]["dtype"]]
            assert digest(values.astype(dtype)) == arrays[key]["sha256"]


@pytest.mark.parametrize("case", TRELLIS["cases"], ids=[c["id"] for c in TRELLIS["cases"]])
def test_trellis_rows_decode_to_the_vectors_and_encode_as_well(case):
    name, arrays = case["format"], case["arrays"]
    values = kvik.decode(packed_rows(arrays), name, case["D"], stored=True)
    assert digest(values) == arrays["dequant_rotated"]["sha256"]
    rows = stored("formats", case["input"]).astype(np.float32)
    again = kvik.decode(kvik.encode(rows, name), name, case["D"])
    norm = (rows.astype(np.float64) ** 2).sum(axis=1)
    error = ((again.astype(np.float64) - rows) ** 2).sum(axis=1)
    relative = np.divide(error, norm, out=np.zeros_like(error), where=norm > 0)
    np.testing.assert_array_less(relative, 1.02 * np.array(case["relative_error"]) + 1e-9)


@pytest.mark.parametrize("entry", MANIFEST["refuse"], ids=lambda e: f"{e['format']}-{e['row']}")
def test_rows_that_cannot_be_stored_are_refused(entry):
    rows = stored("formats", entry["input"]).astype(np.float32)
    row = rows[entry["row_index"]].copy()
    if "replace" in entry:
        replace = entry["replace"]
        row[replace["index"]] = float(replace["value"])
    good = bell(1, (2, entry["D"]))
    names = [name_of(entry["format"])]
    if entry["format"] == "all":
        names = [f.name for f in kvik.formats() if f.is_packed]
    for name in names:
        with pytest.raises(ValueError, match=f"row 1 cannot be stored as {name}"):
            kvik.encode(np.stack([good[0], row, good[1]]), name)


def test_the_list_names_every_format_once():
    formats = kvik.formats()
    names = [f.name for f in formats]
    assert len(set(names)) == len(names) == 23
    assert names[:3] == ["f32", "f16", "bf16"]
    assert [f.bits for f in formats[:3]] == [32, 16, 16]
    for format in formats:
        assert format.stores_keys or format.stores_values
        rows = bell(3, (2, 3, 64))
        packed = kvik.encode(rows, format.name)
        assert packed.shape == (2, 3, format.row_bytes(64)) and packed.dtype == np.uint8
        again = kvik.decode(packed, format.name, 64)
        assert again.shape == rows.shape and again.dtype == np.float32
        assert format.is_packed or np.abs(again - rows).max() <= 2**-7
        if not format.is_rotated:
            np.testing.assert_array_equal(kvik.decode(packed, format.name, 64, stored=True), again)


@pytest.mark.parametrize(
    ("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", BF16)]
)
def test_plain_formats_are_the_elements_of_their_dtype(name, dtype):
    rows = bell(4, (5, 7))
    packed = kvik.encode(rows, name)
    assert packed.tobytes() == rows.astype(dtype).tobytes()
    np.testing.assert_array_equal(
        kvik.decode(packed, name, 7), rows.astype(dtype).astype(np.float32)
    )


def test_rows_of_other_dtypes_are_widened_first():
    rows = bell(5, (3, 64))
    for half in (rows.astype(np.float16), rows.astype(BF16)):
        np.testing.assert_array_equal(
            kvik.encode(half, "q8"), kvik.encode(half.astype(np.float32), "q8")
        )
    own = kvik.BFloat16Array.from_float32(rows)
    np.testing.assert_array_equal(kvik.encode(own, "q8"), kvik.encode(own.numpy(), "q8"))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: kvik.encode(bell(1, (2, 64)), "q5"), 'no format "q5"; the formats: f32'),
        (lambda: kvik.encode(bell(1, (2, 33)), "q4"), "33"),
        (lambda: kvik.encode(bell(1, (2, 64)).astype(np.float64), "q4"), "float64"),
        (lambda: kvik.encode(bell(1, (2, 1000)), "q8"), "head_dim"),
        (lambda: kvik.decode(np.zeros((2, 9), np.uint8), "q4", 64), "36"),
        (lambda: kvik.decode(np.zeros((2, 36), np.int8), "q4", 64), "uint8"),
        (lambda: kvik.decode(np.zeros((2, 36), np.uint8), "q4", -1), "head_dim"),
        (lambda: kvik.formats()[-1].row_bytes(33), "33"),
    ],
    ids=["name", "head_dim", "dtype", "too wide", "row bytes", "int8", "negative", "row_bytes"],
)
def test_what_does_not_fit_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
