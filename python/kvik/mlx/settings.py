"""The settings of a cache inside its state.

mlx-lm writes the state of a cache to a file, and nothing else, so what the rows mean (their format)
and how they are attended to (window, route) must be in the state. It is one more array there, of
uint8: a JSON object in UTF-8, as an array goes through every layout of files.

    {"kvik": 1, "keywords": {...}, "codes": {...}}

keywords are arguments of the constructor; codes, where the first two arrays of the state are codes
and not rows, is what export_codes says of them.
"""

import json

import mlx.core as mx
import numpy as np

VERSION = 1


def pack(keywords, codes=None):
    """The array of a state."""
    content = {"kvik": VERSION, "keywords": keywords}
    if codes is not None:
        content["codes"] = codes
    return mx.array(np.frombuffer(json.dumps(content).encode(), np.uint8))


def is_packed(item):
    """Whether an item of a state is what pack() gave."""
    return isinstance(item, mx.array) and item.dtype == mx.uint8 and item.ndim == 1


def unpack(item):
    """(keywords, codes or None). Raises ValueError for what pack() never gives."""
    try:
        content = json.loads(bytes(np.array(item)).decode())
        version, keywords = content["kvik"], content["keywords"]
        codes = content.get("codes")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("the settings in a state are no settings of a cache of Kvik") from None
    if version != VERSION:
        raise ValueError(f"a state has settings of version {version}; this kvik reads {VERSION}")
    if not isinstance(keywords, dict) or not isinstance(codes, (dict, type(None))):
        raise ValueError("the settings in a state are no settings of a cache of Kvik")
    return keywords, codes
