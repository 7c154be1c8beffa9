"""plan: its figures are those of inspect and of real caches, and what fits, fits."""

import json
import sys

import harness
import tiny_model

FORMAT_KEYS = {"kv", "exact_first", "exact_recent", "f16_layers", "bytes_per_token", "growing_bytes_per_token",
               "layers", "nbytes", "committed_bytes", "exact_bytes"}


class Plan(harness.CliTest):
    def plan(self, *options):
        return self.json("plan", "-m", self.tiny, *options)

    def test_json_names_every_figure(self):
        got = self.plan("-c", "128", "--mem", "1GiB")
        self.assertEqual(set(got), {"model", "model_file", "num_kv_heads", "head_dim_k", "head_dim_v",
                                    "layer_windows", "trained_context", "weight_bytes", "context", "users",
                                    "batch_size", "block_size", "memory_bytes", "formats"})
        self.assertEqual((got["model"], got["num_kv_heads"], got["head_dim_k"], got["trained_context"]),
                         ("tiny", tiny_model.KV_HEADS, tiny_model.HEAD_DIM, tiny_model.CONTEXT))
        self.assertEqual(got["layer_windows"], [None] * tiny_model.LAYERS)
        self.assertEqual((got["context"], got["users"], got["memory_bytes"]), (128, 1, 1 << 30))
        for row in got["formats"]:
            self.assertEqual(set(row), FORMAT_KEYS | {"fits", "longest_context", "most_users"})
            self.assertEqual(sum(layer["k"] + layer["v"] for layer in row["layers"]), row["bytes_per_token"])
            self.assertEqual(len(row["layers"]), tiny_model.LAYERS)
            self.assertTrue(row["fits"])
        self.assertEqual(set(self.plan()["formats"][0]), FORMAT_KEYS)

    def test_agrees_with_inspect(self):
        for context in ("1", "500", str(tiny_model.CONTEXT)):
            wanted = self.json("inspect", "-m", self.tiny, "-c", context)["kv"]["formats"]
            got = self.plan("-c", context)["formats"]
            self.assertEqual([[row[key] for key in ("bytes_per_token", "committed_bytes", "nbytes")] for row in got],
                             [[row[key] for key in ("bytes_per_token", "committed_bytes", "nbytes")] for row in wanted])

    def test_reads_no_weights(self):
        path = tiny_model.write(self.folder / "poisoned.gguf", poison="blk.1.ffn_down.weight")
        self.assertEqual(self.kvik("run", "-m", path, "-p", "x", "-n", "1").returncode, 1)
        self.assertEqual(self.json("plan", "-m", path)["formats"], self.plan()["formats"])

    def test_the_longest_context_fits_and_a_block_more_does_not(self):
        for users in ("1", "4"):
            row = self.plan("--mem", "20MB", "--users", users, "--kv", "f16")["formats"][0]
            longest = row["longest_context"]
            for context, fits in ((longest, True), (longest + 16, False)):
                done = self.kvik("plan", "-m", self.tiny, "--mem", "20MB", "--users", users, "--kv", "f16",
                                 "-c", context, "-o", "json")
                self.assertEqual(json.loads(done.stdout)["formats"][0]["fits"], fits)
                self.assertEqual(done.returncode, 0 if fits else 3)

    def test_the_most_users_fit_and_one_more_does_not(self):
        most = self.plan("--mem", "5MB", "--kv", "f16")["formats"][0]["most_users"]
        self.assertGreater(most, 1)
        self.assertTrue(self.plan("--mem", "5MB", "--kv", "f16", "--users", most)["formats"][0]["fits"])
        self.assertEqual(self.kvik("plan", "-m", self.tiny, "--mem", "5MB", "--kv", "f16", "--users", most + 1)
                         .returncode, 3)

    def test_what_fits_nowhere_is_shown_and_ends_with_3(self):
        done = self.kvik("plan", "-m", self.tiny, "--mem", "1000", "--kv", "f16,q4")
        self.assertEqual(done.returncode, 3)
        self.assertIn("q4", done.stdout)
        self.assertIn("fit into --mem 1000 in none", done.stderr)
        # Enough that one of them fits.
        enough = min(row["committed_bytes"] for row in self.plan("--kv", "f16,q4")["formats"])
        self.assertEqual(self.kvik("plan", "-m", self.tiny, "--mem", enough, "--kv", "f16,q4").returncode, 0)

    def test_measured_bytes_are_those_predicted(self):
        got = self.plan("--measure", "-c", "300", "--users", "3", "-b", "64")
        for row in got["formats"]:
            measured = row["measured"]
            self.assertTrue(measured["agrees"])
            self.assertEqual(measured["committed_bytes"], row["committed_bytes"])
            self.assertEqual(measured["nbytes"], row["nbytes"])
            self.assertGreater(measured["resident_bytes"], 0)

    def test_refuses_to_measure_what_the_machine_cannot_hold(self):
        done = self.kvik("plan", "-m", self.tiny, "--measure", "-c", 1 << 28, "--kv", "f32")
        self.assertEqual(done.returncode, 1)
        self.assertIn("are available", done.stderr)

    def test_memory_is_read_with_its_unit(self):
        for text, size in (("1GiB", 1 << 30), ("1G", 1 << 30), ("1 GB", 10**9), ("1.5MiB", 3 << 19), ("64kib", 1 << 16),
                           ("1000000", 10**6), ("2000000B", 2 * 10**6), ("0.5TB", 5 * 10**11)):
            done = self.kvik("plan", "-m", self.tiny, "--mem", text, "-c", "16", "--kv", "q4", "-o", "json")
            self.assertEqual(json.loads(done.stdout)["memory_bytes"], size, text)
        for text in ("", "GiB", "1zB", "8GiBs", "-1", "nan", "1e30"):
            self.fails(2, "plan", "-m", self.tiny, f"--mem={text}", says="--mem")

    def test_wrong_usage(self):
        self.fails(2, "plan", "-m", self.tiny, "--block-size", "24", says="multiple of 16")
        self.fails(2, "plan", "-m", self.tiny, "--users", "0", says="--users")
        self.fails(2, "plan", "-m", self.tiny, "--kv", "ggml-q4_0", says="ggml-q4_0")

    def test_text_and_markdown(self):
        text = self.ok("plan", "-m", self.tiny, "--mem", "1GiB", "--kv", "f16,q8:q4")
        self.assertIn("the weights, ", text)
        self.assertIn("come on top", text)
        self.assertRegex(text, r"(?m)^f16 .* yes ")
        self.assertRegex(text, r"(?m)^q8:q4 .* yes ")
        lines = self.ok("plan", "-m", self.tiny, "--kv", "f16", "-o", "md").splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual(len({line.count("|") for line in lines}), 1)


