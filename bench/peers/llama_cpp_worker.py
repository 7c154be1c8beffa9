"""Times llama.cpp through llama-cpp-python's bindings, on request: one JSON object a line in, one out.

Started by compare_llama_cpp.py inside the peer's own virtual environment. The first line out says what the
peer was built with. Requests: {"depth", "prompt", "generate", "type"} or {"greedy": ids, "count"}.
"""

import json
import sys
import time

import llama_cpp as llama
import llama_cpp_model


def main():
    model_path, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    answers = llama_cpp_model.answers()
    model, vocab_size = llama_cpp_model.load(model_path)

    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = context, 512, 512
    params.n_threads = params.n_threads_batch = threads
    peer = llama.llama_init_from_model(model, params)
    if not peer:
        sys.exit("llama.cpp cannot make a context")
    memory = llama.llama_get_memory(peer)

    def feed(ids):
        for begin in range(0, len(ids), 512):
            part = ids[begin:begin + 512]
            tokens = (llama.llama_token * len(part))(*part)  # the batch borrows it
            batch = llama.llama_batch_get_one(tokens, len(part))
            if llama.llama_decode(peer, batch) != 0:
                sys.exit("llama_decode failed")

    def timed(ids, one_by_one):
        llama.llama_synchronize(peer)
        start = time.perf_counter()
        if one_by_one:
            for token in ids:
                feed([token])
        else:
            feed(ids)
        llama.llama_synchronize(peer)
        return time.perf_counter() - start

    def greedy(ids, count):
        llama.llama_memory_clear(memory, True)
        found = []
        feed(ids)
        while len(found) < count:
            logits = llama.llama_get_logits_ith(peer, -1)
            found.append(max(range(vocab_size), key=logits.__getitem__))
            feed(found[-1:])
        return found

    def measure(depth, prompt, generate):
        ids = [(i * 7919 + 11) % vocab_size for i in range(max(depth, prompt, generate))]
        llama.llama_memory_clear(memory, True)
        feed(ids[:depth])
        result = {}
        # Each after one unmeasured token, so that both start warm.
        for name, count, one_by_one in (("prompt", prompt, False), ("generate", generate, True)):
            if count == 0:
                continue
            feed(ids[:1])
            llama.llama_memory_seq_rm(memory, 0, depth, -1)
            result[name] = timed(ids[:count], one_by_one)
            llama.llama_memory_seq_rm(memory, 0, depth, -1)
        return result

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"version": llama.__version__, "built_with": llama.llama_print_system_info().decode().strip()})
    for line in sys.stdin:
        request = json.loads(line)
        if "greedy" in request:
            answer(greedy(request["greedy"], request["count"]))
        else:
            answer(measure(request["depth"], request["prompt"], request["generate"]))


if __name__ == "__main__":
    main()
