"""What fetch-model and fetch-text share: the cache folder, sums, and files that appear whole or not at all."""

import contextlib
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile


# What pip and apt-get say when they reach nobody.
NO_NETWORK = ("from versions: none", "NewConnectionError", "Could not connect", "Could not resolve",
              "Temporary failure resolving", "Unable to connect", "connection timed out")


class FetchError(Exception):
    """One line for the user."""


def cache_dir():
    """$KVIK_CACHE_DIR, else $XDG_CACHE_HOME/kvik, else ~/.cache/kvik."""
    if os.environ.get("KVIK_CACHE_DIR"):
        return pathlib.Path(os.environ["KVIK_CACHE_DIR"]).absolute()
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]).absolute() / "kvik"
    return pathlib.Path.home() / ".cache" / "kvik"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def say(line):
    print(line, file=sys.stderr, flush=True)


def run(command, failure):
    """Runs a program quietly. When it fails: FetchError with `failure` and the program's own last error line."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise FetchError(f"{failure}: {command[0]} is not installed; run scripts/setup") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        text = " ".join(lines)
        if any(sign in text for sign in NO_NETWORK):
            raise FetchError(f"{failure}: no server could be reached; check the network (and proxy settings)")
        # The first line that names the error; later ones are consequences.
        telling = [line for line in lines if line.startswith(("ERROR", "E:", "error"))] or lines[-1:]
        raise FetchError(f"{failure}: {telling[0] if telling else f'exit status {done.returncode}'}")
    return done.stdout


def fetch(path, sum_, make):
    """Returns `path`, whose content has the SHA-256 `sum_`.

    Unless it is there already, make(folder) is called with an empty temporary folder beside it and returns
    the path of a file in that folder, which is checked and then renamed to `path`. Nothing else stays.
    """
    if path.exists():
        if sha256(path) == sum_:
            return path
        say(f"{path}: wrong SHA-256, fetching it again")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent)
    except OSError as error:
        raise FetchError(
            f"cannot write to the cache folder {path.parent} ({error.strerror}); set KVIK_CACHE_DIR to one you can"
        ) from None
    with scratch as folder:
        made = make(pathlib.Path(folder))
        found = sha256(made)
        if found != sum_:
            raise FetchError(f"{path.name}: what was fetched has SHA-256 {found}, not {sum_}; nothing was kept")
        os.chmod(made, 0o644)
        os.replace(made, path)
    return path


@contextlib.contextmanager
def one_line_errors(program):
    """Turns failures into one line on stderr and exit status 1; a signal still removes temporary folders."""

    def stop(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        yield
    except FetchError as error:
        say(f"{program}: {error}")
        raise SystemExit(1) from None
    except OSError as error:
        say(f"{program}: {error}")
        raise SystemExit(1) from None


def choice(program, usage, names):
    """The one argument, which must be among `names`; otherwise usage on stderr and exit status 2."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        print(usage)
        raise SystemExit(0)
    if len(arguments) != 1:
        say(f"{program}: give one of: {', '.join(names)}")
        raise SystemExit(2)
    if arguments[0] not in names:
        say(f"{program}: unknown name '{arguments[0]}'; there are: {', '.join(names)}")
        raise SystemExit(2)
    return arguments[0]
