"""Arguments that are numbers, with errors that name them."""

import operator


def whole(value, name):
    """The int; MLX's and NumPy's are taken. Raises TypeError for another type, bool among them."""
    if not isinstance(value, bool):
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def number(value, name):
    """The float. Raises TypeError for another type, ValueError where it is not finite."""
    if isinstance(value, (str, bytes, bool, complex)):
        raise TypeError(f"{name} must be a float, not {type(value).__name__}")
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a float, not {type(value).__name__}") from None
    if not abs(value) < 3.4028236e38:
        raise ValueError(f"{name} is {value}; it must be finite as a float32")
    return value
