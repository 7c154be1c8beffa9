#!/usr/bin/env python3
"""Writes tests/golden/nfc/tokens.jsonl: ids that Hugging Face's tokenizers gives for texts that are not in form C.

Usage: make_nfc_tokens.py OUT. Needs the PyPI package tokenizers (committed file: 0.23.3). The tokenizer is built as
Qwen 2's is: NFC, its regular expression, byte level, merges; the vocabulary is a small one, learned from the texts.
The first line is the vocabulary; each other line has a text, its ids with whole tokens found in it ("ids_special")
and without ("ids"). A second source must agree: Python's own NFC, before the same tokenizer without a normalizer.
"""
import json
import random
import re
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool_call>"]

# All of them are older than Unicode 6, so the tables of both sides have them.
BASES = "aeiouscndAEOzg\u00e9\u00c5\u1e69\u01d6\u03b1\u03c9\u0438\u05d0\u0915\u09a1\u0a32\u0b21\u0f42\u3042\u304b\u4f60"
MARKS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030c\u0323\u0327\u0328\u0331\u0342\u0345\u05bc\u05b0\u093c\u09bc\u0a3c\u3099\u309a\u0344"
JAMO = "\u1100\u1112\u1161\u1162\u1175\u11a8\u11ab\u11c2\uac00\uac01\ud55c\ud558"
SINGLETONS = "\u212a\u212b\u2126\u0340\u0341\u0343\u0374\u037e\u0387\u1fef\u2000\u2001\u2329\u232a\uf900\ufa10\U0002f800"
EXCLUSIONS = "\u0958\u095f\u09dc\u0a33\u0f43\ufb1d\ufb2a\u2adc\U0001d15e\u0f73\u0f75\u0f81"
OTHER = " \n\r\t'.,!-7\u0663\u00bd\ufb01\u2460\uff21\u200d\U0001f600"

WRITTEN = [
    "", "caf\u00e9", "cafe\u0301", "Cafe\u0301's e\u0301 re\u0301sume\u0301", "\u212b \u212a \u2126",
    "\u1112\u1161\u11ab\u1100\u1173\u11af", "\uac00\u11a8", "\u1100\uac00\u1161", "s\u0307\u0323", "s\u0323\u0307",
    "a\u0305\u0301", "\u0301a", "\u0301", "\u0344", " \u0301 \u0301", "\n\u0301", "7\u0301", "'s\u0301", "'\u0301s",
    "e\u0301<|im_end|>\u0301e", "e<|im_end|>\u0301", "<|im_start|>\u0301<|im_end|>", "<|im_end\u0301|>",
    "<\u0338|im_end|>", "<|im_end|>\u0338", ">\u0338", "=\u0338<tool_call>\u0338", "<tool_call>e\u0301",
    "e\u0301<tool_call>", "\u1100<|im_start|>\u1161", "\ufb01 \u2460 \uff21", "\u0958\u0915\u093c",
]


def random_texts(count):
    numbers = random.Random(20)
    pools = [BASES, MARKS, MARKS, JAMO, JAMO, SINGLETONS, EXCLUSIONS, OTHER, BASES]
    for _ in range(count):
        parts = []
        for _ in range(numbers.randrange(2, 14)):
            if numbers.random() < 0.06:
                parts.append(numbers.choice(SPECIAL + USER_DEFINED))
            else:
                parts.append(numbers.choice(numbers.choice(pools)))
        yield "".join(parts)


def qwen2_like(model, normalizer=True, whole_tokens=True):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    if whole_tokens:
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in USER_DEFINED])
    return tokenizer


def learn(texts):
    """Pieces and merges: bytes, what training finds in the texts, the whole tokens at the end."""
    tokenizer = qwen2_like(models.BPE(), whole_tokens=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # A whole token must not be the result of a merge too.
    pieces_of_text = [re.sub(r"<[^ ]*?>", " ", text) for text in texts]
    tokenizer.train_from_iterator(
        pieces_of_text, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in learned["merges"]]
    pieces = alphabet + ["".join(merge.split(" ")) for merge in merges]
    assert len(set(pieces)) == len(pieces)
    return pieces + SPECIAL + USER_DEFINED, merges


def main():
    texts = WRITTEN + list(random_texts(300))
    pieces, merges = learn(texts)

    def model():
        return models.BPE(vocab={piece: i for i, piece in enumerate(pieces)},
                          merges=[tuple(merge.split(" ")) for merge in merges])

    special, plain = qwen2_like(model()), qwen2_like(model(), whole_tokens=False)
    second = qwen2_like(model(), normalizer=False, whole_tokens=False)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        header = {
            "tokenizers": tokenizers.__version__,
            "unicode_of_second_source": unicodedata.unidata_version,
            "pieces": pieces,
            "token_types": [1] * (len(pieces) - 3) + [3, 3, 4],
            "merges": merges,
        }
        out.write(json.dumps(header) + "\n")
        changed = 0
        for text in texts:
            ids = plain.encode(text).ids
            if not any(token in text for token in USER_DEFINED):
                assert second.encode(unicodedata.normalize("NFC", text)).ids == ids, ascii(text)
            changed += unicodedata.normalize("NFC", text) != text
            out.write(json.dumps({"text": text, "ids": ids, "ids_special": special.encode(text).ids}) + "\n")
    print(f"{len(texts)} texts, {changed} not in form C; tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
