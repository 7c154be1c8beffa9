"""How the cache is stored: calibration, exact rows, layers kept wide, types by quality and by memory."""

import sys

import harness


class Options(harness.CliTest):
    """What contradicts itself is refused before a model is read."""

    def refused(self, *options, says):
        self.fails(2, "run", "-m", self.tiny, "-p", "x", *options, says=says)

    def test_wider_rows_beside_plain_ones(self):
        for option in (("--kv-first", 4), ("--kv-recent", 8), ("--kv-skip-layers", "0")):
            self.refused(*option, says="f16:f16 they change nothing")

    def test_a_calibration_of_keys_that_have_none(self):
        self.refused("--kv", "q8", "--kv-calib", "auto", says="q8 keys have no calibration")
        self.refused("--kv", "q8", "--kv-frame", 256, says="q8 keys have no calibration")
        self.refused("--kv", "tq4", "--kv-calib", "off", "--kv-frame", 256, says="--kv-calib off")

    def test_frames_of_another_length(self):
        self.refused("--kv", "tq4", "--kv-frame", 100, says="100")

    def test_memory_without_a_choice(self):
        self.refused("--mem", "1MiB", says="--kv auto")
        self.refused("--kv", "auto", "--mem", "much", says="much")

    def test_a_quality_beside_types(self):
        self.refused("--kv", "tq4", "--kv-quality", "small", says="--kv")
        self.refused("--kv-quality", "best", says="safe")

    def test_layers_that_are_not_there(self):
        self.fails(1, "run", "-m", self.tiny, "-p", "x", "--kv", "q8", "--kv-skip-layers", "7", says="layers 0 to")


class Tiny(harness.CliTest):
    """The small model's heads are too short for tq types; everything else works with q8 and q4."""

    def answer(self, *options):
        return self.json("run", "-m", self.tiny, "-p", "some prompt", "-n", 20, "--temp", 0, "--ignore-eos", "-c", 64,
                         *options)

    def test_exact_rows_and_wide_layers_take_more_memory(self):
        packed = self.answer("--kv", "q4")
        for more in (("--kv-first", 4), ("--kv-recent", 16)):
            self.assertGreater(self.answer("--kv", "q4", *more)["kv"]["nbytes"], packed["kv"]["nbytes"])
        per_token = [self.answer("--kv", "q4", "--kv-skip-layers", layers)["kv"]["bytes_per_token"]
                     for layers in ("0", "0,-1", "0,1,2")]
        plain = self.answer()["kv"]["bytes_per_token"]
        self.assertLess(packed["kv"]["bytes_per_token"], per_token[0])
        self.assertLess(per_token[0], per_token[1])
        self.assertEqual(per_token[2], plain)

    def test_all_exact_answers_as_f16_does(self):
        wanted = self.answer()["ids"]
        self.assertEqual(self.answer("--kv", "q4", "--kv-first", 64)["ids"], wanted)
        self.assertEqual(self.answer("--kv", "q4", "--kv-recent", 64)["ids"], wanted)
        self.assertEqual(self.answer("--kv", "q4", "--kv-skip-layers", "0,1,2")["ids"], wanted)

    def test_auto_takes_the_widest_that_fits_and_says_why(self):
        done = self.kvik("run", "-m", self.tiny, "-p", "x", "-n", 1, "--kv", "auto", "--mem", "1GiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--kv auto: f16:f16 takes", done.stderr)
        self.fails(1, "run", "-m", self.tiny, "-p", "x", "--kv", "auto", "--mem", "1KiB",
                   says=["no format holds", "1.00 KiB", "shorter context"])

    def test_no_calibration_for_heads_that_are_too_short(self):
        self.fails(1, "run", "-m", self.tiny, "-p", "x", "--kv", "tq4", "--kv-calib", "off", says=["tq4", "32"])


class Calibration(harness.CliTest):
    """On SmolLM2."""

    def run_it(self, *options, env=None):
        done = self.kvik("run", "-m", harness.smollm2(), "-p", "Once upon a time", "-n", 12, "--temp", 0, "-c", 256,
                         "-o", "json", *options, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_is_made_once_kept_and_read_again(self):
        model = harness.smollm2()
        own = {"KVIK_CACHE_DIR": str(self.folder / "own")}
        first = self.run_it("--kv", "tcq4", env=own)
        self.assertIn("calibrating the keys of this model, once", first.stderr)
        files = list((self.folder / "own" / "calibration").iterdir())
        self.assertEqual([file.suffix for file in files], [".kvcal"])
        again = self.run_it("--kv", "tcq4", env=own)
        self.assertEqual(again.stderr, "")
        by_file = self.run_it("--kv", "tcq4", "--kv-calib", files[0], env=own)
        for done in (again, by_file):
            self.assertEqual(harness.json.loads(done.stdout)["ids"], harness.json.loads(first.stdout)["ids"])
        # The command makes the same file, byte for byte.
        out = self.folder / "own.kvcal"
        self.assertEqual(self.ok("calibrate", "-m", model, "-o", out), f"{out}\n")
        self.assertEqual(out.read_bytes(), files[0].read_bytes())
        self.assertEqual(self.run_it("--kv", "tcq4", "--kv-calib", "off", env=own).stderr, "")

        files[0].write_bytes(files[0].read_bytes()[:-1])
        mended = self.run_it("--kv", "tcq4", env=own)
        self.assertIn("damaged", mended.stderr)
        self.assertEqual(files[0].read_bytes(), out.read_bytes())

        self.fails(1, "run", "-m", model, "-p", "x", "--kv", "tq4", "--kv-calib", self.folder / "none",
                   says=["none", "No such file"])
        self.fails(1, "run", "-m", model, "-p", "x", "--kv", "tq4", "--kv-calib", out, "--kv-frame", 512,
                   says="frames of 128")

    def test_a_quality_names_types_and_keeps_the_first_tokens(self):
        done = harness.json.loads(self.run_it("--kv-quality", "small").stdout)["kv"]
        self.assertEqual((done["type_k"], done["type_v"], done["exact_first"]), ("tcq4", "tcq3", 4))


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
