#!/usr/bin/env python3
"""Checks of an installed kvik; tests/install/CMakeLists.txt says how each is called."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def run(*command, **environment):
    """Runs a command and returns its output; ends the test when it fails."""
    words = [str(word) for word in command]
    result = subprocess.run(
        words, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        fail(f"{' '.join(words)}\nexit status {result.returncode}\n{result.stdout}")
    return result.stdout


def fail(message):
    print(message)
    sys.exit(1)


def expect(condition, message):
    if not condition:
        fail(message)


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def library_folder(prefix):
    found = sorted(prefix.rglob("libkvik.so"))
    expect(len(found) == 1, f"one libkvik.so expected under {prefix}, found {found}")
    return found[0].parent


def check_works(program, **environment):
    expect(run(program, **environment).strip().endswith("kvik works"), f"{program} says something else")


def prefix(options):
    fresh(options.prefix)
    run(options.cmake, "--install", options.build, "--prefix", options.prefix)


def files(options):
    """The library is versioned, and nothing but public headers is installed beside it."""
    folder = library_folder(options.prefix)
    short = ".".join(options.version.split(".")[:2])
    expect((folder / f"libkvik.so.{options.version}").is_file(), "no versioned library")
    expect(os.readlink(folder / f"libkvik.so.{short}") == f"libkvik.so.{options.version}", "no soname link")
    expect(os.readlink(folder / "libkvik.so") == f"libkvik.so.{short}", "no link for the linker")
    soname = re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "-d", folder / "libkvik.so"))
    expect(soname and soname.group(1) == f"libkvik.so.{short}", f"soname is {soname}")

    public = options.source / "include"
    wanted = {path.relative_to(public) for path in public.rglob("*.h")}
    installed = options.prefix / "include"
    found = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    expect(wanted == found, f"headers differ from include/: {sorted(map(str, wanted ^ found))}")
    inside = [path for path in options.prefix.rglob("*") if re.search(r"_test|_objects|_internal", path.name)]
    expect(not inside, f"installed without need: {inside}")
    for path in options.prefix.rglob("*"):
        if path.is_file() and path.suffix in (".cmake", ".pc"):
            expect(str(options.source) not in path.read_text(), f"{path} names the source folder")


def program(options):
    """The installed program finds the installed library, wherever the prefix was moved to."""
    moved = fresh(options.work / "program") / "moved"
    shutil.copytree(options.prefix, moved, symlinks=True)
    said = run(moved / "bin" / "kvik", "--version").strip()
    expect(said == f"kvik {options.version}", f"kvik --version says {said}")
    needed = run("ldd", moved / "bin" / "kvik")
    expect(str(moved) in needed, f"the program uses another libkvik: {needed}")


def cmake_consumer(options):
    build = fresh(options.work / "cmake_consumer")
    # Elsewhere than it was installed: a package must not remember its first place.
    moved = build / "moved"
    shutil.copytree(options.prefix, moved, symlinks=True)
    run(options.cmake, "-S", HERE / "consumer", "-B", build / "build", "-G", "Ninja",
        f"-DCMAKE_CXX_COMPILER={options.compiler}", f"-DCMAKE_PREFIX_PATH={moved}")
    run(options.cmake, "--build", build / "build")
    check_works(build / "build" / "consumer")


def pkg_config(folder, *arguments):
    return run("pkg-config", *arguments, "kvik", PKG_CONFIG_PATH=str(folder / "pkgconfig")).split()


def pkg_config_consumer(options):
    folder = library_folder(options.prefix)
    work = fresh(options.work / "pkg_config_consumer")
    expect(pkg_config(folder, "--modversion") == [options.version], "pkg-config names another version")
    [found] = pkg_config(folder, "--variable=prefix")
    expect(pathlib.Path(found).resolve() == options.prefix.resolve(), f"pkg-config names the prefix {found}")
    flags = pkg_config(folder, "--cflags", "--libs")
    run(options.compiler, "-std=c++20", HERE / "consumer" / "main.cc", "-o", work / "consumer", *flags)
    check_works(work / "consumer", LD_LIBRARY_PATH=str(folder))
    expect(pkg_config(folder, "--variable=cxx_standard") == ["20"], "pkg-config names no C++ standard")
    older = subprocess.run(
        [options.compiler, "-std=c++17", "-fsyntax-only", HERE / "consumer" / "main.cc", *flags],
        capture_output=True, text=True, check=False,
    )
    expect("error: #error" in older.stderr and "compile with -std=c++20" in older.stderr,
           f"C++17 is not refused by name:\n{older.stderr}")


def headers_alone(options):
    include = options.prefix / "include"
    headers = sorted(path.relative_to(include) for path in include.rglob("*.h"))
    expect(headers, "no header is installed")
    work = fresh(options.work / "headers_alone")
    for header in headers:
        source = work / "alone.cc"
        # Twice, so that a missing guard shows too.
        source.write_text(f"#include <{header}>\n" * 2)
        run(options.compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", include, source)
    print(f"{len(headers)} headers")


def exported_symbols(options):
    lines = run("nm", "-DC", "--defined-only", library_folder(options.prefix) / "libkvik.so").splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    allowed = re.compile(r"(?:(?:typeinfo|typeinfo name|vtable) for )?kvik::")
    others = [name for name in names if not allowed.match(name)]
    expect(not others, "exported beside kvik:: names:\n" + "\n".join(others))
    expect("kvik::Buffer::commit(long)" in names, "kvik::Buffer::commit is not exported")
    print(f"{len(names)} symbols")


def check_folders(folder, root, libdir):
    for name, wanted in (("prefix", ""), ("libdir", libdir), ("includedir", "include")):
        [found] = pkg_config(folder, f"--variable={name}")
        expect(pathlib.Path(found).resolve() == (root / wanted).resolve(), f"{libdir}: pkg-config names the {name} {found}")


def destdir(options):
    """A staged install for /opt/kvik: a relative package works in the stage and in its last place."""
    stage = fresh(options.work / "destdir")
    run(options.cmake, "--install", options.build, "--prefix", "/opt/kvik", DESTDIR=str(stage))
    root = stage / "opt" / "kvik"
    expect([path.name for path in stage.iterdir()] == ["opt"], "installed outside the prefix")
    folder = library_folder(root)
    check_folders(folder, root, str(folder.relative_to(root)))


def multiarch(options):
    """The .pc file leads to its prefix from library folders of any depth (configured only, not built)."""
    work = fresh(options.work / "multiarch")
    for libdir in ("lib", "lib/x86_64-linux-gnu"):
        build, root = work / libdir / "build", work / libdir / "root"
        run(options.cmake, "-S", options.source, "-B", build, "-G", "Ninja", "-DCMAKE_INSTALL_PREFIX=/opt/kvik",
            f"-DCMAKE_CXX_COMPILER={options.compiler}", f"-DCMAKE_INSTALL_LIBDIR={libdir}",
            "-DKVIK_BUILD_TESTS=OFF", "-DKVIK_BUILD_BENCH=OFF", "-DKVIK_BUILD_EXAMPLES=OFF")
        expect(f"/{libdir}/pkgconfig" in (build / "cmake_install.cmake").read_text(), "installs elsewhere")
        folder = root / libdir
        (folder / "pkgconfig").mkdir(parents=True)
        shutil.copy(build / "kvik.pc", folder / "pkgconfig")
        check_folders(folder, root, libdir)


def subproject(options):
    build = fresh(options.work / "subproject")
    run(options.cmake, "-S", HERE / "consumer", "-B", build, "-G", "Ninja", f"-DKVIK_SOURCE={options.source}",
        f"-DCMAKE_CXX_COMPILER={options.compiler}", "-DCMAKE_BUILD_TYPE=Release")
    run(options.cmake, "--build", build)
    check_works(build / "consumer")


CHECKS = (prefix, files, program, cmake_consumer, pkg_config_consumer, headers_alone, exported_symbols, destdir,
          multiarch, subproject)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "build", "prefix", "work"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    for name in ("cmake", "compiler", "version"):
        parser.add_argument(f"--{name}", required=True)
    checks = {check.__name__: check for check in CHECKS}
    parser.add_argument("check", choices=checks)
    options = parser.parse_args()
    checks[options.check](options)


if __name__ == "__main__":
    main()