class Protection(harness.CliTest):
    """What is kept wider is counted: as real caches have it, by option or by ending."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wide = tiny_model.write(cls.folder / "wide.gguf", head_dim=64)

    def plan(self, *options, model=None):
        return self.json("plan", "-m", model or self.wide, "-c", "300", *options)["formats"]

    def test_measured_bytes_are_those_predicted(self):
        for model in (self.wide, Windows.MODEL):
            types = "f16,q8,q8:q4+first4,q4+recent64,q8+first20+recent9+skip0/-1"
            for users in (1, 3):
                for row in self.plan("--measure", "--users", users, "-b", 64, "--kv", types, model=model):
                    self.assertTrue(row["measured"]["agrees"], row)
                    self.assertEqual(row["measured"]["nbytes"], row["nbytes"])
                    self.assertEqual(row["exact_bytes"] > 0, row["exact_first"] + row["exact_recent"] > 0)
        for row in self.plan("--measure", "--kv-first", 4, "--kv-recent", 32, "--kv-skip-layers", "0,-1"):
            self.assertTrue(row["measured"]["agrees"], row)

    def test_options_and_endings_say_the_same(self):
        for options, ending, said in (
                (("--kv-first", 4), "+first4", (4, 0, [])), (("--kv-recent", 64), "+recent64", (0, 64, [])),
                (("--kv-skip-layers", "0,-1"), "+skip0/-1", (0, 0, [0, tiny_model.LAYERS - 1]))):
            by_option, by_ending = self.plan("--kv", "tcq4", *options), self.plan("--kv", "tcq4" + ending)
            self.assertEqual(by_option, by_ending)
            row = by_option[0]
            self.assertEqual((row["kv"], row["exact_first"], row["exact_recent"], row["f16_layers"]),
                             ("tcq4" + ending, *said))
            self.assertGreater(row["committed_bytes"], self.plan("--kv", "tcq4")[0]["committed_bytes"])

    def test_a_quality_is_its_types_with_the_first_tokens(self):
        self.assertEqual(self.plan("--kv-quality", "small"), self.plan("--kv", "tcq4:tcq3+first4"))
        self.assertEqual(self.plan("--kv-quality", "small", "--kv-first", 9), self.plan("--kv", "tcq4:tcq3+first9"))

    def test_plain_rows_of_a_list_are_not_widened(self):
        rows = self.plan("--kv", "f16,q4", "--kv-first", 4)
        self.assertEqual([row["kv"] for row in rows], ["f16", "q4+first4"])
        self.assertEqual(rows[0], self.plan("--kv", "f16")[0])

    def test_what_was_counted_is_printed(self):
        text = self.ok("plan", "-m", self.wide, "--kv", "tcq4+first4,tcq4:tcq3", "--kv-recent", 64, "--kv-skip-layers", -1,
                       "--kv-calib", "off")
        for line in ("+first4: f16 rows of the first 4 tokens", "+recent64: f16 rows of the newest 64 tokens",
                     f"+skip-1: f16 in the place of packed rows in layers {tiny_model.LAYERS - 1}\n",
                     "calibrated or not, keys take the same bytes", "of it exact rows",
                     "tcq4:tcq3+recent64+skip-1+nocalib"):
            self.assertIn(line, text)
        self.assertIn("tcq4+first4", self.ok("inspect", "-m", self.wide, "--kv", "tcq4+first4"))

    def test_what_counts_for_nothing_is_refused(self):
        for command in ("plan", "inspect", "bench"):
            run = (command, "-m", self.wide)
            self.fails(2, *run, "--kv", "f16,f32", "--kv-first", 4, says="with f16:f16, f32:f32 they change nothing")
            self.fails(2, *run, "--kv", "f16+first4", says="f16+first4 they change nothing")
            self.fails(2, *run, "--kv", "q8+first4", "--kv-first", 4, says=["--kv-first", "+first", "say the same"])
            self.fails(2, *run, "--kv", "q8,q4", "--kv-frame", 256, says="q8, q4 keys have no calibration")
            self.fails(2, *run, "--kv", "tq4+nocalib", "--kv-calib", "auto", says="tq4+nocalib keys have no calibration")
            self.fails(2, *run, "--kv", "tq4", "--kv-calib", "off", "--kv-frame", 256, says="--kv-calib off")
            self.fails(2, *run, "--kv", "auto", says=["--kv", "auto", "kvik run"])
            self.fails(2, *run, "--kv", "q4", "--kv-quality", "small", says="--kv")
            self.fails(1, *run, "--kv", "q4+skip9", says="layers 0 to")
            self.fails(1, *run, "--kv", "tq4", "--kv-calib", self.folder / "none", says=["none", "No such file"])


class Windows(harness.CliTest):
    MODEL = harness.HERE.parent / "golden" / "tiny_models" / "gemma3.gguf"

    def test_layers_with_a_window_stop_growing(self):
        near, far = (self.json("plan", "-m", self.MODEL, "-c", context, "--kv", "f16")["formats"][0]
                     for context in ("4096", "65536"))
        windows = self.json("plan", "-m", self.MODEL)["layer_windows"]
        growing = sum(layer["k"] + layer["v"] for layer, window in zip(far["layers"], windows) if window is None)
        self.assertEqual(far["growing_bytes_per_token"], growing)
        self.assertLess(growing, far["bytes_per_token"])
        grown = far["committed_bytes"] - near["committed_bytes"]
        self.assertAlmostEqual(grown / (growing * (65536 - 4096)), 1, delta=0.1)
        self.assertIn("of the layers see the newest", self.ok("plan", "-m", self.MODEL, "--kv", "f16"))


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
