#!/usr/bin/env python3
"""Writes the vocabulary of a GGUF file as JSON, for the golden tests of the tokenizer.

Usage: export_vocabulary.py MODEL.gguf OUT.json. Needs the PyPI packages gguf and numpy.
"""
import json
import sys

from gguf import GGUFReader

KEYS = {
    "model": "model",
    "pre": "pre",
    "pieces": "tokens",
    "scores": "scores",
    "token_types": "token_type",
    "merges": "merges",
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unknown": "unknown_token_id",
    "padding": "padding_token_id",
    "add_bos": "add_bos_token",
    "add_eos": "add_eos_token",
}


def main():
    fields = GGUFReader(sys.argv[1]).fields
    vocabulary = {}
    for name, key in KEYS.items():
        field = fields.get(f"tokenizer.ggml.{key}")
        if field is not None:
            vocabulary[name] = field.contents()
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        vocabulary["chat_template"] = template.contents()
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump(vocabulary, out, ensure_ascii=True)


if __name__ == "__main__":
    main()
