"""The models that make_tiny_models.py writes, and what may be left out of each to see it matter."""
import dataclasses
from typing import Callable

import torch


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model with something left out: other configuration, weights, or a changed module tree."""
    name: str
    config: dict = dataclasses.field(default_factory=dict)
    weights: Callable | None = None
    model: Callable | None = None


@dataclasses.dataclass(frozen=True)
class Spec:
    name: str
    arch: str  # general.architecture
    seed: int
    config: dict  # of transformers
    prompt_length: int
    positions: tuple  # whose logits are kept, beside the last
    pre: str  # tokenizer.ggml.pre
    score_spread: float = 1.4
    variants: tuple = ()

    @property
    def head_dim(self) -> int:
        even = self.config["hidden_size"] // self.config["num_attention_heads"]
        return self.config.get("head_dim", even)

    @property
    def rope_type(self) -> str:
        rope = self.config["rope_parameters"]
        return rope.get("full_attention", rope)["rope_type"]

    @property
    def qkv_bias(self) -> bool:
        return self.arch == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.arch in ("qwen3", "gemma3")

    @property
    def post_norms(self) -> bool:
        return self.arch == "gemma3"


def config(width, ffn, layers, heads, kv_heads, context, *, rope, epsilon=1e-5, tied=True, **more):
    return dict(hidden_size=width, intermediate_size=ffn, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv_heads,
                max_position_embeddings=context, rms_norm_eps=epsilon, tie_word_embeddings=tied,
                rope_parameters=rope, **more)


def plain(base):
    return {"rope_type": "default", "rope_theta": base}


def rope_variant(name, rope):
    return Variant(name, config={"rope_parameters": rope})


# ----------------------------------------------------------------------------------------- changes

def heads_by_remainder(spec, weights):
    """As if query head h read KV head h mod kv_heads, not h div group."""
    heads, kv_heads = spec.config["num_attention_heads"], spec.config["num_key_value_heads"]
    order = sorted(range(heads), key=lambda h: h % kv_heads)
    for name, value in weights.items():
        if "q_proj.weight" in name:
            weights[name] = value.reshape(heads, spec.head_dim, -1)[order].reshape(value.shape)
        elif "o_proj.weight" in name:
            columns = value.reshape(-1, heads, spec.head_dim)
            weights[name] = columns[:, order].reshape(value.shape)
    return weights


def output_is_embedding(spec, weights):
    del spec
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


def without_bias(part):
    def change(spec, weights):
        del spec
        return {name: value * (f"{part}_proj.bias" not in name) for name, value in weights.items()}
    return Variant(f"no bias of {part}", weights=change)


def norms_less_one(spec, weights):
    del spec
    return {name: value - name.endswith("norm.weight") for name, value in weights.items()}


def without(*modules):
    def change(model):
        for layer in model.model.layers:
            for path in modules:
                parent, _, leaf = path.rpartition(".")
                setattr(layer.get_submodule(parent), leaf, torch.nn.Identity())
    return change


def scaled_by_width(model):
    """Scores over sqrt(embedding / heads), not sqrt(head_dim)."""
    c = model.config
    for layer in model.model.layers:
        layer.self_attn.scaling = (c.hidden_size / c.num_attention_heads) ** -0.5


def embedding_scale(value):
    def change(model):
        model.model.embed_tokens.embed_scale.fill_(value)
    return change


# ------------------------------------------------------------------------------------------ models

LLAMA = dict(arch="llama", pre="smollm")
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
GEMMA_ROPE = {"full_attention": plain(1e6), "sliding_attention": plain(1e4)}
GEMMA_LAYERS = ["full_attention" if i == 5 else "sliding_attention" for i in range(7)]

MODELS = [
    Spec("llama-gqa1", seed=1, **LLAMA, prompt_length=48, positions=(0, 1, 17),
         config=config(32, 72, 4, 4, 4, 512, rope=plain(10000.0))),
    Spec("llama-gqa4", seed=2, **LLAMA, prompt_length=56, positions=(0, 15, 40),
         config=config(32, 64, 3, 8, 2, 512, rope=plain(100000.0), head_dim=16),
         variants=(Variant("query head h reads KV head h mod 2", weights=heads_by_remainder),
                   Variant("scores over sqrt(embedding / heads)", model=scaled_by_width))),
    Spec("llama-mqa8", seed=3, **LLAMA, prompt_length=56, positions=(0, 15, 40),
         config=config(64, 56, 2, 8, 1, 512, rope=plain(10000.0), epsilon=1e-6)),
    Spec("llama-untied", seed=4, **LLAMA, prompt_length=44, positions=(0, 16, 31),
         config=config(32, 96, 3, 2, 1, 512, rope=plain(50000.0), tied=False),
         variants=(Variant("output is the embedding", weights=output_is_embedding),)),
    Spec("llama-linear", seed=5, **LLAMA, prompt_length=80, positions=(1, 20, 50),
         config=config(32, 80, 3, 2, 1, 1024, rope=LINEAR),
         variants=(rope_variant("no scaling", plain(10000.0)),
                   rope_variant("factor 2", {**LINEAR, "factor": 2.0}))),
    Spec("llama-yarn", seed=6, **LLAMA, prompt_length=160, positions=(1, 63, 64, 100),
         config=config(32, 64, 3, 2, 1, 256, rope=YARN, head_dim=32),
         variants=(rope_variant("no scaling", plain(10000.0)),
                   rope_variant("linear, factor 4", LINEAR),
                   rope_variant("no attention factor", {**YARN, "attention_factor": 1.0}),
                   rope_variant("original context 256",
                                {**YARN, "original_max_position_embeddings": 256}))),
    Spec("llama3-rope", seed=7, arch="llama", pre="llama-bpe", prompt_length=80,
         positions=(1, 20, 50),
         config=config(32, 64, 3, 2, 1, 1024, rope=LLAMA3, head_dim=32),
         variants=(rope_variant("no divisors", plain(500000.0)),
                   rope_variant("every pair divided by 8",
                                {"rope_type": "linear", "rope_theta": 500000.0, "factor": 8.0}))),
    Spec("qwen2", arch="qwen2", seed=8, pre="qwen2", prompt_length=56, positions=(0, 15, 40),
         config=config(64, 40, 2, 4, 2, 512, rope=plain(1e6), epsilon=1e-6), score_spread=1.0,
         variants=(without_bias("q"), without_bias("k"), without_bias("v"))),
    Spec("qwen3", arch="qwen3", seed=9, pre="qwen2", prompt_length=56, positions=(0, 15, 40),
         config=config(32, 80, 3, 4, 2, 512, rope=plain(1e6), epsilon=1e-6, head_dim=16),
         variants=(Variant("no norm of q", model=without("self_attn.q_norm")),
                   Variant("no norm of k", model=without("self_attn.k_norm")),
                   Variant("scores over sqrt(embedding / heads)", model=scaled_by_width))),
    Spec("gemma3", arch="gemma3", seed=10, pre="default", prompt_length=100,
         positions=(0, 31, 32, 33, 64),
         config=config(32, 16, 7, 4, 1, 1024, rope=GEMMA_ROPE, epsilon=1e-6, head_dim=16,
                       query_pre_attn_scalar=16, sliding_window=32, layer_types=GEMMA_LAYERS),
         variants=(
             Variant("no window", config={"sliding_window": 1024}),
             Variant("window 31", config={"sliding_window": 31}),
             Variant("window 33", config={"sliding_window": 33}),
             Variant("every layer local", config={"layer_types": ["sliding_attention"] * 7}),
             Variant("layer 4 global, not 5", config={
                 "layer_types": [GEMMA_LAYERS[(i + 1) % 7] for i in range(7)]}),
             rope_variant("base 1e6 everywhere",
                          {**GEMMA_ROPE, "sliding_attention": plain(1e6)}),
             rope_variant("base 1e4 everywhere", {**GEMMA_ROPE, "full_attention": plain(1e4)}),
             Variant("no norm of q", model=without("self_attn.q_norm")),
             Variant("no norm of k", model=without("self_attn.k_norm")),
             Variant("no norm after attention", model=without("post_attention_layernorm")),
             Variant("no norm after the feed-forward part",
                     model=without("post_feedforward_layernorm")),
             Variant("norm weights less 1", weights=norms_less_one),
             Variant("embedding not scaled", model=embedding_scale(1.0)),
             Variant("embedding scale rounded to bf16", model=embedding_scale(5.65625)),
             Variant("SiLU for GELU", config={"hidden_activation": "silu"}),
             Variant("GELU by erf", config={"hidden_activation": "gelu"}))),
    Spec("gemma3-local-base", arch="gemma3", seed=11, pre="default", prompt_length=72,
         positions=(0, 16, 40),
         config=config(32, 16, 6, 4, 2, 512, epsilon=1e-6, head_dim=16, query_pre_attn_scalar=16,
                       rope={**GEMMA_ROPE, "sliding_attention": plain(20000.0)},
                       sliding_window=16, layer_types=GEMMA_LAYERS[:6]),
         variants=(rope_variant("local base 1e4", GEMMA_ROPE),
                   Variant("no window", config={"sliding_window": 1024}))),
]
