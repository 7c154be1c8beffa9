"""Kvik's caches under MLX against mlx-lm's own, in one run.

usage: python bench/mlx/compare_stock.py [--weights f32|4bit] [--depths 0,2048,8192] [--rounds 3]
                                         [--tokens 6] [--chunk 128] [--clock wall|cpu] [--json FILE]

Three tables. Generation and prefill of SmolLM2-135M (scripts/fetch-model smollm2), tokens per
second at several depths of the context, with mlx-lm's KVCache, with the paged cache and routed
attention, and, as the bound of what any attention can reach, with mlx-lm's KVCache and an attention
that returns its queries; rounds alternate. One append with the arrays of the step before held: time
and bytes written, with mlx-lm's KVCache and the tail-owned cache. And one layer's step alone:
append and attention of one token and of a chunk, for the heads of SmolLM2 and of an 8B model.
Before it times anything it checks that the caches give the same logits.

--clock cpu counts the CPU time of the process for the first table, for a machine that others use
too: nearly all that it times runs on one thread at a time.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

import kvik
import kvik.mlx as kmlx
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.base as base
import mlx_lm.models.llama as llama
from mlx_lm.models.cache import KVCache, make_prompt_cache

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests" / "mlx"))
import smollm2  # noqa: E402


def blas():
    """Names of the BLAS libraries that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split()[-1] for line in maps if "blas" in line.lower() and "/" in line}
    return sorted(os.path.basename(path) for path in paths)


def load_model(weights):
    model = smollm2.load()
    if weights == "4bit":
        nn.quantize(model, group_size=64, bits=4)
        mx.eval(model.parameters())
    return model


def cache_at(model, depth, paged):
    """A cache of `depth` rows per layer: random ones, the same for both kinds."""
    cache = make_prompt_cache(model)
    if paged:
        kmlx.install(cache)
    for i, entry in enumerate(cache):
        if depth > 0:
            key = mx.random.key(i)
            rows = mx.random.normal((1, 3, depth, 64), key=key) * 0.5
            entry.update_and_fetch(rows, rows)
            mx.eval(entry.state)
    return cache


def prefill_rate(model, cache, chunk, clock):
    tokens = mx.arange(chunk)[None] % 1000
    mx.eval(tokens)
    start = clock()
    mx.eval(model(tokens, cache=cache)[:, -1])
    seconds = clock() - start
    trim(cache, chunk)
    return chunk / seconds


def generation_rate(model, cache, num_tokens, clock):
    token = mx.array([[5]])
    mx.eval(token)
    start = clock()
    for _ in range(num_tokens):
        token = mx.argmax(model(token, cache=cache)[:, -1], axis=-1)[None]
        mx.eval(token)
    seconds = clock() - start
    trim(cache, num_tokens)
    return num_tokens / seconds


def no_attention(queries, keys, values, cache=None, scale=None, mask=None, sinks=None):
    """The queries, once the cache has its rows."""
    return mx.depends([queries], [keys, values])[0]


@contextlib.contextmanager
def attention_for(name):
    """Within it llama's attention is none for the bound, else as it is."""
    attention = llama.scaled_dot_product_attention
    if name == "bound":
        llama.scaled_dot_product_attention = no_attention
    try:
        yield
    finally:
        llama.scaled_dot_product_attention = attention


def own_seconds(cache):
    """Seconds that kvik's attention and writing took so far, over all layers."""
    stats = [entry.paged_stats() for entry in cache]
    return sum(s["attention_time_s"] + s["cache_write_time_s"] for s in stats)


def trim(cache, n):
    for entry in cache:
        entry.trim(n)


def spread(rates):
    return {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}


def compare_models(arguments):
    model, rows = load_model(arguments.weights), []
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    for depth in map(int, arguments.depths.split(",")):
        caches = {"stock": cache_at(model, depth, False), "kvik": cache_at(model, depth, True)}
        logits = {}
        for name, cache in caches.items():
            logits[name] = model(mx.array([[5, 6]]), cache=cache)[0, -1]
            mx.eval(logits[name])
            trim(cache, 2)
        error = mx.max(mx.abs(logits["stock"] - logits["kvik"])).item()
        if error > 1e-2:
            raise SystemExit(f"the logits differ by {error} at depth {depth}")
        measures = {
            "generation": (generation_rate, arguments.tokens),
            "prefill": (prefill_rate, arguments.chunk),
        }
        caches["bound"] = caches["stock"]
        for what, (measure, amount) in measures.items():
            rates = {name: [] for name in caches}
            before = own_seconds(caches["kvik"])
            for turn in range(arguments.rounds):
                order = list(caches) if turn % 2 == 0 else list(reversed(caches))
                for name in order:
                    with attention_for(name):
                        rates[name].append(measure(model, caches[name], amount, clock))
            own = (own_seconds(caches["kvik"]) - before) / arguments.rounds / amount
            row = {"what": what, "depth": depth, "max_logit_error": error}
            row |= {name: spread(values) for name, values in rates.items()}
            row["ratio"] = row["kvik"]["median"] / row["stock"]["median"]
            row["bound_ratio"] = row["bound"]["median"] / row["stock"]["median"]
            row["own_ms_per_token"] = 1e3 * own
            rows.append(row)
            print(
                "{what:10} {depth:6}".format(**row),
                *(
                    "  {} {median:8.3f} ({low:.3f} to {high:.3f})".format(name, **row[name])
                    for name in rates
                ),
                "  {ratio:.2f} x of at most {bound_ratio:.2f}".format(**row),
                "  kvik's own {own_ms_per_token:.2f} ms a token".format(**row),
                flush=True,
            )
        kmlx.uninstall()
    return rows


