"""Warnings of kvik."""


class FallbackWarning(RuntimeWarning):
    """A call was served in another way than asked for; given once per process and kind."""
