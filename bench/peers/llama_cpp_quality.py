"""Measures what llama.cpp's own cache types do to its predictions: one JSON object on standard output.

Started by scripts/quality inside the peer's virtual environment. Arguments: model, context, chunks, and a file with
a JSON array of token ids (the first of each chunk already in place). Every position of a chunk is scored, as by
`kvik eval --all-positions`: KL(reference || type) of the next token, natural log, in double. The reference is the
peer's own f32 cache without flash attention; how far its f16 caches lie from that is its noise floor.
"""

import ctypes
import json
import os
import sys

import llama_cpp as llama
import llama_cpp_model
import numpy as np

BATCH = 64
# Name: type of both sides, flash attention, rotation of quantised rows (which llama.cpp does unless told not to).
# The reference is the first. Quantised values need flash attention.
KINDS = {
    "f32": (llama.GGML_TYPE_F32, False, True),
    "f16": (llama.GGML_TYPE_F16, False, True),
    "f16, flash attention": (llama.GGML_TYPE_F16, True, True),
    "q8_0": (llama.GGML_TYPE_Q8_0, True, True),
    "q4_0": (llama.GGML_TYPE_Q4_0, True, True),
    "q4_0, not rotated": (llama.GGML_TYPE_Q4_0, True, False),
}


class Cache:
    def __init__(self, model, context, kind, flash, rotates):
        os.environ["LLAMA_ATTN_ROT_DISABLE"] = "0" if rotates else "1"
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, BATCH, BATCH
        params.n_threads = params.n_threads_batch = os.cpu_count()
        params.type_k = params.type_v = kind
        params.flash_attn_type = 1 if flash else 0
        self.context = llama.llama_init_from_model(model, params)
        if not self.context:
            sys.exit("llama.cpp cannot make a context")
        self.kld, self.same = [], []

    def clear(self):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def log_probabilities(self, ids, first, vocab_size):
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if llama.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        llama.llama_batch_free(batch)
        pointer = llama.llama_get_logits(self.context)
        rows = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)),
                                     (len(ids), vocab_size)).astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def main():
    path, context, chunks, ids_path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with open(ids_path, encoding="utf-8") as file:
        ids = json.load(file)
    answers = llama_cpp_model.answers()
    model, vocab_size = llama_cpp_model.load(path)
    caches = {name: Cache(model, context, *kind) for name, kind in KINDS.items()}
    for chunk in range(chunks):
        part = ids[chunk * context:(chunk + 1) * context - 1]
        for cache in caches.values():
            cache.clear()
        for first in range(0, len(part), BATCH):
            tokens = part[first:first + BATCH]
            reference = None
            for cache in caches.values():
                rows = cache.log_probabilities(tokens, first, vocab_size)
                if reference is None:
                    reference, weights, top = rows, np.exp(rows), rows.argmax(axis=1)
                    continue
                cache.kld += ((reference - rows) * weights).sum(axis=1).tolist()
                cache.same += (rows.argmax(axis=1) == top).tolist()
    results = []
    for name, cache in list(caches.items())[1:]:
        kld = np.array(cache.kld)
        results.append({"kv": name, "mean_kld": kld.mean(), "kld_error": kld.std(ddof=1) / len(kld) ** 0.5,
                        "kld_99": float(np.quantile(kld, 0.99)), "same_top": float(np.mean(cache.same))})
    json.dump({"version": llama.__version__, "positions": len(kld), "results": results}, answers, indent=1)


if __name__ == "__main__":
    main()
