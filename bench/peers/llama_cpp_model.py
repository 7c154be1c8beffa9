"""What the programs of the peer's environment begin with: a quiet llama.cpp and its model."""

import os
import sys

import llama_cpp as llama

_quiet = llama.llama_log_callback(lambda level, text, data: None)  # the library keeps no reference


def answers():
    """A stream to the caller. The library writes to the streams of C, which from now on is standard error."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def load(path):
    """(model, size of its vocabulary), on the CPU. Ends the program where llama.cpp cannot load it."""
    llama.llama_log_set(_quiet, None)
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit("llama.cpp cannot load the model")
    return model, llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
