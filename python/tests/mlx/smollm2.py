"""SmolLM2's weights from its GGUF file in a model of mlx-lm."""

import pathlib
import sys

import mlx.core as mx
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from fetching import cache_dir  # noqa: E402

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

# Names of a block's tensors in the file and in mlx-lm's model.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def path():
    """Where scripts/fetch-model smollm2 leaves the file."""
    return cache_dir() / FILE


def _name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_BLOCK[part]}.{kind}"


def load(dtype=mx.float32):
    """The model with its real weights, dequantised to dtype."""
    from gguf import GGUFReader, dequantize
    from mlx_lm.models.llama import Model, ModelArgs

    reader = GGUFReader(str(path()))

    def field(name):
        return reader.fields[f"llama.{name}"].contents()

    args = ModelArgs(
        model_type="llama",
        hidden_size=field("embedding_length"),
        num_hidden_layers=field("block_count"),
        intermediate_size=field("feed_forward_length"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        vocab_size=field("vocab_size"),
        rope_theta=field("rope.freq_base"),
        # The file's query and key rows are in the order of interleaved rotation.
        rope_traditional=True,
        tie_word_embeddings=True,
    )
    model = Model(args)
    weights = []
    for tensor in reader.tensors:
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        array = array.reshape([int(n) for n in reversed(tensor.shape)])
        weights.append((_name(tensor.name), mx.array(array).astype(dtype)))
    model.load_weights(weights, strict=True)
    mx.eval(model.parameters())
    return model
