"""run: answers, the cache it reports, and a conversation through a terminal."""

import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time

import harness
import tiny_model


class Answers(harness.CliTest):
    def greedy(self, *options, model=None):
        return self.json("run", "-m", model or self.tiny, "--temp", "0", "--ignore-eos", *options)

    def test_json_has_ids_text_timings_and_kv(self):
        got = self.greedy("-p", "hello", "-n", "5")
        self.assertEqual(got["prompt_ids"], list(b"hello"))
        self.assertEqual((len(got["ids"]), got["stop_reason"]), (5, "max_tokens"))
        self.assertIsInstance(got["text"], str)
        self.assertEqual((got["timings"]["prompt_n"], got["timings"]["predicted_n"]), (5, 5))
        self.assertGreater(got["timings"]["predicted_per_second"], 0)
        kv = got["kv"]
        self.assertEqual((kv["layout"], kv["type_k"], kv["type_v"], kv["block_size"]), ("paged", "f16", "f16", 16))
        # The last token is printed, not computed any further.
        self.assertEqual(kv["tokens"], 9)

    def test_text_output_is_the_answer_alone(self):
        got = self.greedy("-p", "hello", "-n", "9")
        out = self.ok("run", "-m", self.tiny, "--temp", "0", "--ignore-eos", "-p", "hello", "-n", "9")
        self.assertEqual(out, got["text"])

    def test_ids_are_the_same_for_any_layout_block_size_batch_and_threads(self):
        options = ("-p", "some longer prompt, so that there are blocks " * 3, "-n", "40")
        wanted = self.greedy(*options)["ids"]
        for more in (("--kv-layout", "contiguous"), ("--block-size", "32"), ("--block-size", "128"), ("-b", "16"),
                     ("-b", "1"), ("-t", "1"), ("-t", "3"), ("-c", "300")):
            self.assertEqual(self.greedy(*options, *more)["ids"], wanted, more)

    def test_every_pair_of_types_in_every_layout_starts_and_answers_alike(self):
        wanted = self.greedy("-p", "some prompt", "-n", "3", "-ctk", "f32", "-ctv", "f32")["ids"]
        for k in ("f32", "f16", "bf16"):
            for v in ("f32", "f16", "bf16"):
                for more in ((), ("--kv-layout", "contiguous"), ("--overflow", "window", "--block-size", "32")):
                    got = self.greedy("-p", "some prompt", "-n", "3", "-ctk", k, "-ctv", v, *more)
                    self.assertEqual((got["kv"]["type_k"], got["kv"]["type_v"]), (k, v))
                    self.assertEqual(got["ids"], wanted, (k, v, more))

    def test_a_trained_context_that_does_not_fit(self):
        # 3 layers of 2 heads of 64 dims in f32 for 2^30 tokens: three terabytes.
        huge = tiny_model.write(self.folder / "huge.gguf", {"llama.context_length": (tiny_model.U32, 1 << 30)},
                                head_dim=64)
        got = self.kvik("run", "-m", huge, "-p", "ab", "-n", "3", "--temp", "0", "--ignore-eos", "-ctk", "f32",
                            "-ctv", "f32", "-o", "json")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertRegex(got.stderr, r"a context of \d+ tokens, the most that fit in .*; the model was trained for "
                                     r"1073741824 \(-c asks for another\)")
        wanted = self.greedy("-p", "ab", "-n", "3", "-ctk", "f32", "-ctv", "f32", "-c", "64", model=huge)["ids"]
        self.assertEqual(json.loads(got.stdout)["ids"], wanted)
        # Asked for, it is refused, and what would fit is named.
        for asked in (("-c", "0"), ("-c", str(1 << 30))):
            refused = self.kvik("run", "-m", huge, "-p", "ab", "-n", "3", "-ctk", "f32", "-ctv", "f32", *asked)
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, r"are available; ask for a context of \d+ tokens at most")

    def test_a_limit_of_addresses_counts_as_memory(self):
        huge = tiny_model.write(self.folder / "huge.gguf", {"llama.context_length": (tiny_model.U32, 1 << 30)},
                                head_dim=64)

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

        got = self.kvik("run", "-m", huge, "-p", "ab", "-n", "3", "-ctk", "f32", "-ctv", "f32", "-t", "2",
                        preexec_fn=limit)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertRegex(got.stderr, r"a context of \d+ tokens, the most that fit in \d+")

    def test_prompts_from_text_file_and_ids_are_the_same(self):
        by_text = self.greedy("-p", "abc", "-n", "6")["ids"]
        self.assertEqual(self.greedy("-f", self.file("p.txt", "abc"), "-n", "6")["ids"], by_text)
        self.assertEqual(self.greedy("--ids", self.file("p.json", "[97, 98, 99]"), "-n", "6")["ids"], by_text)

    def test_the_seed_fixes_the_draws(self):
        def draw(seed):
            return self.json("run", "-m", self.tiny, "--temp", "2", "-p", "abc", "-n", "20", "--seed", seed)["ids"]

        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))
        self.assertNotEqual(draw(-1), draw(-1))

    def test_a_stop_string_that_spells_a_control_token(self):
        def draw(*more):
            return self.json("run", "-m", self.tiny, "--temp", "9", "--top-p", "1", "--min-p", "0", "--seed", "1",
                             "--ignore-eos", "-p", "abc", "-n", "300", *more)

        ids = draw()["ids"]
        spellings = {256: "<|turn|>", 257: "<|end|>"}
        at = next(i for i, token in enumerate(ids) if token in spellings)
        got = draw("--stop", spellings[ids[at]])
        self.assertEqual((got["stop_reason"], got["ids"]), ("stop_string", ids[:at + 1]))
        self.assertEqual(got["text"], self.json("run", "-m", self.tiny, "--temp", "9", "--top-p", "1", "--min-p", "0",
                                                "--seed", "1", "--ignore-eos", "-p", "abc", "-n", str(at))["text"])

    def test_the_best_token_alone_is_greedy(self):
        self.assertEqual(self.json("run", "-m", self.tiny, "--temp", "1", "--top-k", "1", "--ignore-eos", "-p", "ab",
                                   "-n", "8")["ids"], self.greedy("-p", "ab", "-n", "8")["ids"])

    def test_a_draw_option_that_temperature_0_makes_idle_is_named(self):
        done = self.kvik("run", "-m", self.tiny, "--temp", "0", "--top-k", "5", "-p", "ab", "-n", "2")
        self.assertEqual((done.returncode, done.stderr), (0, "kvik: warning: --top-k changes nothing with --temp 0\n"))
        self.assertEqual(self.kvik("run", "-m", self.tiny, "--temp", "0", "-p", "ab", "-n", "2").stderr, "")

    def test_a_stop_string_ends_the_answer_and_is_left_out(self):
        text = self.greedy("-p", "hello", "-n", "12")["text"]
        stop = text[3:5]
        got = self.greedy("-p", "hello", "-n", "12", "--stop", "never in there", "--stop", stop)
        self.assertEqual((got["stop_reason"], got["text"]), ("stop_string", text[:text.index(stop)]))

    def test_a_full_context_stops_with_a_message(self):
        done = self.kvik("run", "-m", self.tiny, "--temp", "0", "--ignore-eos", "-p", "abc", "-c", "32")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"^kvik: warning: stopped: the context of 32 tokens is full.*\n$")

    def test_chat_wraps_the_prompt_in_the_template(self):
        got = self.greedy("--chat", "--system-prompt", "S", "-p", "<|end|>", "-n", "1")
        self.assertEqual(got["prompt_ids"], [256, *b"system:S", 257, 256, *b"user:<|end|>", 257, 256, *b"assistant:"])

    def with_start_token(self, **changes):
        values = {"tokenizer.ggml.add_bos_token": (tiny_model.BOOL, True),
                  "tokenizer.chat_template": (tiny_model.STRING, "{{ bos_token }}" + tiny_model.TEMPLATE.replace("turn", "x")),
                  **{"tokenizer.ggml." + key: (tiny_model.BOOL, value) for key, value in changes.items()}}
        return tiny_model.write(self.folder / "start.gguf", values)

    def test_a_chat_has_one_start_token_and_no_end_token(self):
        model = self.with_start_token(add_eos_token=True)
        messages = self.file("m.json", json.dumps([{"role": role, "content": "hi"}
                                                   for role in ("user", "assistant", "user")]))
        chat = self.json("template", "-m", model, "-f", messages, "--add-generation-prompt")["ids"]
        for ids in (self.greedy("--chat", "-p", "hi", "-n", "1", model=model)["prompt_ids"], chat):
            self.assertEqual((ids[0], ids.count(256)), (256, 1))
            self.assertNotEqual(ids[-1], 257)

    def test_a_second_start_token_is_named(self):
        model = self.with_start_token()
        run = ("run", "-m", model, "--temp", "0", "-n", "1", "-o", "json")
        plain = self.kvik(*run, "-p", "<|turn|>a")
        self.assertEqual((json.loads(plain.stdout)["prompt_ids"], plain.stderr), ([256, *b"<|turn|>a"], ""))
        double = self.kvik(*run, "--special", "-p", "<|turn|>a")
        self.assertEqual(json.loads(double.stdout)["prompt_ids"], [256, 256, 97])
        self.assertRegex(double.stderr, "^kvik: warning: the text spells out the token for its beginning.*\n$")

    def test_an_empty_prompt_is_the_start_token_alone(self):
        self.assertEqual(self.greedy("-p", "", "-n", "1", model=self.with_start_token())["prompt_ids"], [256])

    def test_perf_is_said_on_stderr(self):
        done = self.kvik("run", "-m", self.tiny, "-p", "abc", "-n", "3", "--perf")
        self.assertRegex(done.stderr, r"^\[prompt 3 tokens .* 288 bytes, .* committed\]\n$")


