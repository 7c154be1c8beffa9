"""Broken files, prompts and streams: one clear line each, nothing left behind."""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import harness
import tiny_model


class BadModelFiles(harness.CliTest):
    def every_command(self):
        text = self.file("text.txt", "some text")
        messages = self.file("messages.json", '[{"role": "user", "content": "hi"}]')
        return (("run", "-p", "x"), ("tokenize", "-f", text), ("template", "-f", messages), ("score", "-f", text),
                ("perplexity", "-f", text), ("bench", "-p", "8", "-n", "0"), ("inspect",))

    def refused(self, path, says):
        for command, *rest in self.every_command():
            with self.subTest(command=command):
                self.fails(1, command, "-m", path, *rest, says=says)

    def test_missing(self):
        self.refused(self.folder / "none.gguf", ["none.gguf", "No such file"])

    def test_a_folder(self):
        self.refused(self.folder, [])

    def test_empty(self):
        self.refused(self.file("empty.gguf", b""), [])

    def test_wrong_magic(self):
        self.refused(self.file("magic.gguf", b"GGML" + self.tiny.read_bytes()[4:]), [])

    def test_cut(self):
        data = self.tiny.read_bytes()
        for size in (3, 23, 200, len(data) // 2, len(data) - 1):
            self.refused(self.file("cut.gguf", data[:size]), [])

    def test_absurd_counts(self):
        data = bytearray(self.tiny.read_bytes())
        for offset in (8, 16):
            absurd = data[:]
            struct.pack_into("<Q", absurd, offset, 1 << 62)
            self.refused(self.file("absurd.gguf", bytes(absurd)), [])

    def test_a_missing_tensor_is_named(self):
        path = tiny_model.write(self.folder / "less.gguf", leave_out=("blk.1.ffn_up.weight",))
        self.fails(1, "run", "-m", path, "-p", "x", says="blk.1.ffn_up.weight")

    def test_a_weight_that_is_not_a_number_is_named(self):
        path = tiny_model.write(self.folder / "nan.gguf", poison="blk.2.attn_k.weight")
        self.fails(1, "run", "-m", path, "-p", "x", says="blk.2.attn_k.weight")

    def test_an_unknown_architecture_is_named_and_inspect_still_shows_the_file(self):
        path = tiny_model.write(self.folder / "other.gguf", {"general.architecture": (tiny_model.STRING, "zebra")})
        self.fails(1, "run", "-m", path, "-p", "x", says="zebra")
        got = self.json("inspect", "-m", path)
        self.assertEqual(len(got["tensors"]), len(tiny_model.tensors()))
        self.assertIn("zebra", got["kv"]["unknown_because"])

    def test_no_template_is_said(self):
        path = tiny_model.write(self.folder / "base.gguf", {"tokenizer.chat_template": None})
        self.fails(1, "run", "-m", path, says="-p")
        self.fails(1, "run", "-m", path, "--chat", "-p", "x", says="template")


class BadPrompts(harness.CliTest):
    def test_empty(self):
        self.fails(1, "run", "-m", self.tiny, "-p", "", says="empty")
        self.fails(1, "run", "-m", self.tiny, "-f", self.file("empty.txt", ""), says="empty")
        self.fails(1, "run", "-m", self.tiny, "--chat", "-p", "", says="empty")
        self.fails(1, "run", "-m", self.tiny, "--ids", self.file("empty.json", "[]"), says="empty")

    def test_longer_than_the_context(self):
        self.fails(1, "run", "-m", self.tiny, "-c", "64", "-p", "x" * 65, says=["65", "64"])
        self.fails(1, "run", "-m", self.tiny, "-p", "x" * 600, says=["600", "512"])
        self.fails(1, "score", "-m", self.tiny, "-c", "64", "-p", "x" * 65, says=["65", "64"])

    def test_a_context_larger_than_memory(self):
        done = self.kvik("run", "-m", self.tiny, "-c", str(1 << 30), "-p", "x", "-n", "1")
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("terminate", done.stderr)
        self.assertIn("kvik: ", done.stderr.splitlines()[-1])

    def test_not_utf8(self):
        path = self.file("latin1.txt", b"caf\xe9 au lait")
        for command in ("run", "tokenize", "score", "perplexity"):
            self.fails(1, command, "-m", self.tiny, "-f", path, says=["latin1.txt", "byte 3"])
        self.fails(1, "run", "-m", self.tiny, "-f", self.file("cut.txt", b"abc\xe2\x82"), says="byte 3")

    def test_missing_or_unreadable(self):
        self.fails(1, "run", "-m", self.tiny, "-f", self.folder / "none.txt", says="No such file")
        self.fails(1, "run", "-m", self.tiny, "-f", self.folder, says="Is a directory")

    def test_wrong_ids(self):
        for content in ("nonsense", '{"ids": [1]}', "[1.5]", '["a"]', "[-1]", "[99999999999]", "[1"):
            self.fails(1, "run", "-m", self.tiny, "--ids", self.file("ids.json", content), says="ids.json")
        self.fails(1, "run", "-m", self.tiny, "--ids", self.file("ids.json", "[70000]"), says="70000")

    def test_wrong_messages(self):
        for content in ("[", "{}", "[1]", '[{"role": "user"}]', '[{"role": "user", "content": 1}]',
                        '[{"content": "a"}]'):
            self.fails(1, "template", "-m", self.tiny, "-f", self.file("m.json", content), says="m.json")
        misspelt = self.file("m.json", '[{"role": "user", "content": "a", "nmae": "b"}]')
        self.fails(1, "template", "-m", self.tiny, "-f", misspelt, says='"nmae" of message 1')

    def test_a_text_shorter_than_a_chunk(self):
        self.fails(1, "perplexity", "-m", self.tiny, "-c", "64", "-p", "short", says=["64"])


class Streams(harness.CliTest):
    def test_a_closed_pipe_is_said_once(self):
        # A whole ladder of output into a reader that left.
        done = subprocess.run(["bash", "-c", f"{harness.KVIK} inspect -m {self.tiny} -o json | true; echo ${{PIPESTATUS[0]}}"],
                              capture_output=True, text=True, env=harness.clean_environment())
        # The reader may be slower than the writer: then all was written.
        self.assertIn(done.stdout.strip(), ("0", "1"))
        if done.stdout.strip() == "1":
            self.assertEqual(done.stderr, "kvik: standard output was closed before everything was written\n")

    def test_generation_ends_when_nobody_reads(self):
        process = subprocess.Popen([harness.KVIK, "run", "-m", str(self.tiny), "-p", "abc", "--ignore-eos", "-c",
                                    "500000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=harness.clean_environment())
        process.stdout.read(1)
        process.stdout.close()
        error = process.stderr.read().decode()
        process.stderr.close()
        self.assertEqual(process.wait(harness.TIMEOUT), 1)
        self.assertEqual(error.splitlines()[-1], "kvik: standard output was closed before everything was written")

    def test_standard_output_closed_from_the_start(self):
        before = self.tiny.read_bytes()
        for command in (f"tokenize -m {self.tiny} -p abc -o json", f"run -m {self.tiny} -p abc -n 4 --temp 0 --ignore-eos", "--version",
                        "completion bash", "doctor --no-measure"):
            done = subprocess.run(["bash", "-c", f"exec {harness.KVIK} {command} >&-"], capture_output=True,
                                  text=True, env=harness.clean_environment())
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stderr, "kvik: cannot write to standard output (Bad file descriptor)\n")
        self.assertEqual(self.tiny.read_bytes(), before)

    def test_a_full_disk_is_said(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([harness.KVIK, "inspect", "-m", str(self.tiny)], stdout=full,
                                  stderr=subprocess.PIPE, text=True, env=harness.clean_environment())
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "kvik: cannot write to standard output (No space left on device)\n")

    def test_messages_hold_no_control_characters(self):
        self.fails(1, "tokenize", "-m", self.folder / "a\x1b[31mb\n.gguf", "-p", "x", says=r"a\x1b[31mb\n.gguf")


class FetchScripts(harness.CliTest):
    def fetch(self, script, *arguments, **env):
        environment = {**harness.clean_environment(), "http_proxy": "http://127.0.0.1:9",
                       "https_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9",
                       "HTTPS_PROXY": "http://127.0.0.1:9", "PIP_RETRIES": "0", **env}
        return subprocess.run([str(harness.SCRIPTS / script), *arguments], capture_output=True, text=True,
                              timeout=harness.TIMEOUT, env=environment)

    def test_wrong_usage(self):
        for script in ("fetch-model", "fetch-text"):
            for arguments in ((), ("nothing",), ("a", "b")):
                done = self.fetch(script, *arguments)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stderr.count("\n"), 1)

    def test_a_cache_folder_that_cannot_be_made_is_said(self):
        blocked = self.file("not-a-folder", "")
        for script, name in (("fetch-model", "smollm2"), ("fetch-text", "emma")):
            done = self.fetch(script, name, KVIK_CACHE_DIR=str(blocked / "cache"))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn("cannot write to the cache folder", done.stderr)

    def test_no_network_is_said_and_nothing_stays(self):
        for script, name in (("fetch-model", "smollm2"), ("fetch-text", "emma")):
            with tempfile.TemporaryDirectory() as cache:
                done = self.fetch(script, name, KVIK_CACHE_DIR=cache)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn("check the network", done.stderr.splitlines()[-1])
                self.assertEqual(os.listdir(cache), [])

    def test_a_model_that_is_there_needs_no_network(self):
        model = harness.smollm2()
        with tempfile.TemporaryDirectory() as cache:
            os.symlink(model, pathlib.Path(cache) / model.name)
            done = self.fetch("fetch-model", "smollm2", KVIK_CACHE_DIR=cache)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, f"{cache}/{model.name}\n")


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
