"""Numbers, variables, options of llama.cpp, completion: what the user typed is what counts and what is named."""

import json
import os
import struct
import subprocess
import sys

import harness
import tiny_model


class Numbers(harness.CliTest):
    def test_zeros_before_a_number_count_for_nothing(self):
        run = ("run", "-m", self.tiny, "-p", "ab", "--temp", "0", "--ignore-eos")
        for text, count in (("10", 10), ("010", 10), ("08", 8), ("0009", 9)):
            self.assertEqual(self.json(*run, "-n", text)["timings"]["predicted_n"], count)
        self.assertEqual(self.json(*run, "-n", "1", "-c", "0100")["kv"]["context"], 100)
        self.assertEqual(self.json(*run, "-n", "1", env={"KVIK_CTX_SIZE": "0100"})["kv"]["context"], 100)
        self.assertEqual(self.json(*run, "-n", "1", "--kv", "q8", "--kv-skip-layers", "01")["kv"]["f16_layers"], [1])

    def test_what_is_no_decimal_number_is_refused_by_name(self):
        run = ("run", "-m", self.tiny, "-p", "x")
        for option in ("-n", "-c", "-b", "-t", "--top-k", "--seed", "--kv-first"):
            for text in ("0x10", "+5", "5 ", " 5", "1e2", "5.0", "", "1_000", "99999999999999999999", "0b1"):
                self.fails(2, *run, option, text, says=option)
        for option in ("--temp", "--top-p", "--min-p", "--repeat-penalty"):
            for text in ("nan", "inf", "-inf", "0x1p-1", "1e999", "1e-50", "0,5", "0.5f", "+0.5", ""):
                self.fails(2, *run, option, text, says=option)
        for text in ("1,,2", "1,", ",1", "0x1", "1;2"):
            self.fails(2, *run, "--kv", "q8", "--kv-skip-layers", text, says="--kv-skip-layers")
        self.fails(2, "bench", "-m", self.tiny, "-p", "8,,16", says="-p")
        self.fails(2, *run, env={"KVIK_TEMP": "nan"}, says="KVIK_TEMP")

    def test_amounts_of_memory_have_one_rule(self):
        for text, size in (("1KiB", 1024), ("1k", 1024), ("1KB", 1000), ("1.5KiB", 1536), ("010", 10), ("2 mib", 2 << 20)):
            done = self.kvik("plan", "-m", self.tiny, "-c", "16", "--kv", "f16", "-o", "json", "--mem", text)
            self.assertEqual(json.loads(done.stdout)["memory_bytes"], size)
        for command in (("run", "-p", "x", "--kv", "auto"), ("plan",)):
            for text in ("0", "-1", "0x10", "nan", "inf", "1XB", "1e30", "9223372036854775808", "", "KiB", "1 2"):
                self.fails(2, command[0], "-m", self.tiny, *command[1:], "--mem", text, says="--mem")


