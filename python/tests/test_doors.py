"""Every door with every kind of wrong argument: a ValueError or TypeError that names it, and
nothing changed."""

from __future__ import annotations

import array as std_array
import ctypes
import re
from typing import Any

import kvik
import ml_dtypes
import numpy as np
import pytest
from rows import make_rows, same

SHAPE = (1, 2, 5, 8)


def good(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.zeros(shape, np.float32)


class OtherDevice:
    """As an array in the memory of another device."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("the memory is on a GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class NotACapsule:
    def __dlpack__(self, **options: Any) -> Any:
        return 5


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


class Exotic:
    """An array of a type of DLPack that NumPy lacks, or in the memory of another device."""

    def __init__(self, code: int, bits: int, lanes: int = 1, device: int = 1) -> None:
        self._memory = np.zeros(4096, np.uint8)
        self._shape = (ctypes.c_int64 * 4)(*SHAPE)
        self._managed = Managed(
            DLTensor(
                self._memory.ctypes.data,
                (ctypes.c_int32 * 2)(device, 0),
                4,
                code,
                bits,
                lanes,
                self._shape,
                None,
                0,
            ),
            None,
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda pointer: None),
        )
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        self._name = ctypes.create_string_buffer(b"dltensor")
        return new(ctypes.addressof(self._managed), ctypes.addressof(self._name), None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


# What is no array of rows, and the word that names its kind.
NO_ROWS = {
    "float64": (good().astype(np.float64), ValueError, "float64"),
    "big endian": (good().astype(">f4"), ValueError, ">f4"),
    "big endian half": (good().astype(">f2"), ValueError, ">f2"),
    "longdouble": (good().astype(np.longdouble), ValueError, "float128|longdouble"),
    "complex64": (good().astype(np.complex64), ValueError, "complex64"),
    "clongdouble": (good().astype(np.clongdouble), ValueError, "complex"),
    "int32": (good().astype(np.int32), ValueError, "int32"),
    "uint16": (good().astype(np.uint16), ValueError, "uint16"),
    "bool": (good().astype(bool), ValueError, "bool"),
    "datetime": (np.zeros(SHAPE, "M8[s]"), ValueError, "datetime64"),
    "timedelta": (np.zeros(SHAPE, "m8[s]"), ValueError, "timedelta64"),
    "object": (np.zeros(SHAPE, object), ValueError, "object"),
    "str": (np.zeros(SHAPE, "U4"), ValueError, "<U4"),
    "bytes": (np.zeros(SHAPE, "S4"), ValueError, "S4"),
    "struct": (np.zeros(SHAPE, [("a", "f4")]), ValueError, "'a'"),
    "float8 of ml_dtypes": (good().astype(ml_dtypes.float8_e4m3fn), ValueError, "float8_e4m3fn"),
    "int4 of ml_dtypes": (good().astype(ml_dtypes.int4), ValueError, "int4"),
    "masked": (np.ma.masked_less(good(), 1), ValueError, "masked"),
    "one dimension": (np.zeros(3, np.float32), ValueError, "dimension"),
    "no dimension": (np.float32(1), ValueError, "dimension|read-only"),
    "0-d array": (np.zeros((), np.float32), ValueError, "dimension"),
    "five dimensions": (np.zeros((1, 1, 2, 5, 8), np.float32), ValueError, "dimension"),
    "float8 of DLPack": (Exotic(10, 8), ValueError, "float8_e4m3fn"),
    "int4 of DLPack": (Exotic(0, 4), ValueError, "int4"),
    "complex of DLPack": (Exotic(5, 64), ValueError, "complex64"),
    "float64 of DLPack": (Exotic(2, 64), ValueError, "float64"),
    "vectors of DLPack": (Exotic(2, 32, lanes=4), ValueError, "4 lanes"),
    "a type of later": (Exotic(77, 8), ValueError, "type 77"),
    "a GPU": (Exotic(2, 32, device=2), ValueError, "another device"),
    "a GPU that refuses": (OtherDevice(), ValueError, "the memory is on a GPU"),
    "a number as a capsule": (NotACapsule(), ValueError, "__dlpack__"),
    "a buffer of doubles": (std_array.array("d", [1.0]), ValueError, "float64"),
    "a buffer of another byte order": (memoryview(good().astype(">f4")), ValueError, "byte order"),
    "list": ([[1.0]], TypeError, "list"),
    "number": (1.5, TypeError, "float"),
    "text": ("rows", TypeError, "str"),
    "bytes object": (b"rows", ValueError, "uint8|read-only"),
    "a class": (np.ndarray, TypeError, "type"),
    "None": (None, TypeError, "None|both keys and values"),
}

# A wrong int, float, bool, str: the error.
NO_INT = {
    "bool": (True, TypeError),
    "float": (2.0, TypeError),
    "numpy float": (np.float32(2), TypeError),
    "text": ("2", TypeError),
    "list": ([2], TypeError),
    "array": (np.arange(3), TypeError),
    "2**70": (2**70, ValueError),
    "-2**70": (-(2**70), ValueError),
}
NO_FLOAT = {
    "bool": (True, TypeError),
    "text": ("1", TypeError),
    "complex": (1j, TypeError),
    "numpy complex": (np.complex64(1), TypeError),
    "list": ([1.0], TypeError),
    "array": (np.ones(3), TypeError),
    "10**400": (10**400, ValueError),
    "1e300": (1e300, ValueError),
    "nan": (float("nan"), ValueError),
    "infinite": (float("-inf"), ValueError),
}
NO_FLAG = {
    "int": (1, TypeError),
    "text": ("true", TypeError),
    "float": (1.0, TypeError),
    "array": (np.ones(3, bool), TypeError),
}
NO_TEXT = {
    "int": (3, TypeError),
    "bytes": (b"rows", TypeError),
    "surrogate": ("\ud800", ValueError),
    "another word": ("nonsense", ValueError),
    "list": (["rows"], TypeError),
}
NO_LIST = {
    "tuple": ((), TypeError),
    "None": (None, TypeError),
    "text": ("a", TypeError),
    "int": (5, TypeError),
}
NO_INTS = {
    "text": ("0", TypeError),
    "int": (0, TypeError),
    "floats": ([0.0], TypeError),
    "bools": ([True], TypeError),
    "2**40": ([2**40], ValueError),
    "2**70": ([2**70], ValueError),
    "negative": ([-1], ValueError),
    "float array": (np.zeros(1), TypeError),
}
NO_DICT = {"list": ([], TypeError), "int": (5, TypeError), "unknown key": ({"k": 1}, ValueError)}
KINDS = {
    "rows": NO_ROWS,
    "int": NO_INT,
    "float": NO_FLOAT,
    "flag": NO_FLAG,
    "text": NO_TEXT,
    "list": NO_LIST,
    "ints": NO_INTS,
    "dict": NO_DICT,
}
# These may be None, and some names are free text.
OPTIONAL = "?"


def filled(kind: str = "paged") -> Any:
    cache = {
        "tail": kvik.TailOwnedKVCache,
        "block": kvik.BlockOwnedKVCache,
        "paged": kvik.PagedKVCache,
    }[kind]()
    cache.update_and_fetch(*make_rows(5))
    return cache


def on(kind: str, method: str) -> Any:
    def call(**arguments: Any) -> Any:
        cache = filled(kind)
        before = cache.state
        try:
            return getattr(cache, method)(**arguments)
        finally:
            after = cache.state
            assert cache.offset == 5 and all(map(same, before, after)), "something was changed"

    return call


def setter(kind: str, name: str) -> Any:
    def call(value: Any) -> None:
        cache = filled(kind)
        before = cache.state
        try:
            setattr(cache, name, value)
        finally:
            assert cache.offset == 5 and all(map(same, before, cache.state))

    return call


class Entry:
    """A cache of another library."""

    def __init__(self, **members: Any) -> None:
        self.keys, self.values = make_rows(5)
        self.offset, self.step = 5, 256
        self.__dict__.update(members)

    def is_trimmable(self) -> bool:
        return True


def from_entry(make: Any) -> Any:
    return lambda **members: make(Entry(**members))


ATTEND = {
    "scale": "float?",
    "sinks": "rows?",
    "softcap": "float",
    "queries": "rows",
    "out": "rows?",
    "mask": "mask?",
}
PAGED_ATTEND = ATTEND | {"sliding_window": "int?", "impl_override": "text?", "phase": "text"}
MAKE_MASK = {
    "N": "int?",
    "return_array": "flag",
    "window_size": "int?",
    "query_len": "int?",
    "key_len": "int?",
}
ROWS = {"keys": "rows", "values": "rows"}
PAGED_OPTIONS = {
    "block_size": "int?",
    "num_blocks": "int?",
    "dynamic": "flag?",
    "context_window": "int?",
    "max_tokens": "int?",
    "turboquant_config": "dict?",
    "kv_quant_config": "dict?",
    "kv_format": "text?",
    "attention_impl": "text?",
    "sliding_window": "int?",
    "max_q_len": "int?",
    "partitioned": "flag?",
    "partition_threshold": "int?",
    "forbid_dense_fallback": "flag?",
    "forbid_active_arrays": "flag?",
}
CODES = kvik.PagedKVCache(kv_quant_config="q8")
CODES.update_without_fetch(*make_rows(5))
CODES = CODES.export_codes()


def import_codes(**changes: Any) -> None:
    cache = kvik.PagedKVCache(kv_quant_config="q8")
    cache.import_codes({**CODES, **changes})


# name: (function, its right arguments, the kind of each argument that is tried)
DOORS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "attend": (
        kvik.attend,
        {"queries": good(), "keys": good(), "values": good()},
        ATTEND | ROWS | {"window": "int?"},
    ),
    "encode": (
        kvik.encode,
        {"rows": good(), "format": "q8"},
        {"rows": "any rank", "format": "text"},
    ),
    "decode": (
        kvik.decode,
        {"packed": kvik.encode(good(), "q8"), "format": "q8", "head_dim": 8},
        {"packed": "bytes", "format": "text", "head_dim": "int", "stored": "flag"},
    ),
    "row_bytes": (kvik.formats()[0].row_bytes, {"head_dim": 8}, {"head_dim": "int"}),
    "set_num_threads": (kvik.set_num_threads, {"num_threads": 1}, {"num_threads": "int"}),
    "split_block_table": (
        kvik.split_block_table,
        {"block_size": 16, "block_table": [0]},
        {"block_size": "int", "block_table": "ints"},
    ),
    "paged": (kvik.PagedKVCache, {}, PAGED_OPTIONS),
    "paged with rows": (
        kvik.PagedKVCache,
        {"keys": good(), "values": good(), "offset": 5},
        {"keys": "rows", "values": "rows", "offset": "int?"},
    ),
    "paged reconfigure": (on("paged", "reconfigure"), {}, PAGED_OPTIONS),
    "tail": (
        kvik.TailOwnedKVCache,
        {"keys": good(), "values": good()},
        ROWS | {"step": "int", "offset": "int?", "mode": "text", "max_rows": "int"},
    ),
    "block": (
        kvik.BlockOwnedKVCache,
        {"keys": good(), "values": good()},
        ROWS | {"block_size": "int", "offset": "int?", "mode": "text", "max_rows": "int"},
    ),
    "tail from_cache": (
        kvik.TailOwnedKVCache.from_cache,
        {"entry": Entry()},
        {"mode": "text", "step": "int?"},
    ),
    "block from_cache": (
        kvik.BlockOwnedKVCache.from_cache,
        {"entry": Entry()},
        {"mode": "text", "block_size": "int"},
    ),
    "paged from_cache": (kvik.PagedKVCache.from_cache, {"entry": Entry()}, PAGED_OPTIONS),
    "paged attention": (on("paged", "paged_attention"), {"queries": good()}, PAGED_ATTEND),
    "paged attend": (on("paged", "attend"), {"queries": good()}, PAGED_ATTEND),
    "paged update": (
        on("paged", "update_without_fetch"),
        {"keys": good((1, 2, 0, 8)), "values": good((1, 2, 0, 8))},
        ROWS | {"phase": "text"},
    ),
    "paged update_and_fetch": (
        on("paged", "update_and_fetch"),
        {"keys": good((1, 2, 0, 8)), "values": good((1, 2, 0, 8))},
        ROWS | {"phase": "text"},
    ),
    "block update": (
        on("block", "update_without_fetch"),
        {"keys": good((1, 2, 0, 8)), "values": good((1, 2, 0, 8))},
        ROWS,
    ),
    "import_pages": (
        on("paged", "import_pages"),
        {
            "key_cache": filled().key_cache,
            "value_cache": filled().value_cache,
            "block_table": [0],
            "offset": 5,
        },
        {"key_cache": "rows", "value_cache": "rows", "block_table": "ints", "offset": "int"},
    ),
    "export_codes": (on("paged", "export_codes"), {}, {"layout": "text"}),
    "import_codes": (
        import_codes,
        {},
        {
            "keys": "bytes",
            "values": "bytes",
            "format": "text",
            "layout": "text",
            "num_rows": "int",
            "head_dim_k": "int",
            "head_dim_v": "int",
        },
    ),
    "block_table": (on("paged", "block_table"), {}, {"batch_row": "int"}),
    "install tail": (
        kvik.install_tail_owned_attention_kv_cache,
        {"cache": []},
        {"cache": "list", "mode": "text?", "step": "int?"},
    ),
    "install block": (
        kvik.install_block_owned_attention_kv_cache,
        {"cache": []},
        {"cache": "list", "mode": "text?", "block_size": "int?"},
    ),
    "install paged": (
        kvik.install_vllm_metal_paged_attention_kv_cache,
        {"cache": []},
        {"cache": "list"} | PAGED_OPTIONS,
    ),
    "configure": (kvik.configure_tail_owned_attention_kv_cache, {"cache": []}, {"cache": "list"}),
    "stats": (kvik.tail_owned_attention_kv_stats, {"cache": []}, {"cache": "list"}),
}
METHODS = {
    "tail": kvik.TailOwnedKVCache,
    "block": kvik.BlockOwnedKVCache,
    "paged": kvik.PagedKVCache,
}
for each, make in METHODS.items():
    DOORS[f"{each} trim"] = (on(each, "trim"), {"n": 0}, {"n": "int"})
    DOORS[f"{each} make_mask"] = (on(each, "make_mask"), {"N": 2}, MAKE_MASK)
    DOORS[f"{each} of an entry"] = (
        from_entry(make.from_cache),
        {},
        ROWS | {"offset": "int"} | ({"step": "int"} if each == "tail" else {}),
    )
    if each != "paged":
        DOORS[f"{each} update_and_fetch"] = (
            on(each, "update_and_fetch"),
            {"keys": good((1, 2, 0, 8)), "values": good((1, 2, 0, 8))},
            ROWS,
        )


def wrongs(kind: str) -> dict[str, tuple[Any, type[Exception], str]]:
    """Wrong values of an argument of a kind: the value, its error, a pattern of the text."""
    optional, kind = kind.endswith(OPTIONAL), kind.rstrip(OPTIONAL)
    if kind == "any rank":
        ranks = ("one dimension", "five dimensions")
        found = {name: wrong for name, wrong in NO_ROWS.items() if name not in ranks}
    elif kind == "bytes":
        found = {n: w for n, w in NO_ROWS.items() if not n.startswith(("one", "0-d", "no", "five"))}
        found |= {"halves": (good().astype(np.float16), ValueError, "float16")}
        del found["bytes object"]
    elif kind == "mask":
        taken = ("bool", "one dimension", "five dimensions", "text")
        found = {n: w for n, w in NO_ROWS.items() if n not in taken}
        found |= {"another word": ("diagonal", ValueError, "diagonal")}
        found |= {"one dimension": (np.zeros(5, bool), ValueError, "dimension")}
    elif kind == "rows":
        found = dict(NO_ROWS)
    else:
        found = {name: (value, error, "") for name, (value, error) in KINDS[kind].items()}
        found["None"] = (None, TypeError, "")
    if optional:
        found.pop("None", None)
    return found


def cases() -> list[Any]:
    return [
        pytest.param(door, argument, kind, id=f"{door}-{argument}")
        for door, (_, _, kinds) in DOORS.items()
        for argument, kind in kinds.items()
    ]


@pytest.mark.filterwarnings("ignore::kvik.FallbackWarning")
@pytest.mark.parametrize("door", DOORS)
def test_the_right_arguments_are_taken(door):
    function, right, _ = DOORS[door]
    function(**right)


@pytest.mark.parametrize(("door", "argument", "kind"), cases())
def test_a_wrong_argument_is_refused_by_its_name(door, argument, kind):
    function, right, _ = DOORS[door]
    for name, (value, error, pattern) in wrongs(kind).items():
        if argument == "sinks" and name in ("one dimension",):
            value = np.zeros(3, np.float32)  # of another number than heads
            error, pattern = ValueError, "sink"
        if value is None and door.endswith("of an entry"):
            continue  # no rows, and what a cache without them has
        if value is None and door in ("tail", "block", "paged with rows"):
            error = ValueError if argument in ("keys", "values") else error  # one of them alone
        with pytest.raises((ValueError, TypeError)) as caught:
            function(**{**right, argument: value})
        text = str(caught.value)
        assert caught.type is error, (name, text)
        assert "incompatible function arguments" not in text, (name, text)
        said = argument.removesuffix("_override").removesuffix("_cache").rstrip("s").split("_")[0]
        word_is_named = isinstance(value, str) and (value in text or "attention impl" in text)
        assert said.lower() in text.lower() or word_is_named, (name, text)
        assert re.search(pattern, text), (name, pattern, text)


# The functions of this file among them would take any keyword.
KEYWORD_DOORS = [d for d in DOORS if "of an entry" not in d and d != "import_codes"]


@pytest.mark.parametrize("door", KEYWORD_DOORS)
def test_an_unknown_keyword_is_refused(door):
    function, right, _ = DOORS[door]
    with pytest.raises(TypeError, match="nonsense"):
        function(**right, nonsense=1)


@pytest.mark.parametrize("kind", METHODS)
def test_no_method_tells_of_nanobind(kind):
    """Whatever is called with too many arguments, or by an unknown name, says so in a line."""
    cache, seen = filled(kind), 0
    for name in dir(cache):
        method = getattr(type(cache), name)
        if name.startswith("_") or not callable(method):
            continue
        seen += 1
        for call in (
            lambda method=method: method(cache, *range(20)),
            lambda method=method: method(cache, nonsense=1),
        ):
            if name == "from_cache":
                continue
            with pytest.raises(TypeError) as caught:
                call()
            text = str(caught.value)
            assert text.count("\n") == 0 and "incompatible" not in text, (name, text)
            assert name in text or "option" in text, (name, text)
    assert seen >= 9


@pytest.mark.parametrize("function", ["formats", "cpu_info", "get_num_threads"])
def test_functions_without_arguments_take_none(function):
    with pytest.raises(TypeError, match=f"{function}.* takes 0 positional"):
        getattr(kvik, function)(1)


def test_a_missing_argument_and_one_given_twice_are_named():
    with pytest.raises(TypeError, match=r"attend\(\) needs values"):
        kvik.attend(good(), good())
    with pytest.raises(TypeError, match=r"trim\(\) needs n"):
        filled().trim()
    with pytest.raises(TypeError, match=r"trim\(\) got n twice"):
        filled().trim(1, n=1)
    with pytest.raises(TypeError, match="by keyword only"):
        kvik.PagedKVCache(16)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    [
        ("state", 5, TypeError, "a state is a pair"),
        ("state", "ab", TypeError, "a state is a pair"),
        ("state", np.zeros((2, 1, 2, 5, 8), np.float32), TypeError, "a state is a pair"),
        ("state", (good(),), ValueError, "a state is a pair"),
        ("state", (good(), None), ValueError, "keys and values"),
        ("state", (good(), 5), TypeError, "values must be an array"),
        ("state", (good().astype(">f4"), good()), ValueError, "keys has dtype >f4"),
        ("keys", 5, TypeError, "keys must be an array"),
        ("values", good().astype(complex), ValueError, "values has dtype complex128"),
        ("meta_state", 5, TypeError, "meta_state is a tuple"),
        ("meta_state", "256", TypeError, "meta_state is a tuple"),
        ("meta_state", ("a", "b", "c"), ValueError, 'whole number|"a"'),
        ("meta_state", (2**80, "5", "eval_only"), ValueError, "1208925819614629174706176"),
        ("meta_state", ("4", "-1", "eval_only"), ValueError, "-1|blocks of 4|eval_only"),
    ],
    ids=str,
)
def test_what_does_not_fit_a_property_is_refused(kind, name, value, error, match):
    with pytest.raises(error, match=match):
        setter(kind, name)(value)


@pytest.mark.parametrize("integer", [np.int8, np.int64, np.uint16, lambda x: np.array(x)])
def test_the_integers_of_numpy_are_ints(integer):
    cache = filled()
    assert cache.trim(integer(2)) == 2
    assert kvik.decode(kvik.encode(good(), "q8"), "q8", integer(8)).shape == SHAPE
    assert kvik.split_block_table(integer(16), np.array([1, 0], np.int32)) == (16, [1, 0])
    assert kvik.PagedKVCache(block_size=integer(4)).block_size == 4
    assert kvik.attend(good(), good(), good(), np.float32(0.5)).shape == SHAPE


@pytest.mark.parametrize("number", [2**40, -1, 0, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("head_dim", lambda n: kvik.decode(kvik.encode(good(), "q8"), "q8", n)),
        ("head_dim", lambda n: kvik.formats()[3].row_bytes(n)),
        ("num_threads", kvik.set_num_threads),
        ("block_size", lambda n: kvik.PagedKVCache(block_size=n)),
        ("num_blocks", lambda n: kvik.PagedKVCache(num_blocks=n, keys=good(), values=good())),
        ("step", lambda n: kvik.TailOwnedKVCache(step=n, keys=good(), values=good())),
        ("max_rows", lambda n: kvik.TailOwnedKVCache(max_rows=n, keys=good(), values=good())),
        ("block_size", lambda n: kvik.BlockOwnedKVCache(n, keys=good(), values=good())),
        ("offset", lambda n: kvik.TailOwnedKVCache(good(), good(), offset=n)),
        ("offset", lambda n: kvik.PagedKVCache(keys=good(), values=good(), offset=n)),
        ("batch row", lambda n: filled().block_table(n)),
        ("block_size", lambda n: kvik.split_block_table(n, [0])),
        ("trim", lambda n: filled().trim(n)),
        ("window", lambda n: kvik.attend(good(), good(), good(), mask="causal", window=n)),
        ("window", lambda n: filled().paged_attention(good(), sliding_window=n)),
        ("queries", lambda n: filled().make_mask(n)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_numbers_far_out_of_range_are_refused_or_right(name, call, number):
    """Never a RuntimeError, a crash or an OverflowError."""
    before = kvik.get_num_threads()
    try:
        call(number)
    except (ValueError, IndexError, MemoryError) as error:
        assert "incompatible" not in str(error) and str(error)
    finally:
        kvik.set_num_threads(before)


def test_subclasses_of_ndarray_are_their_elements():
    k, v = make_rows(5)

    class Tagged(np.ndarray):
        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError("kvik reads an array of NumPy where it lies")

    out = kvik.attend(good(), k.view(Tagged), v.view(Tagged))
    assert same(out, kvik.attend(good(), k, v)) and type(out) is np.ndarray


def test_an_array_of_bfloat16_can_be_written_to():
    k, v = make_rows(5)
    out = kvik.BFloat16Array.from_float32(np.ones(SHAPE))
    assert kvik.attend(good(), k, v, out=out) is out
    assert same(out.ml_dtypes(), kvik.attend(good(), k, v).astype(ml_dtypes.bfloat16))
    out.bits.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        kvik.attend(good(), k, v, out=out)


def test_an_array_of_jax_is_not_written_to():
    class ArrayImpl(Exotic):
        pass

    ArrayImpl.__module__ = "jaxlib._jax"
    k, v = make_rows(5)
    assert kvik.attend(good(), k, v, out=Exotic(2, 32)) is not None
    with pytest.raises(ValueError, match="out is read-only: an array of JAX"):
        kvik.attend(good(), k, v, out=ArrayImpl(2, 32))


@pytest.mark.parametrize(
    ("out", "match"),
    [
        (np.broadcast_to(np.zeros(8, np.float32), SHAPE), "read-only"),
        (np.lib.stride_tricks.as_strided(good(), SHAPE, (0, 0, 32, 4)), "over each other"),
        (np.lib.stride_tricks.as_strided(good(), SHAPE, (320, 160, 16, 4)), "over each other"),
        (good()[:, :, ::-1], "negative"),
        (np.zeros((*SHAPE[:3], 16), np.float32)[..., ::2], "last stride of out"),
        (good((1, 2, 4, 8)), "differ in dimension 2"),
        (good((1, 2, 5, 9)), "head dims"),
        (kvik.TailOwnedKVCache(*make_rows(5)).state[0], "read-only"),
    ],
)
@pytest.mark.parametrize("door", ["attend", "paged_attention", "paged attend"])
def test_an_out_that_cannot_be_written_is_refused(door, out, match):
    q = good()
    calls = {
        "attend": lambda: kvik.attend(q, *make_rows(5), out=out),
        "paged_attention": lambda: filled().paged_attention(q, out=out),
        "paged attend": lambda: filled().attend(q, out=out),
    }
    with pytest.raises(ValueError, match=match):
        calls[door]()
