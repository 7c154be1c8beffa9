"""Options, exit codes, variables, completion."""

import json
import subprocess
import sys

import harness
import tiny_model


class Usage(harness.CliTest):
    def test_version_names_the_program(self):
        self.assertRegex(self.ok("--version"), r"^kvik \d+\.\d+\.\d+\n$")

    def test_help_lists_every_command(self):
        text = self.ok("--help")
        for command in ("run", "tokenize", "template", "score", "perplexity", "eval", "plan", "bench", "inspect",
                        "doctor", "completion"):
            self.assertIn(command, text)

    def test_help_of_every_command_names_its_variables(self):
        for command in ("run", "tokenize", "template", "score", "perplexity", "eval", "plan", "bench", "inspect"):
            self.assertIn("KVIK_MODEL", self.ok(command, "--help"))

    def test_no_command_is_wrong_usage(self):
        self.fails(2, says="give a command")

    def test_an_unknown_command_or_option_is_wrong_usage(self):
        self.fails(2, "walk", says="walk")
        self.fails(2, "run", "-m", self.tiny, "-p", "x", "--warp", "9", says=["--warp", "kvik run --help"])
        self.fails(2, "tokenize", "-m", self.tiny, "-f", "x", "--chat", says="--chat")

    def test_a_missing_model_option_is_wrong_usage(self):
        self.fails(2, "run", "-p", "x", says="--model")

    def test_two_prompts_contradict_each_other(self):
        for first, second in (("-p", "-f"), ("-p", "--ids"), ("-f", "--ids")):
            self.fails(2, "run", "-m", self.tiny, first, "a", second, "b", says="xcludes")

    def test_contradictions_are_wrong_usage(self):
        run = ("run", "-m", self.tiny)
        self.fails(2, *run, "--chat", "--ids", "x.json", says=["--chat", "--ids"])
        self.fails(2, *run, "--chat", "--special", "-p", "x", says=["--chat", "--special"])
        self.fails(2, *run, "-o", "json", says="prompt")
        self.fails(2, *run, "-p", "x", "--system-prompt", "y", says="--chat")
        self.fails(2, *run, "-p", "x", "--kv-layout", "contiguous", "--block-size", "32", says="--block-size")
        self.fails(2, *run, "-p", "x", "--kv-layout", "contiguous", "--overflow", "window", says="--overflow window")
        self.fails(2, *run, "-p", "x", "--block-size", "24", says="multiple of 16")
        self.fails(2, *run, "-p", "x", "--stop", "", says="--stop")
        self.fails(2, "bench", "-m", self.tiny, "-p", "0", "-n", "0", says="nothing to measure")
        self.fails(2, "inspect", "-m", self.tiny, "-c", "64", "--tokens", "65", says="--tokens")

    def test_values_out_of_range_are_wrong_usage(self):
        for option, value in (("-n", "-2"), ("-c", "-1"), ("-t", "0"), ("-b", "0"), ("--temp", "-1"),
                              ("--top-p", "1.5"), ("--min-p", "-0.1"), ("--top-k", "-1"), ("--seed", "-2"),
                              ("--temp", "warm"), ("-n", "12x"), ("-ctk", "q99"), ("-o", "xml"),
                              ("--kv-layout", "heap"), ("--block-size", "8")):
            with self.subTest(option=option, value=value):
                self.fails(2, "run", "-m", self.tiny, "-p", "x", option, value, says=[])

    def test_an_option_given_twice_is_wrong_usage(self):
        self.fails(2, "run", "-m", self.tiny, "-p", "x", "-n", "1", "-n", "2", says="--predict")

    def test_variables_stand_for_options_and_the_command_line_wins(self):
        env = {"KVIK_MODEL": str(self.tiny), "KVIK_PREDICT": "3", "KVIK_TEMP": "0", "KVIK_IGNORE_EOS": "1",
               "KVIK_CACHE_TYPE_K": "f32"}
        got = self.json("run", "-p", "abc", env=env)
        self.assertEqual((len(got["ids"]), got["kv"]["type_k"], got["kv"]["type_v"]), (3, "f32", "f16"))
        got = self.json("run", "-p", "abc", "-n", "2", "-ctk", "bf16", env=env)
        self.assertEqual((len(got["ids"]), got["kv"]["type_k"]), (2, "bf16"))
        self.fails(2, "run", "-p", "abc", env={**env, "KVIK_TEMP": "hot"}, says="hot")

    def test_kv_types_are_chosen_apart_or_as_a_pair(self):
        def types(*options):
            done = self.kvik("run", "-m", self.tiny, "-p", "abc", "-n", "2", "-o", "json", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            kv = json.loads(done.stdout)["kv"]
            return kv["type_k"], kv["type_v"], done.stderr

        self.assertEqual(types("-ctk", "q8", "-ctv", "bf16"), ("q8", "bf16", ""))
        self.assertEqual(types("--kv", "q8:q4")[:2], ("q8", "q4"))
        self.assertEqual(types("--kv", "f32"), ("f32", "f32", ""))

    def test_kv_types_of_other_programs_become_ours_and_are_named_on_stderr(self):
        # The tiny model's head dim is too small for the types that these stand for: said, then refused.
        for options, said in ((("-ctk", "q8_0"), "kvik: keys as q8_0: stored as tq8\n"),
                              (("-ctv", "iq4_nl"), "kvik: values as iq4_nl: stored as tcq4\n"),
                              (("--kv", "turboquant_k8v4"),
                               "kvik: --kv turboquant_k8v4: keys stored as tq8, values as tcq4\n")):
            done = self.kvik("run", "-m", self.tiny, "-p", "x", *options)
            self.assertEqual(done.returncode, 1)
            self.assertTrue(done.stderr.startswith(said), done.stderr)
            self.assertIn("q8, q6, q4, f32, f16 and bf16 store it", done.stderr)

    def test_modes_of_kv_quant_become_our_types_and_are_named_on_stderr(self):
        for option in ("--kv-quant", "--paged-kv-quant", "--paged-kv-quantization"):
            for mode, own in (("q8", "q8"), ("INT4", "q4"), ("6bit", "q6"), ("off", "f16"), ("q4_0", "q4")):
                done = self.kvik("run", "-m", self.tiny, "-p", "abc", "-n", "1", "-o", "json", option, mode)
                self.assertEqual((json.loads(done.stdout)["kv"]["type_k"], json.loads(done.stdout)["kv"]["type_v"]),
                                 (own, own))
                self.assertEqual(done.stderr, f"kvik: {option} {mode}: keys and values stored as {own}\n")
        for command, more in (("score", ("-p", "abcd")), ("perplexity", ("-p", "x" * 40, "-c", "32")),
                              ("plan", ("-c", "64")), ("inspect", ()), ("bench", ("-p", "8", "-n", "0", "-r", "1"))):
            done = self.kvik(command, "-m", self.tiny, "--kv-quant", "q8", *more)
            self.assertEqual((done.returncode, done.stderr),
                             (0, "kvik: --kv-quant q8: keys and values stored as q8\n"))

    def test_a_mode_of_kv_quant_beside_types_is_refused(self):
        run = ("run", "-m", self.tiny, "-p", "x", "--kv-quant")
        for other in (("--kv", "q8"), ("-ctk", "q8"), ("-ctv", "q8"), ("--kv-quality", "small")):
            done = self.kvik(*run, "q4", *other)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("xcludes", done.stderr)
        self.fails(2, *run, "q5", says=["--kv-quant", "unknown KV-Quant mode 'q5'", "q8", "and off"])
        done = self.kvik(*run, "off", "--kv-first", "4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("with f16:f16 they change nothing", done.stderr)
        done = self.kvik("run", "-p", "x", "-n", "1", "-m", self.tiny, "-o", "json",
                         env={"KVIK_PAGED_KV_QUANT": "q4"})
        self.assertEqual(json.loads(done.stdout)["kv"]["type_k"], "q4")

    def test_endings_of_a_type_are_options_of_run_too(self):
        run = ("run", "-m", self.tiny, "-p", "abc", "-n", "3", "--temp", "0")
        by_ending = self.json(*run, "--kv", "q4+first2+recent5+skip0/-1")["kv"]
        by_option = self.json(*run, "--kv", "q4", "--kv-first", "2", "--kv-recent", "5", "--kv-skip-layers", "0,-1")
        self.assertEqual(by_ending, by_option["kv"])
        self.fails(2, *run, "--kv", "q4+recent5", "--kv-recent", "6", says=["--kv-recent", "+recent", "say the same"])
        self.fails(2, *run, "--kv", "tq4+nocalib", "--kv-calib", "auto", says="+nocalib")
        self.fails(2, *run, "--kv", "q4+last4", says=["+last4", "+recent64"])

    def test_kv_types_that_do_not_fit_are_refused_with_what_would(self):
        run = ("run", "-m", self.tiny, "-p", "x")
        self.fails(2, *run, "-ctk", "tqv_q4_0", says="stores values only; for keys choose")
        self.fails(2, *run, "--kv", "tqk_int2", says="give K:V")
        self.fails(2, *run, "--kv", "q8:q8", "-ctk", "f16", says="--kv")

    def test_a_prompt_may_look_like_an_option(self):
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "-p", "-ctk")["ids"], list(b"-ctk"))

    def test_completion_knows_the_options_and_bash_accepts_it(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.ok("completion", shell)
            for word in ("perplexity", "kv-layout", "add-generation-prompt"):
                self.assertIn(word, script)
        self.fails(2, "completion", "tcsh", says="tcsh")
        ask = self.ok("completion", "bash") + (
            '\nCOMP_WORDS=(kvik run --kv-layout pa); COMP_CWORD=3; _kvik; echo "${COMPREPLY[*]}"'
            '\nCOMP_WORDS=(kvik pe); COMP_CWORD=1; _kvik; echo "${COMPREPLY[*]}"'
            '\nCOMP_WORDS=(kvik template --add); COMP_CWORD=2; _kvik; echo "${COMPREPLY[*]}"')
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["paged", "perplexity", "--add-generation-prompt"])
        self.assertEqual(done.stderr, "")


class Doctor(harness.CliTest):
    def test_reports_the_machine(self):
        got = self.json("doctor", "--no-measure")
        self.assertEqual(got["instruction_sets"][-1], "scalar")
        self.assertEqual(got["kernel_set"], "exact-" + got["instruction_sets"][0])
        self.assertEqual(got["packed_kernel_set"], "fast-" + got["instruction_sets"][0])
        self.assertGreaterEqual(got["usable_processors"], 1)
        self.assertNotIn("read_rate", got)
        self.assertIn("address_space", got["limits"])

    def test_measures_the_read_rate(self):
        rates = self.json("doctor")["read_rate"]["gb_per_second_by_threads"]
        self.assertIn("1", rates)
        self.assertTrue(all(0.1 < rate < 10000 for rate in rates.values()), rates)

    def test_warns_of_a_limited_address_space(self):
        done = subprocess.run(["bash", "-c", f"ulimit -v 8000000; exec {harness.KVIK} doctor --no-measure"],
                              capture_output=True, text=True, env=harness.clean_environment())
        self.assertIn("ulimit -v unlimited", done.stdout)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