class Variables(harness.CliTest):
    def test_the_command_line_wins_over_variables_that_exclude_it(self):
        text = self.file("t.txt", "hello")
        got = self.json("tokenize", "-m", self.tiny, "-f", text, env={"KVIK_PROMPT": "abc"})
        self.assertEqual(got["ids"], list(b"hello"))
        run = ("run", "-m", self.tiny, "-p", "hi", "-n", "1", "--temp", "0")
        for env, options, types in (({"KVIK_KV": "q8"}, ("-ctk", "f16", "-ctv", "f16"), ("f16", "f16")),
                                    ({"KVIK_CACHE_TYPE_K": "q8"}, ("--kv", "q4"), ("q4", "q4")),
                                    ({"KVIK_KV_QUALITY": "small"}, ("--kv", "q4"), ("q4", "q4")),
                                    ({"KVIK_KV_FIRST": "4"}, ("--kv", "f16"), ("f16", "f16")),
                                    ({"KVIK_KV_FIRST": "4"}, ("--kv", "q4+first2"), ("q4", "q4")),
                                    ({"KVIK_KV": "q4+first8"}, ("--kv-first", "2"), ("q4", "q4")),
                                    ({"KVIK_BLOCK_SIZE": "32"}, ("--kv-layout", "contiguous"), ("f16", "f16")),
                                    ({"KVIK_MEM": "1GiB"}, ("--kv", "q8"), ("q8", "q8"))):
            kv = self.json(*run, *options, env=env)["kv"]
            self.assertEqual((kv["type_k"], kv["type_v"]), types)
            if "first2" in str(options) or options[0] == "--kv-first":
                self.assertEqual(kv["exact_first"], 2)

    def test_a_variable_that_cannot_take_effect_is_named(self):
        run = ("run", "-m", self.tiny, "-p", "hi")
        self.fails(2, *run, env={"KVIK_KV_FIRST": "4"}, says="KVIK_KV_FIRST: ")
        self.fails(2, *run, env={"KVIK_MEM": "1GiB"}, says="KVIK_MEM has no meaning")
        self.fails(2, *run, env={"KVIK_KEEP": "3"}, says="KVIK_KEEP has no meaning")
        self.fails(2, *run, env={"KVIK_PERF": "maybe"}, says="KVIK_PERF")
        self.fails(2, *run[:3], env={"KVIK_PROMPT": "a", "KVIK_FILE": "b"}, says=["KVIK_PROMPT", "KVIK_FILE"])

    def test_a_variable_means_the_same_in_every_command(self):
        model = tiny_model.write(self.folder / "wide.gguf", head_dim=32)
        out = self.folder / "x.kvcal"
        env = {"KVIK_OUTPUT": "json", "KVIK_FILE": "nothing"}
        self.assertEqual(self.ok("calibrate", "-m", model, "-o", out, env=env), f"{out}\n")
        self.assertFalse((self.folder / "json").exists())

    def test_a_misspelt_variable_is_named(self):
        for name, meant in (("KVIK_CTX_SZIE", "KVIK_CTX_SIZE"), ("KVIK_N_PREDICT", "KVIK_PREDICT")):
            done = self.kvik("tokenize", "-m", self.tiny, "-p", "a", env={name: "1"})
            self.assertEqual((done.returncode, done.stderr), (0, f"kvik: warning: {name} is not read; is {meant} meant?\n"))
        self.assertEqual(self.kvik("tokenize", "-m", self.tiny, "-p", "a", env={"KVIK_ROOT": "1"}).stderr, "")

    def test_a_foreign_type_of_a_variable_is_said_once(self):
        model = tiny_model.write(self.folder / "wide.gguf", head_dim=32)
        done = self.kvik("run", "-m", model, "-p", "a", "-n", "1", env={"KVIK_CACHE_TYPE_K": "q8_0"})
        self.assertEqual(done.stderr.count("stored as"), 1)


