"""Compiles the extension for in-place appends against the installed MLX.

usage: python -m kvik.mlx.build [--force] [--compiler CXX] [--nanobind FOLDER]

Needs a C++20 compiler and the nanobind that MLX was built with (headers and sources, from the
package of that name; the error says which version). The result goes to the cache folder
($KVIK_CACHE_DIR, else $XDG_CACHE_HOME/kvik, else ~/.cache/kvik), for this MLX and this Python.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import mlx.core as mx

from . import extension
from .extension import ExtensionError

# nanobind's version by the number at the end of its ABI tag.
NANOBIND_BY_INTERNALS = {21: "nanobind==2.15.0", 22: "nanobind==3.1.0"}


def mlx_root():
    return pathlib.Path(mx.__file__).parent


def internals_version(folder):
    """The number of nanobind's internals in its sources, or None."""
    source = folder / "src" / "nb_internals.h"
    if not source.exists():
        return None
    found = re.search(r"define\s+NB_INTERNALS_VERSION\s+(\d+)", source.read_text())
    return int(found.group(1)) if found else None


def find_nanobind(folder=None):
    """The folder of a nanobind that shares types with MLX. Raises ExtensionError."""
    wanted = int(extension.nanobind_abi().rpartition("_v")[2])
    package = NANOBIND_BY_INTERNALS.get(wanted, f"a nanobind whose internals have version {wanted}")
    remedy = f"MLX {mx.__version__} needs {package}: pip install '{package}'"
    if folder is None:
        spec = importlib.util.find_spec("nanobind")
        if spec is None or not spec.submodule_search_locations:
            raise ExtensionError(f"nanobind is not installed; {remedy}")
        folder = spec.submodule_search_locations[0]
    folder = pathlib.Path(folder)
    if internals_version(folder) != wanted:
        raise ExtensionError(
            f"{folder} has internals {internals_version(folder)}, not {wanted}; {remedy}"
        )
    return folder


def compile_command(compiler, nanobind, target):
    root = mlx_root()
    include = [
        root / "include",
        nanobind / "include",
        nanobind / "ext" / "robin_map" / "include",
        sysconfig.get_path("include"),
    ]
    return [
        compiler,
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-w",
        "-DNDEBUG",
        "-DNB_DOMAIN=mlx",
        "-DNB_COMPACT_ASSERTIONS",
        f"-DKVIK_MODULE={extension.MODULE}",
        f"-I{extension.SOURCE.parent}",
        *(f"-I{path}" for path in include),
        str(extension.SOURCE),
        str(nanobind / "src" / "nb_combined.cpp"),
        f"-L{root / 'lib'}",
        "-lmlx",
        f"-Wl,-rpath,{root / 'lib'}",
        "-o",
        str(target),
    ]


def build(force=False, compiler=None, nanobind=None):
    """Compiles and checks the extension; returns its path. Raises ExtensionError."""
    if not sys.platform.startswith("linux"):
        raise ExtensionError("the extension is for MLX's CPU back end on Linux")
    path = extension.extension_path()
    if path.exists() and not force:
        return path
    compiler = (
        compiler
        or os.environ.get("CXX")
        or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    )
    if compiler is None or shutil.which(compiler) is None:
        raise ExtensionError(
            "no C++ compiler was found; install one (Debian: g++) or give --compiler"
        )
    nanobind = find_nanobind(nanobind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
        target = pathlib.Path(folder) / path.name
        done = subprocess.run(
            compile_command(compiler, nanobind, target), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ExtensionError(f"{compiler} failed:\n{done.stderr.strip()}")
        # In a process of its own: a module that does not fit could take this one down.
        check = "import sys; from kvik.mlx import extension; extension.load(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", check, str(target)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ExtensionError(
                f"the extension was built and does not work:\n{done.stderr.strip()}"
            )
        os.replace(target, path)
    return path


def main():
    parser = argparse.ArgumentParser(
        prog="python -m kvik.mlx.build", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--force", action="store_true", help="build again what is there already")
    parser.add_argument("--compiler", help="C++ compiler (default: $CXX, c++, g++, clang++)")
    parser.add_argument("--nanobind", help="folder of nanobind (default: the installed package)")
    arguments = parser.parse_args()
    try:
        print(build(arguments.force, arguments.compiler, arguments.nanobind))
    except ExtensionError as error:
        print(f"kvik.mlx.build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
