"""kvik.attend, and attention of the paged cache, against tests/golden/attention."""

from __future__ import annotations

import math

import kvik
import numpy as np
import pytest
from golden import DTYPES, bell, load, stored
from rows import make_rows, same

CASES = load("attention/manifest.json")["cases"]


def shift(case, q, k):
    """Moves the logits of a case as its README says."""
    how, root = case["shift"], math.sqrt(case["D"])
    t = np.arange(k.shape[0])
    want = -50 - 50 * (t % 7) / 6 if how == "spread" else np.full(len(t), float(how))
    q[..., 0] = 32
    k[..., 0] = np.rint(want * root / 32).astype(np.float32)[:, None]


def inputs(case, b):
    """q [H, q_len, D], k and v [H_kv, n, D] of sequence b, in the dtype of the case."""
    (num_heads, num_kv_heads), (q_len, kv_len) = case["heads"], case["seqs"][b]
    seed = 100 * case["seed"] + 3 * b
    q = bell(seed, (q_len, num_heads, case["D"])) * np.float32(2.0 ** case.get("q_exp", 0))
    k = bell(seed + 1, (kv_len, num_kv_heads, case["D"])) * np.float32(2.0 ** case.get("k_exp", 0))
    v = bell(seed + 2, (kv_len, num_kv_heads, case["Dv"]))
    if "shift" in case:
        shift(case, q, k)
    q, k, v = (a.astype(DTYPES[case["dtype"]]) for a in (q, k, v))
    if case.get("tail_inf"):
        v[-1] = np.inf
    if b == 0:
        for name, array in (("q", q), ("k", k), ("v", v)):
            probe = case["probe"][name]
            assert array.reshape(-1)[: len(probe)].astype(np.float32).tolist() == probe
    return [a.transpose(1, 0, 2)[None] for a in (q, k, v)]


def params(case):
    sinks = case.get("sink_values")
    return {
        "mask": "causal",
        "sinks": None if sinks is None else np.array(sinks, np.float32),
        "softcap": case["softcap"],
    }


def check(case, outputs):
    want = stored("attention", case["out"])
    for row, (b, head, query) in zip(want, case["rows"], strict=True):
        error = np.abs(outputs[b][0, head, query] - row).max()
        assert error <= case["tol"]["out"], (b, head, query)


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_attend_stays_within_the_tolerance_of_the_vectors(case):
    outputs = []
    for b, (q_len, _) in enumerate(case["seqs"]):
        q, k, v = inputs(case, b)
        out = np.empty((1, case["heads"][0], q_len, case["Dv"]), np.float32)
        window = None if case["window"] < 0 else case["window"]
        kvik.attend(q, k, v, case["scale"], window=window, out=out, **params(case))
        outputs.append(out)
    check(case, outputs)


PAGED_CASES = [c for c in CASES if c["window"] != 0]


@pytest.mark.parametrize("case", PAGED_CASES, ids=[c["id"] for c in PAGED_CASES])
def test_a_paged_cache_gives_the_bits_of_attend(case):
    for b, (q_len, _) in enumerate(case["seqs"]):
        q, k, v = inputs(case, b)
        cache = kvik.PagedKVCache(block_size=24, num_blocks=1, dynamic=True)
        cache.update_without_fetch(k[:, :, :7], v[:, :, :7])
        cache.update_without_fetch(k[:, :, 7:], v[:, :, 7:])
        window = None if case["window"] < 0 else case["window"]
        out = np.empty((1, case["heads"][0], q_len, case["Dv"]), np.float32)
        cache.paged_attention(q, case["scale"], window, out=out, **params(case))
        plain = np.empty_like(out)
        kvik.attend(q, k, v, case["scale"], window=window, out=plain, **params(case))
        assert same(out, plain)


def arrays(q_len=3, kv_len=20, batch=2):
    k, v = make_rows(kv_len, batch=batch, heads=2, head_dim_k=16, head_dim_v=24)
    return bell(9, (batch, 4, q_len, 16)), k, v


def test_none_hides_nothing_and_causal_takes_the_queries_as_the_newest():
    q, k, v = arrays()
    full = kvik.attend(q, k, v)
    assert same(full[:, :, -1:], kvik.attend(q[:, :, -1:], k, v, mask="causal"))
    assert same(
        kvik.attend(q, k, v, mask="causal")[:, :, :1],
        kvik.attend(q[:, :, :1], k[:, :, :18], v[:, :, :18]),
    )


def test_more_queries_than_keys_are_fine_where_nothing_is_hidden():
    q, k, v = arrays(q_len=30, kv_len=4)
    out = kvik.attend(q, k, v)
    assert same(out[:, :, 7:8], kvik.attend(q[:, :, 7:8], k, v))


def test_a_mask_array_gives_the_bits_of_the_mask_it_means():
    q, k, v = arrays()
    visible = np.arange(20) <= np.arange(17, 20)[:, None]
    assert same(kvik.attend(q, k, v, mask=visible), kvik.attend(q, k, v, mask="causal"))


def test_no_keys_give_zeros():
    q, k, v = arrays(kv_len=0)
    assert not kvik.attend(q, k, v).any()


def test_strides_and_batches_do_not_change_a_bit():
    q, k, v = arrays()
    want = kvik.attend(q, k, v)
    by_token = [
        np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in (q, k, v)
    ]
    assert same(kvik.attend(*by_token), want)
    assert same(kvik.attend(q[1:], k[1:], v[1:]), want[1:])
    backwards = [np.ascontiguousarray(a[..., ::-1])[..., ::-1] for a in (q, k, v)]
    assert same(kvik.attend(*backwards), want)
    one = np.broadcast_to(k[:, :1], k.shape), np.broadcast_to(v[:, :1], v.shape)
    assert same(kvik.attend(q, *one), kvik.attend(q, k[:, :1], v[:, :1]))


def test_the_number_of_threads_does_not_change_a_bit():
    q, k, v = arrays(q_len=9, kv_len=700)
    before = kvik.get_num_threads()
    try:
        results = []
        for num_threads in (1, 2, 3):
            kvik.set_num_threads(num_threads)
            assert kvik.get_num_threads() == kvik.cpu_info()["num_threads"] == num_threads
            results.append(kvik.attend(q, k, v, mask="causal"))
        assert same(results[0], results[1]) and same(results[0], results[2])
        with pytest.raises(ValueError, match="num_threads"):
            kvik.set_num_threads(0)
        assert kvik.get_num_threads() == 3
    finally:
        kvik.set_num_threads(before)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"queries": np.zeros((1, 4, 3, 16), np.float32)}, "batch"),
        ({"queries": np.zeros((2, 3, 3, 16), np.float32)}, "heads"),
        ({"queries": np.zeros((2, 4, 3, 8), np.float32)}, "head"),
        ({"mask": "diagonal"}, "diagonal"),
        ({"mask": np.ones((3, 19), np.bool_)}, "mask"),
        ({"window": 4}, "needs mask"),
        ({"mask": "causal", "window": -1}, "negative"),
        ({"sinks": np.zeros(3, np.float32)}, "sink"),
        ({"softcap": -1.0}, "softcap"),
        ({"values": np.zeros((2, 2, 19, 24), np.float32)}, "dimension 2"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_each_other_are_refused(change, match):
    q, k, v = arrays()
    with pytest.raises(ValueError, match=match):
        kvik.attend(**{"queries": q, "keys": k, "values": v, **change})