class LlamaOptions(harness.CliTest):
    def run_it(self, *options, code=0):
        done = self.kvik("run", "-m", self.tiny, "-p", "ab", "--temp", "0", "--ignore-eos", "-o", "json", *options)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_those_that_kvik_has_are_served(self):
        self.assertEqual(len(json.loads(self.run_it("--n-predict", "3").stdout)["ids"]), 3)
        self.assertEqual(json.loads(self.run_it("-n2", "-ctk", "q8").stdout)["kv"]["type_k"], "q8")
        self.run_it("-n", "1", "-st", "-sys", "be brief")

    def test_those_that_change_nothing_are_said_to(self):
        for options in (("-fa", "on"), ("-fa",), ("-ngl", "0"), ("--mlock",), ("--no-mmap",), ("-ub", "64"), ("--jinja",),
                        ("-np", "1"), ("--mirostat", "0")):
            done = self.run_it("-n", "1", *options)
            self.assertTrue(done.stderr.startswith(f"kvik: {' '.join(options)} changes nothing here: "), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_those_that_cannot_be_served_are_refused_whole_with_a_reason(self):
        for options, reason in ((("-hf", "x"), "downloads"), (("-ngl", "99"), "GPU"), (("-fa", "off"), "attention"),
                                (("-np", "4"), "one sequence"), (("--mirostat", "2"), "sampler"), (("-sp",), "--special"),
                                (("-cnv",), "--chat"), (("-md", "x"), "speculative")):
            self.fails(2, "run", "-m", self.tiny, "-p", "x", *options, says=[options[0], reason])
        self.fails(2, "run", "-m", self.tiny, "-no-cnv", says=["-no-cnv", "-p"])

    def test_unknown_ones_are_refused_whole_with_the_nearest(self):
        run = ("run", "-m", self.tiny, "-p", "x")
        for name, near in (("-foo", "-f"), ("--ctx-sise", "--ctx-size"), ("--promt", "--prompt"), ("-hx", "-h")):
            self.fails(2, *run, name, "1", says=[f"no option {name};", f"nearest is {near}"])
        self.fails(2, "rum", says="nearest is run")
        self.fails(2, "run", "--help", "--bogus", says="--bogus")

    def test_a_text_may_begin_with_a_dash(self):
        for text in ("-fa", "-hf", "--help", "-", "--"):
            self.assertEqual(self.json("tokenize", "-m", self.tiny, "-p", text)["ids"], list(text.encode()))
        self.fails(2, "run", "-m", "-p", "x", says=["-m", "-p"])


class Completion(harness.CliTest):
    def complete(self, *words):
        script = self.ok("completion", "bash") + (
            f"\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _kvik 2>&1; echo \"${{COMPREPLY[*]}}\"")
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

    def test_offers_every_type_and_preset(self):
        ways = self.complete("kvik", "run", "--kv", "''")
        for name in ("f16", "q8", "tq4", "tcq3", "q8_0", "iq4_nl", "fp8", "turboquant_k8v4", "auto"):
            self.assertIn(name, ways)
        self.assertIn("ggml-q4_0-rot", self.complete("kvik", "eval", "--kv", "ggml"))
        self.assertEqual(self.complete("kvik", "run", "-ctk", "tqk_int"), ["tqk_int2"])
        self.assertEqual(self.complete("kvik", "plan", "--kv-quality", "sm"), ["small"])
        self.assertEqual(self.complete("kvik", "plan", "--kv", "f16,tcq4"), ["f16,tcq4"])


class TerminalText(harness.CliTest):
    NAME = "a|b\x1b[31m\n\u009b\u202e\x7fend"
    SHOWN = r"\x1b[31m\n\u009b\u202e\x7fend"

    def test_names_of_a_file_steer_no_terminal_and_break_no_table(self):
        path = tiny_model.write(self.folder / "name.gguf", {"general.name": (tiny_model.STRING, self.NAME),
                                                            "k\x1b[2J\nforged": (tiny_model.U32, 1)})
        self.assertTrue(self.ok("plan", "-m", path, "-c", "64", "--kv", "f16").startswith("a|b" + self.SHOWN + ": "))
        row = self.ok("bench", "-m", path, "-p", "4", "-n", "0", "-r", "1").splitlines()[2]
        self.assertTrue(row.startswith("| a\\|b" + self.SHOWN + " | "), row)
        text = self.ok("inspect", "-m", path)
        self.assertIn(r"  k\x1b[2J\nforged = 1" + "\n", text)
        for control in "\x1b\x7f\u009b\u202e":
            self.assertNotIn(control, text + self.ok("inspect", "-m", path, "-o", "json"))
        self.assertEqual(self.json("inspect", "-m", path)["metadata"]["general.name"], self.NAME)

    def test_json_of_metadata_is_exact(self):
        data = self.tiny.read_bytes()
        count = struct.unpack_from("<Q", data, 16)[0]

        def raw(key, kind, body):
            return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + body
        entries = [raw(b"x.u64", 10, struct.pack("<Q", 2**64 - 1)), raw(b"x.i64", 11, struct.pack("<q", -2**63)),
                   raw(b"x.f32", 6, struct.pack("<f", 0.1)), raw(b"x.nan", 6, struct.pack("<f", float("nan"))),
                   raw(b"x.inf", 12, struct.pack("<d", float("-inf"))),
                   raw(b"x.bad", 8, struct.pack("<Q", 2) + b"\xff\x00"),
                   raw(b"x.u64s", 9, struct.pack("<IQ2Q", 10, 2, 2**53 + 1, 2**64 - 1)),
                   raw(b"x.f64s", 9, struct.pack("<IQ2d", 12, 2, 0.1, 1e300)),
                   raw(b"x.flags", 9, struct.pack("<IQ2B", 7, 2, 1, 0))]
        head = data[:16] + struct.pack("<Q", count + len(entries)) + b"".join(entries)
        # Offsets of tensors count from the aligned end of the header, so a whole number of alignments is added.
        pad = -(sum(map(len, entries)) + 8 + 7 + 4 + 8) % 32
        head += raw(b"x.padded", 8, struct.pack("<Q", pad - 1 if pad else 31) + b"p" * (pad - 1 if pad else 31))
        head = head[:16] + struct.pack("<Q", count + len(entries) + 1) + head[24:]
        path = self.file("exact.gguf", head + data[24:])
        got = self.json("inspect", "-m", path)["metadata"]
        self.assertEqual((got["x.u64"], got["x.i64"], got["x.f32"]), (2**64 - 1, -2**63, 0.1))
        self.assertEqual((got["x.nan"], got["x.inf"], got["x.bad"]), ("NaN", "-Infinity", {"not_utf8": "ff00"}))
        self.assertEqual((got["x.u64s"], got["x.f64s"]), ([2**53 + 1, 2**64 - 1], [0.1, 1e300]))
        self.assertEqual(got["x.flags"], [True, False])


class Order(harness.CliTest):
    def test_what_the_header_refuses_is_refused_before_keys_are_measured(self):
        model = tiny_model.write(self.folder / "wide.gguf", head_dim=32)
        for path, options, says in ((self.tiny, ("-p", "x"), "q8"), (model, ("-p", "x" * 600), "600"),
                                    (model, ("-p", "x", "--kv-skip-layers", "9"), "layers 0 to"),
                                    (model, ("-p", "x", "-c", str(1 << 30)), "")):
            for command in ("run", "score"):
                self.fails(1, command, "-m", path, "--kv", "tq8", *options, says=says)
                self.assertFalse(list((self.folder / "cache").glob("**/*.kvcal")))
        self.fails(1, "calibrate", "-m", model, "-o", self.folder / "none" / "x", says="cannot open the folder")
        self.fails(2, "calibrate", "-m", model, "-o", self.folder, says="is a folder")
        self.fails(2, "calibrate", "-m", model, "-o", "", says="-o: the name is empty")
        self.fails(2, "calibrate", "-m", model, "-o", "-", says="-o -: a calibration goes to a file")
        self.fails(2, "calibrate", "-m", model, "-o", model, says="is read by this command")
        text = self.file("text.txt", "some words " * 20)
        self.fails(2, "calibrate", "-m", model, "-f", text, "-o", text, says="is read by this command")
        os.mkfifo(self.folder / "fifo")
        self.fails(2, "calibrate", "-m", model, "-o", self.folder / "fifo", says="is a FIFO, which is not replaced")
        (self.folder / "link").symlink_to(text)
        self.fails(2, "calibrate", "-m", model, "-o", self.folder / "link", says="is a symbolic link")
        self.assertTrue(text.read_text().startswith("some words"))

    def test_the_line_of_speeds_begins_a_line_where_both_streams_are_one(self):
        run = [harness.KVIK, "run", "-m", str(self.tiny), "-p", "ab", "-n", "3", "--temp", "0", "--ignore-eos"]
        env = harness.clean_environment()
        plain = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env).stdout
        both = subprocess.run([*run, "--perf"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env).stdout
        self.assertTrue(both.startswith(plain.rstrip(b"\n")))
        self.assertIn(b"\n[prompt ", both)
        apart = subprocess.run([*run, "--perf"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        self.assertEqual(apart.stdout, plain)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
