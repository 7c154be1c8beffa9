"""Writes a tiny llama model as a GGUF file: random weights, one token for each byte, a chat template."""

import random
import struct

U16, U32, I32, F32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
ALIGNMENT = 32

CONTEXT = 512
LAYERS = 3
WIDTH = 32
HEADS, KV_HEADS = 4, 2
HEAD_DIM = WIDTH // HEADS
FFN = 48
TEMPLATE = (
    "{% for message in messages %}{{ '<|turn|>' + message['role'] + ':' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant:' }}{% endif %}"
)


def byte_pieces():
    """The 256 pieces of byte-level vocabularies: printable bytes stand for themselves, others are moved up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(256))
    return [chr(b) if b in plain else chr(256 + next(moved)) for b in range(256)]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    if kind == STRING:
        return string(value)
    return struct.pack({U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def entry(key, kind, value):
    if isinstance(value, list):
        body = struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(scalar(kind, v) for v in value)
    else:
        body = struct.pack("<I", kind) + scalar(kind, value)
    return string(key) + body


def metadata(changes, head_dim=HEAD_DIM):
    pieces = byte_pieces() + ["<|turn|>", "<|end|>"]
    values = {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "tiny"),
        "llama.block_count": (U32, LAYERS),
        "llama.context_length": (U32, CONTEXT),
        "llama.embedding_length": (U32, WIDTH),
        "llama.feed_forward_length": (U32, FFN),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.key_length": (U32, head_dim),
        "llama.attention.value_length": (U32, head_dim),
        "llama.rope.dimension_count": (U32, head_dim),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 10000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (STRING, pieces),
        "tokenizer.ggml.token_type": (I32, [1] * 256 + [3, 3]),
        "tokenizer.ggml.merges": (STRING, []),
        "tokenizer.ggml.bos_token_id": (U32, 256),
        "tokenizer.ggml.eos_token_id": (U32, 257),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (STRING, TEMPLATE),
    }
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


def tensors(head_dim=HEAD_DIM):
    shapes = {"token_embd.weight": (WIDTH, 258), "output_norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (WIDTH,),
            f"blk.{i}.attn_q.weight": (WIDTH, HEADS * head_dim),
            f"blk.{i}.attn_k.weight": (WIDTH, KV_HEADS * head_dim),
            f"blk.{i}.attn_v.weight": (WIDTH, KV_HEADS * head_dim),
            f"blk.{i}.attn_output.weight": (HEADS * head_dim, WIDTH),
            f"blk.{i}.ffn_norm.weight": (WIDTH,),
            f"blk.{i}.ffn_gate.weight": (WIDTH, FFN),
            f"blk.{i}.ffn_up.weight": (WIDTH, FFN),
            f"blk.{i}.ffn_down.weight": (FFN, WIDTH),
        }
    return shapes


def write(path, changes=None, leave_out=(), poison=None, head_dim=HEAD_DIM):
    """`changes`: metadata by key (None: left out). `poison`: a tensor that gets a NaN. The packed formats want a
    larger `head_dim`."""
    shapes = {name: shape for name, shape in tensors(head_dim).items() if name not in leave_out}
    return write_file(path, metadata(changes or {}, head_dim), make_weights(shapes, poison))


def write_parts(folder, name, num_parts=2, changes=None):
    """The same model in several files, NAME-00001-of-00002.gguf and so on. `changes`: metadata by part, from 0."""
    weights = make_weights(tensors(), None)
    names = list(weights)
    paths = []
    for part in range(num_parts):
        values = metadata({}) if part == 0 else {}
        values |= {
            "split.no": (U16, part),
            "split.count": (U16, num_parts),
            "split.tensors.count": (I32, len(names)),
            **(changes or {}).get(part, {}),
        }
        share = {name: weights[name] for name in names[part::num_parts]}
        paths.append(write_file(folder / f"{name}-{part + 1:05}-of-{num_parts:05}.gguf", values, share))
    return paths


def make_weights(shapes, poison):
    """Shape and numbers of each tensor, by name."""
    numbers = random.Random(7)
    made = {}
    for name, shape in shapes.items():
        count = 1
        for dim in shape:
            count *= dim
        scale = 1.0 if len(shape) == 1 else shape[0] ** -0.5
        weights = [1.0 if len(shape) == 1 else numbers.gauss(0, scale) for _ in range(count)]
        if name == poison:
            weights[count // 2] = float("nan")
        made[name] = shape, weights
    return made


def write_file(path, values, weights):
    infos, data = b"", b""
    for name, (shape, numbers) in weights.items():
        data += b"\0" * (-len(data) % ALIGNMENT)
        infos += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", 0, len(data))
        data += struct.pack(f"<{len(numbers)}f", *numbers)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(values))
    head += b"".join(entry(key, kind, value) for key, (kind, value) in values.items()) + infos
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT) + data)
    return path
