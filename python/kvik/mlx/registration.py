"""Makes mlx-lm know the classes by name, as its files need: it looks them up in
mlx_lm.models.cache."""

import importlib.util


def register(*classes):
    """Adds the classes to mlx_lm.models.cache; does nothing where mlx-lm is not installed."""
    if importlib.util.find_spec("mlx_lm") is None:
        return
    import mlx_lm.models.cache as cache

    for cls in classes:
        setattr(cache, cls.__name__, cls)
