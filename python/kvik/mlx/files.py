"""Prompt cache files, in both layouts that mlx-lm has had.

Both are safetensors files with one tensor per leaf of each layer's state, named by its path
("3.0"), and three items of metadata as flattened trees:

    until 0.32.1    [meta states, user metadata, class names]; a state holds arrays only
    since 0.32.2    [user metadata, class names, scalars]; a state holds its numbers too, saved as
                    arrays and listed in scalars as (path, "scalar" | "string" | "none")
"""

import inspect

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten


def _has_scalars(parts):
    """Whether three parts of metadata are of the newer layout: its last is a list of pairs after a
    ""."""
    return isinstance(parts[-1], list) and len(parts[-1]) > 0 and parts[-1][0] == ""


def _restore_scalars(arrays, scalars):
    for path, kind in scalars[1:]:
        if kind == "scalar":
            arrays[path] = arrays[path].item()
        elif kind == "string":
            arrays[path] = "".join(chr(code) for code in arrays[path].tolist())
        elif kind == "none":
            arrays[path] = None
        else:
            raise ValueError(f"the file has a scalar of unknown kind '{kind}'")


def _find_class(name):
    import mlx_lm.models.cache as cache

    cls = getattr(cache, name, None)
    if not inspect.isclass(cls) or not hasattr(cls, "from_state"):
        raise ValueError(f"the file holds a cache of class '{name}', which is not known")
    return cls


def _make_old(name, state, meta):
    """A cache of a class of mlx-lm or Kvik from an older file's state and meta state."""
    cls = _find_class(name)
    if len(inspect.signature(cls.from_state).parameters) > 1:
        return cls.from_state(state, meta)
    integers = [int(m) for m in meta] if not isinstance(meta, str) else []
    if name in ("KVCache", "ConcatenateKVCache"):
        # A state of the class as it is now carries the offset.
        state = (*state, state[0].shape[2]) if name == "KVCache" else state
    elif name == "QuantizedKVCache" and len(integers) == 3:
        state = (*state, *integers)
    elif name == "RotatingKVCache" and len(integers) == 4:
        keep, max_size, offset, index = integers
        state = (*state, offset, keep, max_size, index)
    else:
        raise ValueError(f"a {name} of the older file layout cannot be restored by this mlx-lm")
    return cls.from_state(state)


def load_prompt_cache(file_name, return_metadata=False):
    """The caches of a file of either layout; with return_metadata also the user's metadata.

    Raises ValueError for a file that is neither, names an unknown class, or holds, in the older
    layout, a cache that the installed mlx-lm has no state for.
    """
    arrays, metadata = mx.load(str(file_name), return_metadata=True)
    parts = tree_unflatten(list(metadata.items())) if metadata else []
    if not isinstance(parts, list) or len(parts) not in (2, 3):
        raise ValueError(
            f"{file_name} is not a prompt cache: its metadata has not the parts of one"
        )
    if _has_scalars(parts):
        user, names, scalars = parts
        _restore_scalars(arrays, scalars)
        states = tree_unflatten(list(arrays.items()))
        caches = [
            _find_class(name).from_state(state) for name, state in zip(names, states, strict=True)
        ]
    else:
        # Empty user metadata leaves no key behind, which unflattening shows as an empty part.
        metas, user, names = parts if len(parts) == 3 else (parts[0], {}, parts[1])
        states = tree_unflatten(list(arrays.items()))
        metas = metas if isinstance(metas, list) else [metas] * len(names)
        if len(names) != len(states):
            raise ValueError(f"{file_name} holds {len(states)} states for {len(names)} caches")
        caches = [_make_old(*item) for item in zip(names, states, metas, strict=True)]
    user = user if isinstance(user, dict) else {}
    return (caches, user) if return_metadata else caches


def save_prompt_cache(file_name, cache, metadata=None):
    """Writes the layout of the installed mlx-lm."""
    import mlx_lm.models.cache as mlx_lm_cache

    mlx_lm_cache.save_prompt_cache(str(file_name), cache, metadata)


def save_older_prompt_cache(file_name, cache, metadata=None):
    """Writes the layout of mlx-lm before 0.32.2, for caches with state and meta_state; where a
    state has no rows, arrays without elements."""
    arrays = dict(tree_flatten([c.state for c in cache]))
    arrays = {path: mx.array([]) if leaf is None else leaf for path, leaf in arrays.items()}
    names = [type(c).__name__ for c in cache]
    parts = [[c.meta_state for c in cache], metadata or {}, names]
    mx.save_safetensors(str(file_name), arrays, dict(tree_flatten(parts)))