class Sizes(harness.CliTest):
    """What inspect predicts is what run reports, to the byte."""

    def compare(self, model, prompt_tokens, generated, context, *options):
        ids = self.file("ids.json", json.dumps([97 + i % 20 for i in range(prompt_tokens)]))
        got = self.json("run", "-m", model, "--ids", ids, "-n", generated, "--temp", "0", "--ignore-eos",
                        "-c", context, *options)
        kv = got["kv"]
        self.assertEqual(kv["tokens"], prompt_tokens + generated - 1)
        types = () if {"-ctk", "--kv", "--kv-quality"} & set(options) else ("-ctk", kv["type_k"], "-ctv", kv["type_v"])
        predicted = self.json("inspect", "-m", model, "-c", context, "--tokens", kv["tokens"], "--prompt-tokens",
                              prompt_tokens, *types, *options)["kv"]["formats"]
        self.assertEqual(len(predicted), 1)
        for key in ("committed_bytes", "bytes_per_token", "nbytes", "committed_blocks", "used_blocks"):
            self.assertEqual(predicted[0][key], kv[key], key)
        self.assertLessEqual(kv["resident_bytes"], kv["committed_bytes"])

    def test_tiny_model(self):
        self.compare(self.tiny, 100, 50, 512)
        self.compare(self.tiny, 500, 12, 512, "-b", "64")
        self.compare(self.tiny, 1, 300, 400, "--block-size", "64")
        self.compare(self.tiny, 200, 100, 512, "-ctk", "f32", "-ctv", "bf16", "--kv-layout", "contiguous")
        self.compare(self.tiny, 100, 50, 512, "-ctk", "q8", "-ctv", "q4")

    def test_rows_and_layers_that_stay_wider(self):
        for options in (("--kv-first", 4), ("--kv-recent", 64), ("--kv-skip-layers", "0,-1"),
                        ("--kv-first", 20, "--kv-recent", 9, "--kv-skip-layers", "1", "-b", 64),
                        ("--kv-first", 4, "--kv-recent", 30, "--kv-layout", "contiguous")):
            self.compare(self.tiny, 200, 100, 512, "--kv", "q8:q4", *options)
        wide = tiny_model.write(self.folder / "wide.gguf", head_dim=64)
        self.compare(wide, 100, 50, 512, "--kv-quality", "small", "--kv-calib", "off")
        self.compare(wide, 100, 50, 512, "--kv", "tcq4+first4+recent64+skip0/-1+nocalib")

    def test_smollm2(self):
        self.compare(harness.smollm2(), 600, 40, 2048)


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([harness.KVIK, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, env=harness.clean_environment(),
                                        preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))  # TIOCSCTTY
        os.close(slave)
        self.text = ""

    def read_until(self, pattern, timeout=harness.TIMEOUT):
        """Everything up to and with the pattern, taken from what was not returned before."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text, re.S)):
            if not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            try:
                data = os.read(self.master, 4096)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"the program ended before {pattern!r}: {self.text!r}")
            self.text += data.decode("utf-8", "replace")
        result, self.text = self.text[:found.end()], self.text[found.end():]
        return result

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self):
        # A terminal that is full would hold the program up.
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self.master, 4096).decode("utf-8", "replace")
                except OSError:
                    pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


class Conversation(harness.CliTest):
    def terminal(self, *arguments):
        terminal = Terminal(*arguments)
        self.addCleanup(terminal.close)
        return terminal

    def two_turns(self, model, *options):
        terminal = self.terminal("run", "-m", model, "--temp", "0", *options)
        terminal.read_until("> ")
        terminal.type("Name a colour.\n")
        first = terminal.read_until(r"\[prompt (\d+) tokens.*?\]\r\n> ")
        terminal.type("Another one?\n")
        second = terminal.read_until(r"\[prompt (\d+) tokens.*?\]\r\n> ")
        terminal.type("\x04")
        self.assertEqual(terminal.wait(), 0)
        self.assertNotIn("from the cache", first)
        new, reused = map(int, re.search(r"prompt (\d+) tokens [^,]*, (\d+) more from the cache", second).groups())
        return new, reused

    def test_the_second_turn_reuses_the_cache(self):
        new, reused = self.two_turns(self.tiny, "-n", "10")
        # The whole first prompt, at least; the answer's bytes may not be UTF-8 and then come back as others.
        first = 1 + len("user:Name a colour.") + 1 + 1 + len("assistant:")
        self.assertGreaterEqual(reused, first)
        self.assertLess(new, 80)

    def test_the_second_turn_of_the_real_model_reuses_the_cache(self):
        new, reused = self.two_turns(harness.smollm2(), "-n", "24")
        self.assertGreater(reused, 30)
        self.assertLess(new, 60)

    def test_turns_also_come_from_a_pipe(self):
        done = self.kvik("run", "-m", self.tiny, "--temp", "0", "-n", "4", input="one\n\ntwo", errors="replace")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertGreaterEqual(done.stdout.count("\n"), 2)

    def test_ctrl_c_stops_the_answer_and_twice_the_program(self):
        terminal = self.terminal("run", "-m", self.tiny, "--ignore-eos", "-c", "500000")
        terminal.read_until("> ")
        terminal.type("talk\n")
        terminal.read_until(r"talk\r\n.")
        terminal.type("\x03")
        terminal.read_until(r"stopped by Ctrl-C.*?\]\r\n> ")
        self.assertIsNone(terminal.process.poll())
        terminal.type("\x03")
        self.assertEqual(terminal.wait(), 128 + signal.SIGINT)

    def test_after_a_stopped_answer_the_conversation_goes_on(self):
        terminal = self.terminal("run", "-m", self.tiny, "--ignore-eos", "-c", "500000")
        terminal.read_until("> ")
        terminal.type("talk\n")
        terminal.read_until(r"talk\r\n.")
        terminal.type("\x03")
        terminal.read_until(r"stopped by Ctrl-C.*?\]\r\n> ")
        terminal.type("again\n")
        terminal.read_until(r"again\r\n.")
        terminal.type("\x03")
        terminal.read_until(r"stopped by Ctrl-C.*?\]\r\n> ")

    def test_ctrl_c_ends_a_lone_answer_with_what_there_is(self):
        process = subprocess.Popen([harness.KVIK, "run", "-m", str(self.tiny), "-p", "abc", "--ignore-eos", "-c",
                                    "500000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=harness.clean_environment())
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=harness.TIMEOUT)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"stopped by Ctrl-C", error)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