def append_times(cache, rows, steps):
    """Seconds of each append while what the step before returned is held, and whether the rows
    moved."""
    seconds, held, moved = [], None, 0
    for _ in range(steps):
        start = time.perf_counter()
        fetched = cache.update_and_fetch(rows, rows)
        mx.eval(fetched)
        seconds.append(time.perf_counter() - start)
        if held is not None and address(held[0]) != address(fetched[0]):
            moved += 1
        held = fetched
    return seconds, moved


def address(array):
    import numpy as np

    return np.from_dlpack(array).ctypes.data


def compare_appends(arguments):
    rows = []
    for depth in map(int, arguments.append_depths.split(",")):
        history = mx.random.normal((1, 8, depth, 128))
        new = mx.random.normal((1, 8, 1, 128))
        mx.eval(history, new)
        caches = {"stock": KVCache(), "tail_owned": kmlx.TailOwnedKVCache()}
        for name, cache in caches.items():
            mx.eval(cache.update_and_fetch(history, history))
            seconds, moved = append_times(cache, new, 11)
            capacity = cache.keys.nbytes * 2 if name == "stock" else 0
            written = (capacity if moved else 0) + 2 * new.nbytes
            row = {
                "cache": name,
                "depth": depth,
                "moved": f"{moved} of 10",
                "bytes_written": written,
                "median_ms": 1e3 * statistics.median(seconds),
                "low_ms": 1e3 * min(seconds),
            }
            rows.append(row)
            text = "{cache:10} {depth:6}  moved {moved}  {bytes_written:>10} B  {median_ms:9.3f} ms"
            print(text.format(**row), flush=True)
    return rows


def layer_step(cache, queries, rows):
    """Seconds of an append with attention, as a model does it."""
    start = time.perf_counter()
    keys, values = cache.update_and_fetch(rows, rows)
    mask = "causal" if rows.shape[2] > 1 else None
    out = base.scaled_dot_product_attention(
        queries, keys, values, cache=cache, scale=0.1, mask=mask
    )
    mx.eval(out)
    seconds = time.perf_counter() - start
    cache.trim(rows.shape[2])
    return seconds, out


def compare_layers(arguments):
    rows = []
    kmlx.route()
    for heads, kv_heads, dim in ((9, 3, 64), (32, 8, 128)):
        for depth in (2048, 8192):
            for q_len in (1, arguments.chunk):
                if heads * depth * q_len > 9 * 8192 * arguments.chunk:
                    continue  # minutes with the stock cache
                history, new, queries = (
                    mx.random.normal((1, h, n, dim))
                    for h, n in ((kv_heads, depth), (kv_heads, q_len), (heads, q_len))
                )
                mx.eval(history, new, queries)
                caches = {"stock": KVCache(), "kvik": kmlx.PagedKVCache()}
                times, outs = {"stock": [], "kvik": []}, {}
                for cache in caches.values():
                    cache.update_and_fetch(history, history)
                for turn in range(2 * arguments.rounds + 1):
                    for name in list(caches) if turn % 2 else list(reversed(caches)):
                        seconds, outs[name] = layer_step(caches[name], queries, new)
                        times[name].append(1e3 * seconds)
                if not mx.allclose(outs["stock"], outs["kvik"], atol=1e-3):
                    raise SystemExit("the outputs differ")
                row = {"heads": f"{heads}/{kv_heads}x{dim}", "depth": depth, "q_len": q_len}
                row |= {name: spread(values) for name, values in times.items()}
                row["ratio"] = row["stock"]["median"] / row["kvik"]["median"]
                rows.append(row)
                print(
                    "layer {heads:10} {depth:6} {q_len:4}".format(**row),
                    *(
                        "  {} {median:9.3f} ms ({low:.3f} to {high:.3f})".format(name, **row[name])
                        for name in times
                    ),
                    "  {:.1f} x".format(row["ratio"]),
                    flush=True,
                )
    kmlx.uninstall()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", choices=["f32", "4bit"], default="f32")
    parser.add_argument("--depths", default="0,2048,8192")
    parser.add_argument("--append-depths", default="1000,4000,16000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=6)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    machine = {
        "mlx": mx.__version__,
        "blas": blas(),
        "threads": kvik.get_num_threads(),
        "cpu": str(kvik.cpu_info()),
    }
    print(machine)
    report = {
        "machine": machine,
        "clock": arguments.clock,
        "weights": arguments.weights,
        "append": compare_appends(arguments),
    }
    report["layer"] = compare_layers(arguments)
    report["model"] = compare_models(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
