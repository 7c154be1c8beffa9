"""The names of the ways to cut new rows from a lazy graph, and meta states.

Under MLX all modes do the same: rows are copied into the cache when the graph runs, so that the
graph of earlier steps is never kept.
"""

MODES = ("eval_only", "contiguous_eval", "selected_slice_contiguous_eval", "metal_copy_leaf")


def parse_mode(mode):
    """Trims, lowers the case and reads '-' as '_'. Raises ValueError that lists the modes."""
    name = str(mode).strip().lower().replace("-", "_")
    if name not in MODES:
        raise ValueError(f"unknown mode '{mode}'; supported modes: {', '.join(MODES)}")
    return name


def parse_meta(meta, first_name):
    """The meta state (first, offset[, mode]) as numbers; None where it is empty. Raises
    ValueError."""
    if meta is None or len(meta) == 0:
        return None
    if isinstance(meta, str) or len(meta) not in (2, 3):
        raise ValueError(
            f"a meta state is ({first_name}, offset) or ({first_name}, offset, mode), not {meta!r}"
        )
    try:
        first, offset = int(meta[0]), int(meta[1])
    except ValueError:
        raise ValueError(
            f"{first_name} and offset of a meta state are whole numbers, not {meta!r}"
        ) from None
    if first < 1:
        raise ValueError(f"{first_name} is at least 1, not {first}")
    return first, offset, parse_mode(meta[2]) if len(meta) == 3 else None
