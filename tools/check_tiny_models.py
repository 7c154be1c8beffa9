#!/usr/bin/env python3
"""Runs the files of tests/golden/tiny_models/ in other engines and compares with their logits.

Engines, each used if it can be imported: llama_cpp (llama-cpp-python; reads a copy of the file with
its matrices widened to f32, f32 keys and values) and mlx_lm (float32; weights read from the file).
So the first checks the file as llama.cpp understands it, the second the numbers once more. Needs
also what make_tiny_models.py needs.
"""
import argparse
import importlib
import importlib.util
import json
import pathlib
import tempfile

import gguf
import numpy as np

import torch

from make_tiny_models import gguf_name, make_weights, neighbours_to_halves, repair, run_model
from tiny_model_specs import MODELS, Spec, Variant, embedding_scale


def widen(source: pathlib.Path, target: pathlib.Path):
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        value = field.contents()
        if field.name == "general.file_type":
            value = gguf.LlamaFileType.ALL_F32
        writer.add_key_value(field.name, value, field.types[0],
                             field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_llama_cpp(path: pathlib.Path, spec: Spec, tokens: list[int]) -> np.ndarray:
    import llama_cpp
    with tempfile.TemporaryDirectory() as folder:
        wide = pathlib.Path(folder) / "wide.gguf"
        widen(path, wide)
        # The context is the file's, so that scaled rope is as trained.
        model = llama_cpp.Llama(str(wide), n_ctx=0, n_batch=512, n_threads=1, logits_all=True,
                                type_k=0, type_v=0, flash_attn=False, verbose=False)
        assert model.n_ctx() == spec.config["max_position_embeddings"]
        model.eval(tokens)
        return np.array(model.scores[:len(tokens)])


MLX_MODULES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}


def file_weights(path: pathlib.Path, spec: Spec) -> dict[str, np.ndarray]:
    tensors = {t.name: np.array(t.data, dtype=np.float32) for t in gguf.GGUFReader(path).tensors}
    names = list(make_weights(spec))
    weights = {name: tensors.pop(gguf_name(spec, name)) for name in names}
    assert list(tensors) in ([], ["rope_freqs.weight"]), list(tensors)
    return repair(spec, weights, neighbours_to_halves) if spec.arch == "llama" else weights


def run_mlx(path: pathlib.Path, spec: Spec, tokens: list[int]) -> np.ndarray:
    import mlx.core as mx
    module = importlib.import_module(f"mlx_lm.models.{MLX_MODULES[spec.arch]}")
    rope = spec.config["rope_parameters"]
    config = {**spec.config, "model_type": MLX_MODULES[spec.arch]}
    weights = file_weights(path, spec)
    config["vocab_size"] = len(weights["model.embed_tokens.weight"])
    config.setdefault("head_dim", spec.head_dim)
    if spec.arch == "gemma3":
        config.update(rope_theta=rope["full_attention"]["rope_theta"], sliding_window_pattern=6,
                      rope_local_base_freq=rope["sliding_attention"]["rope_theta"])
        del config["layer_types"]
        weights = {n: w - n.endswith("norm.weight") for n, w in weights.items()}
    else:
        config["rope_theta"] = rope["rope_theta"]
        if rope["rope_type"] != "default":
            config["rope_scaling"] = rope
    model = module.Model(module.ModelArgs.from_dict(config))
    arrays = {name: mx.array(value.astype(np.float32)) for name, value in weights.items()}
    model.load_weights(list(model.sanitize(arrays).items() if hasattr(model, "sanitize")
                            else arrays.items()))
    return np.array(model(mx.array([tokens]))[0])


class GeluOfF16(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded = torch.nn.functional.gelu(x.to(torch.float16).to(x.dtype), approximate="tanh")
        rounded = rounded.to(torch.float16).to(x.dtype)
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, rounded))


def look_gelu_up(model):
    for layer in model.model.layers:
        layer.mlp.act_fn = GeluOfF16()


# What an engine is known to compute otherwise; it is compared with that as well.
# Keys: architecture, engine.
KNOWN = {("gemma3", "llama_cpp"): Variant("GELU read from a table of f16", model=look_gelu_up),
         ("gemma3", "mlx_lm"): Variant("embedding scale in bf16", model=embedding_scale(5.65625))}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    engines = {"llama_cpp": run_llama_cpp, "mlx_lm": run_mlx}
    engines = {name: run for name, run in engines.items() if importlib.util.find_spec(name)}
    for spec in MODELS:
        golden = json.loads((folder / f"{spec.name}.json").read_text(encoding="utf-8"))
        for name, run in engines.items():
            logits = run(folder / f"{spec.name}.gguf", spec, golden["tokens"])
            error = np.abs(logits[golden["positions"]] - np.array(golden["logits"])).max()
            line = f"{spec.name}: {name} differs by {error:.1e}"
            if (known := KNOWN.get((spec.arch, name))) is not None:
                same, _ = run_model(spec, make_weights(spec), known)
                line += f"; with {known.name} by {np.abs(logits - same).max():.1e}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
