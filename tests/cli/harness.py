"""What the tests of the program share: running it, the tiny model, and the real one where it was fetched."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tiny_model

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE.parent.parent / "scripts"
GOLDEN = HERE.parent / "golden" / "smollm2-135m-instruct-q4_1"
KVIK = os.environ.get("KVIK_PROGRAM", "kvik")
TIMEOUT = 300


def clean_environment(**extra):
    """Without the KVIK_ variables of the caller, so that only what a test sets counts."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KVIK_")}
    kept.update(TERM="dumb", **extra)
    return kept


def fetched():
    """The folder of what the fetch scripts fetched."""
    if "KVIK_CACHE_DIR" in os.environ:
        return pathlib.Path(os.environ["KVIK_CACHE_DIR"])
    if "XDG_CACHE_HOME" in os.environ:
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "kvik"
    return pathlib.Path.home() / ".cache" / "kvik"


def smollm2():
    """Path of the real model, or a skip (a failure where models are required)."""
    path = fetched() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        if "smollm2" in os.environ.get("KVIK_REQUIRE_MODELS", "").split():
            raise AssertionError(f"{path} is missing and models are required; run scripts/fetch-model smollm2")
        raise unittest.SkipTest("run scripts/fetch-model smollm2 first")
    return path


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="kvik-cli-test-")
        cls.folder = pathlib.Path(cls._folder.name)
        cls.tiny = tiny_model.write(cls.folder / "tiny.gguf")

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    def kvik(self, *arguments, input="", env=None, **options):
        own = {"KVIK_CACHE_DIR": str(self.folder / "cache"), **(env or {})}
        return subprocess.run([KVIK, *map(str, arguments)], input=input, capture_output=True, text=True,
                              encoding="utf-8", timeout=TIMEOUT, env=clean_environment(**own), **options)

    def ok(self, *arguments, **options):
        """Standard output of a call that must succeed."""
        done = self.kvik(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def json(self, *arguments, **options):
        return json.loads(self.ok(*arguments, "-o", "json", **options))

    def fails(self, code, *arguments, says, **options):
        """The call ends with `code`, one line on stderr that holds all of `says`, and no output."""
        done = self.kvik(*arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("kvik: "), done.stderr)
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, done.stderr)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


def main(module):
    """Runs the classes named on the command line, or all. Exit status 77 (skipped) if every test was skipped."""
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if result.testsRun == 0 or not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if len(result.skipped) == result.testsRun else 0)
