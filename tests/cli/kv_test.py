"""How the cache is stored: calibration, exact rows, layers kept wide, types by quality and by memory."""

import subprocess
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

    def test_a_shift_of_keys_that_are_bound_to_their_positions(self):
        shift = ("--overflow", "shift")
        self.refused(*shift, says=["--overflow shift", "f16 keys cannot move", "tq8"])
        self.refused(*shift, "--kv", "q8", says="q8 keys cannot move")
        self.refused(*shift, "--kv", "auto", says=["--kv auto", "--kv-quality"])
        self.refused(*shift, "--kv", "tq4", "--kv-calib", "off", says="--kv-calib off")
        self.refused(*shift, "--kv", "tq4", "--kv-layout", "contiguous", says="--kv-layout contiguous")
        self.refused(*shift, "--kv-quality", "small", "--kv-recent", 8, says="--kv-recent")
        self.refused(*shift, "--kv", "tq4", "--kv-skip-layers", 0, says="--kv-skip-layers")
        self.refused("--keep", 4, says="--keep has no meaning without --overflow shift")
        self.refused("--keep", -1, *shift, "--kv", "tq4", says="--keep")

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


class Shift(harness.CliTest):
    """On SmolLM2: an answer that goes on past the context."""

    PROMPT = "List of a hundred animals, with a sentence about each of them: "

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = harness.smollm2()
        cls.calibration = cls.folder / "smollm2.kvcal"
        subprocess.run([harness.KVIK, "calibrate", "-m", cls.model, "-o", cls.calibration], check=True,
                       capture_output=True, env=harness.clean_environment())

    def options(self, *more):
        return ("run", "-m", self.model, "-p", self.PROMPT, "--temp", 0, "--ignore-eos", "--kv", "tq8:tcq4",
                "--kv-calib", self.calibration, "--overflow", "shift", "-o", "json", *more)

    def answer(self, *more):
        done = self.kvik(*self.options(*more))
        self.assertEqual(done.returncode, 0, done.stderr)
        return harness.json.loads(done.stdout), done.stderr

    def test_a_long_answer_drops_runs_and_says_so_once(self):
        got, said = self.answer("-c", 512, "--keep", 10, "-n", 800, "-b", 64)
        kv, prompt = got["kv"], len(got["prompt_ids"])
        self.assertEqual((got["stop_reason"], len(got["ids"])), ("max_tokens", 800))
        # 384 tokens are not kept; 256 are at least half of them, so the cache is full again at 512 + 256 tokens.
        self.assertEqual((kv["overflow"], kv["kept_tokens"], kv["shifts"], kv["dropped_tokens"]),
                         ("shift", 128, 2, 512))
        self.assertEqual(kv["tokens"], prompt + 799 - kv["dropped_tokens"])
        self.assertEqual(kv["copied_rows"], 0)
        self.assertEqual(kv["encoded_rows"], (prompt + 799) * 30 * 3)  # each row once: 30 layers of 3 heads
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("the context of 512 tokens was full: 512 tokens after the first 128 were forgotten, in 2 shifts",
                      said)

        # Up to the first time, nothing is another than with room for all.
        roomy, said = self.answer("-c", 2048, "-n", 800)
        self.assertEqual((roomy["kv"]["shifts"], roomy["kv"]["dropped_tokens"], said), (0, 0, ""))
        full = 512 - prompt
        self.assertEqual(got["ids"][:full], roomy["ids"][:full])
        # The same in other steps and blocks.
        again, _ = self.answer("-c", 512, "--keep", 128, "-n", 800, "--block-size", 64, "-t", 1)
        self.assertEqual(again["ids"], got["ids"])

    def test_a_context_without_room_for_a_run_is_refused(self):
        self.fails(1, *self.options("-c", 255, "--keep", 10), says=["255", "128", "the least is 256"])

    def test_a_long_text_is_scored(self):
        text = self.file("long.txt", "One day a rabbit met a fox who wanted to know the way to the sea. " * 50)
        score = ("score", "-m", self.model, "-f", text, "--kv", "tq8", "--kv-calib", self.calibration, "-c", 512)
        got = self.json(*score, "--overflow", "shift")
        self.assertGreater(len(got["ids"]), 800)
        self.assertEqual(len(got["logprobs"]), len(got["ids"]) - 1)
        # The text repeats itself, and what is left tells how it goes on.
        self.assertGreater(sum(got["logprobs"][600:]) / len(got["logprobs"][600:]), -0.5)
        self.fails(1, *score, says="the context holds 512")


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
