#!/usr/bin/env python3
"""Writes tests/golden/tiny_models/: small GGUF files of random weights, and their logits.

The logits come from the model code of transformers on torch, run in double throughout, so that a
forward pass can be checked against code that is not Kvik's. The same weights go to both: matrices
are rounded to f16 first, vectors are f32. The files carry the names, keys and row order that
llama.cpp's convert_hf_to_gguf.py writes. Everything is seeded: a second run writes the same bytes.
"""
import argparse
import contextlib
import copy
import dataclasses
import importlib.metadata
import json
import math
import pathlib
import sys
from typing import Any, Callable

import gguf
import numpy as np
import torch
import transformers

from tiny_model_specs import MODELS, Spec, Variant

END = "<|end|>"
SPACE = "\u2581"


# ---------------------------------------------------------------------------------- random weights

class Draws:
    """Nearly normal numbers that depend on the seed alone: sums of four uniform ones."""

    def __init__(self, seed: int):
        self.bits = np.random.PCG64(seed)

    def uniform(self, shape) -> np.ndarray:
        count = math.prod(shape)
        return ((self.bits.random_raw(count) >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def normal(self, shape, deviation: float) -> np.ndarray:
        return (self.uniform((4, *shape)).sum(axis=0) - 2) * (math.sqrt(3) * deviation)

    def matrix(self, rows: int, cols: int, deviation: float) -> np.ndarray:
        return self.normal((rows, cols), deviation).astype(np.float16).astype(np.float32)

    def vector(self, size: int, low: float, high: float) -> np.ndarray:
        # Multiples of 2^-12 between 0 and 4, so that w and w - 1 are both exact in float32.
        steps = np.round((low + (high - low) * self.uniform((size,))) * 4096)
        return steps.astype(np.float32) / 4096


def make_weights(spec: Spec) -> dict[str, np.ndarray]:
    """By the names of transformers. Norms hold what the activations are multiplied by."""
    draws = Draws(spec.seed)
    c = spec.config
    width, ffn = c["hidden_size"], c["intermediate_size"]
    dim, heads, kv_heads = spec.head_dim, c["num_attention_heads"], c["num_key_value_heads"]
    # Normed rows have dims near 1, so scores of deviation `spread`^2; with q and k norms the norms
    # set it.
    spread = 1.0 if spec.qk_norm else spec.score_spread
    weights = {"model.embed_tokens.weight": draws.matrix(vocabulary_size(spec), width, 0.5)}

    def linear(name: str, rows: int, cols: int, gain: float):
        weights[name] = draws.matrix(rows, cols, gain / math.sqrt(cols))

    def norm(name: str, size: int, low=0.5, high=1.5):
        weights[name] = draws.vector(size, low, high)

    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        attention = layer + "self_attn."
        norm(layer + "input_layernorm.weight", width)
        for part, rows, gain in (("q", heads * dim, spread), ("k", kv_heads * dim, spread),
                                 ("v", kv_heads * dim, 1.5)):
            linear(attention + f"{part}_proj.weight", rows, width, gain)
            if spec.qkv_bias:
                weights[attention + f"{part}_proj.bias"] = draws.vector(rows, 0, 2) - 1
            if spec.qk_norm and part != "v":
                norm(attention + f"{part}_norm.weight", dim, 0.25, 2.5)
        linear(attention + "o_proj.weight", width, heads * dim, 1.5)
        norm(layer + "post_attention_layernorm.weight", width)
        if spec.post_norms:
            norm(layer + "pre_feedforward_layernorm.weight", width)
            norm(layer + "post_feedforward_layernorm.weight", width)
        linear(layer + "mlp.gate_proj.weight", ffn, width, 1.5)
        linear(layer + "mlp.up_proj.weight", ffn, width, 1.0)
        linear(layer + "mlp.down_proj.weight", width, ffn, 1.5)
    norm("model.norm.weight", width)
    if not c["tie_word_embeddings"]:
        linear("lm_head.weight", vocabulary_size(spec), width, 2.5)
    return weights


def make_prompt(spec: Spec) -> list[int]:
    words = np.random.PCG64(spec.seed + 1000).random_raw(spec.prompt_length)
    return [int(word % np.uint64(vocabulary_size(spec))) for word in words]


# ------------------------------------------------------------------------------------ vocabularies

@dataclasses.dataclass
class Tokens:
    pieces: list[str]
    types: list[int]
    merges: list[str] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where it prints, else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    result, following = [], 0x100
    for byte in range(256):
        if byte in printable:
            result.append(chr(byte))
        else:
            result.append(chr(following))
            following += 1
    return result


def bpe_tokens() -> Tokens:
    letters = byte_alphabet()
    space = letters[0x20]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    return Tokens(letters + [END, "th", space + "th"], [normal] * 256 + [control] + [normal] * 2,
                  merges=["t h", f"{space} th"])


def spm_tokens() -> Tokens:
    merged = ["th", "he", "the", SPACE + "the", SPACE, "e", "t", "h", "a", "n"]
    kinds = gguf.TokenType
    return Tokens(
        ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + merged,
        [kinds.CONTROL] * 3 + [kinds.UNKNOWN] + [kinds.BYTE] * 256 + [kinds.NORMAL] * len(merged),
        scores=[0.0] * 260 + [-float(i) for i in range(len(merged))])


def tokens_of(spec: Spec) -> Tokens:
    return spm_tokens() if spec.arch == "gemma3" else bpe_tokens()


def vocabulary_size(spec: Spec) -> int:
    return len(tokens_of(spec).pieces)


# -------------------------------------------------------------------------------------------- GGUF

TENSOR_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
OUTER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm",
               "lm_head": "output"}


def gguf_name(spec: Spec, name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.{kind}"
    _, _, index, rest = stem.split(".", 3)
    # The same name means the norm before the feed-forward part, or one after attention.
    inner = {"post_attention_layernorm": "post_attention_norm" if spec.post_norms else "ffn_norm",
             "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm"}.get(rest) or TENSOR_NAMES[rest]
    return f"blk.{index}.{inner}.{kind}"


def halves_to_neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (i, i + dim / 2) of each head become rows (2i, 2i + 1)."""
    paired = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def neighbours_to_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def repair(spec: Spec, weights: dict, order: Callable) -> dict:
    """`weights` with the rows of q and k (and what belongs to them) in another order."""
    result = dict(weights)
    for name, value in weights.items():
        for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            if f"self_attn.{part}_proj." in name:
                result[name] = order(value, spec.config[heads])
            elif f"self_attn.{part}_norm." in name:
                result[name] = order(value, 1)
    return result


def llama3_divisors(spec: Spec) -> np.ndarray:
    """What divides each pair's frequency, in float32 arithmetic as the converter does it."""
    rope = spec.config["rope_parameters"]
    f32 = np.float32
    exponents = np.arange(0, spec.head_dim, 2, dtype=f32) / f32(spec.head_dim)
    frequencies = f32(1) / f32(rope["rope_theta"]) ** exponents
    factor, low, high = (rope[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rope["original_max_position_embeddings"]
    divisors = []
    for wavelength in f32(2 * math.pi) / frequencies:
        if wavelength < original / high:
            divisors.append(1)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (f32(original) / wavelength - f32(low)) / f32(high - low)
            divisors.append(f32(1) / ((f32(1) - smooth) / f32(factor) + smooth))
    return np.array(divisors, dtype=f32)


def add_metadata(writer: gguf.GGUFWriter, spec: Spec):
    c = spec.config
    writer.add_type("model")
    writer.add_name(f"Kvik tiny {spec.name}")
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    rope = c["rope_parameters"]
    rope = rope.get("full_attention", rope)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if "head_dim" in c:
        writer.add_key_length(c["head_dim"])
        writer.add_value_length(c["head_dim"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if spec.arch == "llama":
        writer.add_vocab_size(vocabulary_size(spec))
        writer.add_rope_dimension_count(spec.head_dim)
    if spec.arch == "gemma3":
        writer.add_sliding_window(c["sliding_window"])
        local_base = c["rope_parameters"]["sliding_attention"]["rope_theta"]
        if local_base != 10000:  # the default; older converters write none
            writer.add_rope_freq_base_swa(local_base)


def add_tokenizer(writer: gguf.GGUFWriter, spec: Spec):
    tokens = tokens_of(spec)
    writer.add_tokenizer_model("llama" if spec.arch == "gemma3" else "gpt2")
    writer.add_tokenizer_pre(spec.pre)
    writer.add_token_list(tokens.pieces)
    if tokens.scores:
        writer.add_token_scores(tokens.scores)
    writer.add_token_types(tokens.types)
    if tokens.merges:
        writer.add_token_merges(tokens.merges)
    if spec.arch == "gemma3":
        writer.add_bos_token_id(tokens.pieces.index("<bos>"))
        writer.add_eos_token_id(tokens.pieces.index("<eos>"))
        writer.add_unk_token_id(tokens.pieces.index("<unk>"))
        writer.add_pad_token_id(tokens.pieces.index("<pad>"))
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(False)
    else:
        writer.add_eos_token_id(tokens.pieces.index(END))
        writer.add_add_bos_token(False)


def write_gguf(path: pathlib.Path, spec: Spec, weights: dict[str, np.ndarray]):
    writer = gguf.GGUFWriter(path, spec.arch)
    add_metadata(writer, spec)
    add_tokenizer(writer, spec)
    if spec.arch == "llama":
        weights = repair(spec, weights, halves_to_neighbours)
    if spec.rope_type == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(spec))
    for name, value in weights.items():
        stored = value.astype(np.float16) if value.ndim == 2 else value
        assert (stored.astype(np.float32) == value).all(), name
        writer.add_tensor(gguf_name(spec, name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ------------------------------------------------------------------------------------ transformers

@contextlib.contextmanager
def all_in_double():
    """The models' own code asks for float32 in places (norms, softmax, angles); give it double."""
    saved = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float, _ = saved
        torch.set_default_dtype(saved[3])


CONFIGS = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
           "qwen3": transformers.Qwen3Config, "gemma3": transformers.Gemma3TextConfig}


def build(spec: Spec, weights: dict, config: dict, dtype: torch.dtype):
    hf_config = CONFIGS[spec.arch](vocab_size=vocabulary_size(spec), pad_token_id=None,
                                   bos_token_id=None, eos_token_id=None, **copy.deepcopy(config))
    hf_config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager",
                                                          dtype=dtype)
    state = {}
    for name, value in weights.items():
        # Gemma's norms multiply by 1 + the weight.
        is_shifted = spec.arch == "gemma3" and name.endswith("norm.weight")
        state[name] = torch.tensor(value - 1 if is_shifted else value, dtype=dtype)
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = ["lm_head.weight"] if config["tie_word_embeddings"] else []
    assert sorted(missing) == tied and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def run_model(spec: Spec, weights: dict, variant: Variant = Variant("as it is"), double=True):
    """Logits [tokens, vocabulary] and each layer's attention weights [heads, tokens, tokens]."""
    config = {**spec.config, **variant.config}
    if variant.weights is not None:
        weights = variant.weights(spec, dict(weights))
    with all_in_double() if double else contextlib.nullcontext(), torch.inference_mode():
        model = build(spec, weights, config, torch.float64 if double else torch.float32)
        if variant.model is not None:
            variant.model(model)
        result = model(torch.tensor([make_prompt(spec)]), output_attentions=True, use_cache=False)
        logits = result.logits[0].numpy()
        assert logits.dtype == (np.float64 if double else np.float32)
        return logits, [layer[0].numpy() for layer in result.attentions]


# ----------------------------------------------------------------------------------------- measure

def attention_figures(attentions: list[np.ndarray]) -> dict[str, float]:
    """Entropy of rows with at least 8 keys, over that of equal weights; share of rows that are
    nearly one key."""
    evenness, peaks = [], []
    for layer in attentions:
        for row in range(8, layer.shape[1]):
            p = layer[:, row, :row + 1]
            keys = (p > 0).sum(axis=1)
            entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
            evenness.extend(entropy / np.log(keys))
            peaks.extend(p.max(axis=1))
    return {"evenness": float(np.mean(evenness)), "one_key": float(np.mean(np.array(peaks) > 0.95))}


def variants_of(spec: Spec) -> list[Variant]:
    other = neighbours_to_halves if spec.arch != "llama" else halves_to_neighbours
    pairs = Variant("rope turns the other pairs", weights=lambda s, w: repair(s, w, other))
    return [pairs, *spec.variants]


@dataclasses.dataclass
class Measured:
    spec: Spec
    file_bytes: int
    f32_error: float
    deviation: float
    attention: dict[str, float]
    moved: list[tuple[str, float]]


def make(spec: Spec, out: pathlib.Path) -> Measured:
    weights = make_weights(spec)
    write_gguf(out / f"{spec.name}.gguf", spec, weights)
    logits, attentions = run_model(spec, weights)
    f32, _ = run_model(spec, weights, double=False)
    prompt = make_prompt(spec)
    positions = sorted({*spec.positions, len(prompt) - 1})
    data: dict[str, Any] = {"model": f"{spec.name}.gguf", "tokens": prompt, "positions": positions}
    rows = [[float(f"{x:.9g}") for x in logits[p]] for p in positions]
    with open(out / f"{spec.name}.json", "w", encoding="utf-8") as file:
        head = json.dumps(data)[1:-1]
        lines = ",\n".join("  " + json.dumps(row) for row in rows)
        file.write("{" + head.replace(', "', ',\n "') + f',\n "logits": [\n{lines}\n ]}}\n')
    moved = []
    for variant in variants_of(spec):
        changed, _ = run_model(spec, weights, variant)
        # At the positions that the file holds: the largest change of any value.
        moved.append((variant.name, float(np.abs(changed - logits)[positions].max())))
    return Measured(spec, (out / f"{spec.name}.gguf").stat().st_size,
                    float(np.abs(f32 - logits).max()), float(logits[positions].std()),
                    attention_figures(attentions), moved)


def tables(measured: list[Measured]) -> str:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}"
                         for p in ("torch", "transformers", "gguf", "numpy"))
    lines = [f"Versions: {versions}.", "",
             "| model | bytes | deviation of the logits | evenness of attention | rows on one key "
             "| float32 against double |", "|---|---|---|---|---|---|"]
    for m in measured:
        lines.append(f"| {m.spec.name} | {m.file_bytes:,} | {m.deviation:.2f} "
                     f"| {m.attention['evenness']:.2f} | {100 * m.attention['one_key']:.1f} % "
                     f"| {m.f32_error:.1e} |")
    lines += ["", "| model | what is left out or wrong | largest change of a logit |",
              "|---|---|---|"]
    for m in measured:
        lines += [f"| {m.spec.name} | {name} | {change:.2g} |" for name, change in m.moved]
    return "\n".join(lines)


def update_readme(path: pathlib.Path, text: str):
    begin, end = "<!-- measured -->\n", "\n<!-- end -->"
    old = path.read_text(encoding="utf-8") if path.exists() else begin + end
    head, _, rest = old.partition(begin)
    path.write_text(head + begin + text + end + rest.partition(end)[2], encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder to write to; the part of its "
                        "README.md between the marks `measured` and `end` is written anew")
    parser.add_argument("--only", metavar="NAME", choices=[m.name for m in MODELS],
                        help="write one model and print its figures; the README stays")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # one order of every sum
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [m for m in MODELS if args.only in (None, m.name)]
    text = tables([make(spec, args.out) for spec in chosen])
    if args.only is None:
        update_readme(args.out / "README.md", text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
