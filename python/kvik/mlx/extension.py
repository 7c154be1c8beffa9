"""The optional extension for in-place appends: where it is kept, and loading it.

``python -m kvik.mlx.build`` compiles it for the MLX that is installed. The file's name carries the
versions that it depends on, so that another MLX or Python never loads it.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import sysconfig
import warnings

import mlx.core as mx

SOURCE = pathlib.Path(__file__).with_name("append_extension.cc")
HEADERS = sorted(SOURCE.parent.glob("*.h"))
MODULE = "kvik_mlx_append"


class ExtensionError(RuntimeError):
    """The extension cannot be built or loaded; the text says why and what helps."""


def cache_dir():
    """Folder of compiled extensions: $KVIK_CACHE_DIR, else $XDG_CACHE_HOME/kvik, else
    ~/.cache/kvik."""
    if os.environ.get("KVIK_CACHE_DIR"):
        root = pathlib.Path(os.environ["KVIK_CACHE_DIR"]).absolute()
    elif os.environ.get("XDG_CACHE_HOME"):
        root = pathlib.Path(os.environ["XDG_CACHE_HOME"]).absolute() / "kvik"
    else:
        root = pathlib.Path.home() / ".cache" / "kvik"
    return root / "mlx-extension"


@functools.cache
def nanobind_abi():
    """The tag of the nanobind that MLX was built with, such as '..._v22': modules of one tag share
    types."""
    data = pathlib.Path(mx.__file__).read_bytes()
    found = set(re.findall(rb"nanobind_[a-z0-9_]+_v[0-9]+", data)) or set(
        re.findall(rb"v[0-9]+_[a-z_]*(?:gxx|libcpp)[a-z0-9_]*", data)
    )
    if len(found) != 1:
        raise ExtensionError(f"cannot tell which nanobind MLX {mx.__version__} was built with")
    return found.pop().decode()


def extension_path():
    """Where the extension for this MLX, this Python and this source lies or would lie."""
    key = "\n".join((mx.__version__, nanobind_abi(), sysconfig.get_config_var("SOABI") or ""))
    texts = b"".join(path.read_bytes() for path in (SOURCE, *HEADERS))
    digest = hashlib.sha256(key.encode() + texts).hexdigest()[:16]
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    return cache_dir() / f"mlx-{mx.__version__}-{digest}" / f"{MODULE}{suffix}"


def load(path):
    """Imports the extension and checks that it fits the running MLX. Raises ExtensionError."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        built_for = ".".join(map(str, module.built_for))
        if built_for != mx.__version__ or module.running_with != mx.__version__:
            raise ExtensionError(f"it was built for MLX {built_for}, not {mx.__version__}")
        if not module.has_expected_buffers():
            raise ExtensionError(
                f"MLX {mx.__version__} keeps its buffers in another way than expected"
            )
        # A type that crosses the border both ways shows that the two modules share them.
        rows = mx.zeros((1, 1, 1, 1))
        if module.TailRegion(rows, 1, 1).append(rows, None, 0).shape != (1, 1, 1, 1):
            raise ExtensionError("its arrays are not MLX's")
    except (ImportError, TypeError) as error:
        raise ExtensionError(f"it does not load: {error}") from error
    return module


@functools.cache
def append_extension():
    """The extension's module, or None without one; says once which it is when there is none."""
    if os.environ.get("KVIK_MLX_EXTENSION", "").strip().lower() in ("0", "off", "no", "false"):
        return None
    if mx.default_device().type != mx.cpu:
        return None
    remedy = "appends go through MLX's slice updates, which copy a cache whose arrays are held"
    try:
        path = extension_path()
        if not path.exists():
            warnings.warn(
                f"kvik: no extension for MLX {mx.__version__}: {remedy}; "
                "run `python -m kvik.mlx.build`",
                stacklevel=2,
            )
            return None
        return load(path)
    except ExtensionError as error:
        warnings.warn(f"kvik: the extension for MLX is not used, {error}: {remedy}", stacklevel=2)
        return None
