"""eval: the forms of its output, what it refuses, and that its figures are those of the other commands."""

import html.parser
import json
import re
import sys
import xml.etree.ElementTree

import harness
import tiny_model

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune must want a wife. "
RESULT_KEYS = {"kv", "bytes_per_token", "ratio", "ppl", "ppl_error", "mean_kld", "kld_error", "kld_median", "kld_99",
               "kld_999", "kld_max", "same_top", "rms_dp", "tokens_per_second", "by_position"}
DEFAULTS = ["f16", "tq8", "tq4", "tcq4", "tcq4:tcq3", "tcq3", "ggml-q8_0", "ggml-q4_0", "ggml-q4_0-rot"]


def add_inputs(case):
    """A second tiny model, whose head dim of 64 every format takes, and a text."""
    case.wide = tiny_model.write(case.folder / "wide.gguf", head_dim=64)
    case.text = case.folder / "text.txt"
    case.text.write_text(TEXT * 4)


class Eval(harness.CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        add_inputs(cls)

    def eval(self, *options):
        return self.json("eval", "-m", self.wide, "-f", self.text, "-c", "64", *options)

    def test_json_names_every_figure_of_every_format(self):
        got = self.eval("--chunks", "3", "-t", "2")
        self.assertEqual(set(got), {"model", "model_file", "text", "context", "chunks", "first_position",
                                    "first_scored", "positions", "threads", "reference", "results"})
        self.assertEqual((got["model"], got["model_file"], got["text"]), ("tiny", str(self.wide), str(self.text)))
        self.assertEqual((got["context"], got["chunks"], got["first_scored"], got["positions"], got["threads"]),
                         (64, 3, 32, 3 * 31, 2))
        self.assertEqual([result["kv"] for result in got["results"]], DEFAULTS)
        for result in [got["reference"], *got["results"]]:
            self.assertEqual(set(result), RESULT_KEYS)
            for key in RESULT_KEYS - {"kv", "by_position"}:
                self.assertIsInstance(result[key], (int, float), key)
            self.assertLessEqual(result["kld_median"], result["kld_99"])
            self.assertLessEqual(result["kld_99"], result["kld_999"])
            self.assertLessEqual(result["kld_999"], result["kld_max"])
            self.assertEqual([result["by_position"][0]["begin"], result["by_position"][-1]["end"]], [32, 63])
            self.assertGreater(result["tokens_per_second"], 0)
        self.assertEqual((got["reference"]["kv"], got["reference"]["ratio"]), ("f32", 2))

    def test_bytes_are_those_that_inspect_prints(self):
        formats = self.json("inspect", "-m", self.wide)["kv"]["formats"]
        bytes_of = {row["type_k"]: row["bytes_per_token"] for row in formats}
        results = {result["kv"]: result for result in self.eval("--chunks", "1")["results"]}
        for name in ("f16", "tq8", "tq4", "tcq4", "tcq3"):
            self.assertEqual(results[name]["bytes_per_token"], bytes_of[name])
            self.assertAlmostEqual(results[name]["ratio"], bytes_of[name] / bytes_of["f16"])
        rows = 2 * tiny_model.LAYERS * tiny_model.KV_HEADS
        self.assertEqual(results["ggml-q8_0"]["bytes_per_token"], rows * 2 * 34)
        self.assertEqual(results["ggml-q4_0-rot"]["bytes_per_token"], rows * 2 * 18)

    def test_an_f32_cache_is_its_own_reference(self):
        got = self.eval("--kv", "f32")
        same = got["results"][0]
        for key in ("mean_kld", "kld_error", "kld_max", "rms_dp"):
            self.assertEqual(same[key], 0)
        self.assertEqual((same["same_top"], same["ppl"]), (1, got["reference"]["ppl"]))

    def test_perplexities_are_those_of_the_command_perplexity(self):
        got = self.eval("--kv", "f16,tcq4:tcq3")
        for result, kv in ((got["reference"], "f32"), (got["results"][0], "f16"), (got["results"][1], "tcq4:tcq3")):
            wanted = self.json("perplexity", "-m", self.wide, "-f", self.text, "-c", "64", "--kv", kv)
            self.assertAlmostEqual(result["ppl"] / wanted["ppl"], 1, places=6)
            self.assertAlmostEqual(result["ppl_error"] / wanted["ppl_error"], 1, places=4)

    def test_figures_depend_on_neither_threads_nor_batch(self):
        def figures(*options):
            got = self.eval("--kv", "tcq3,ggml-q4_0", *options)
            for result in [got["reference"], *got["results"]]:
                del result["tokens_per_second"]
            return got["reference"], got["results"]

        self.assertEqual(figures("-t", "1"), figures("-t", "3", "-b", "7"))

    def test_every_position_when_asked(self):
        got = self.eval("--kv", "f16", "--chunks", "2", "--all-positions")
        self.assertEqual((got["first_scored"], got["positions"]), (0, 2 * 63))

    def test_lists_add_up_and_names_of_others_become_ours(self):
        done = self.kvik("eval", "-m", self.wide, "-f", self.text, "-c", "64", "--chunks", "1", "-o", "json",
                         "--kv", "q8_0,f16", "--kv", "turboquant_k8v4", "--kv", "ggml-q8_0:tcq3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([result["kv"] for result in json.loads(done.stdout)["results"]],
                         ["tq8", "f16", "tq8:tcq4", "ggml-q8_0:tcq3"])
        self.assertIn("kvik: --kv q8_0: keys stored as tq8, values as tq8\n", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 2)

    def test_endings_are_in_the_names_of_results_and_change_what_they_say(self):
        names = ["tcq3", "tcq3+first4", "tcq3+recent64", "tcq3+skip0/-1", "tcq3+nocalib",
                 "tcq3+first4+recent16+skip1+nocalib"]
        results = {result["kv"]: result for result in self.eval("--kv", ",".join(names))["results"]}
        self.assertEqual(list(results), names)
        plain = results["tcq3"]
        for name in names[1:]:
            self.assertNotEqual(results[name]["mean_kld"], plain["mean_kld"], name)
            self.assertEqual(results[name]["bytes_per_token"] > plain["bytes_per_token"], "+skip" in name, name)
        # Every query of a chunk of 64 tokens reads nothing but exact rows.
        self.assertLess(results["tcq3+recent64"]["mean_kld"], 1e-3 * plain["mean_kld"])
        self.assertLess(results["tcq3+skip0/-1"]["mean_kld"], plain["mean_kld"])
        # Without the calibration it is what run computes without.
        off = self.eval("--kv", "tcq3", "--kv-calib", "off")["results"][0]
        self.assertEqual((off["mean_kld"], off["ppl"]),
                         (results["tcq3+nocalib"]["mean_kld"], results["tcq3+nocalib"]["ppl"]))
        wanted = self.json("perplexity", "-m", self.wide, "-f", self.text, "-c", "64", "--kv", names[-1])
        self.assertAlmostEqual(results[names[-1]]["ppl"] / wanted["ppl"], 1, places=6)

    def test_endings_that_are_none_are_refused(self):
        run = ("eval", "-m", self.wide, "-f", self.text, "-c", "64")
        for ending in ("+", "+first", "+first-1", "+last4", "+skip", "+skip0/", "+nocalib+nocalib", "+first4+first5"):
            self.fails(2, *run, "--kv", "tcq3" + ending, says=["--kv", "+first4, +recent64, +skip0/-1 and +nocalib"])
        self.fails(1, *run, "--kv", "tcq3+skip9", says=["tcq3+skip9", f"layers 0 to {tiny_model.LAYERS - 1}"])

    def test_formats_that_do_not_fit_are_left_out_of_the_default_and_refused_otherwise(self):
        run = ("eval", "-m", self.tiny, "-f", self.text, "-c", "64", "--chunks", "1")
        done = self.kvik(*run, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([result["kv"] for result in json.loads(done.stdout)["results"]], ["f16"])
        self.assertIn("left out, as the model's head dims do not fit: tq8, tq4,", done.stderr)
        self.fails(1, *run, "--kv", "f16,tcq4", says="tcq4")
        self.fails(1, *run, "--kv", "ggml-q8_0", says="multiples of 32, not 8")

    def test_refuses_what_cannot_be_scored(self):
        run = ("eval", "-m", self.wide)
        self.fails(2, *run, says=["-f", "scripts/fetch-text prideprejudice"])
        self.fails(2, *run, "-f", self.text, "-c", "3", says="at least 4")
        self.fails(2, *run, "-f", self.text, "--kv", "f16,q99", says=["q99", "tcq4", "ggml-q8_0"])
        self.fails(2, *run, "-f", self.text, "--first-position", "100", says=["--first-position 100", "512"])
        self.fails(1, *run, "-f", self.text, "-c", "500", says=[f"{4 * len(TEXT)} tokens", "500"])
        self.fails(1, *run, "-f", self.folder / "nothing.txt", says="nothing.txt")

    def test_positions_may_begin_far_away(self):
        near = self.eval("--chunks", "1", "--kv", "tcq4")
        far = self.eval("--chunks", "1", "--kv", "tcq4", "--first-position", "16384")
        self.assertEqual((near["first_position"], far["first_position"]), (0, 16384))
        self.assertNotEqual(far["reference"]["ppl"], near["reference"]["ppl"])
        self.assertAlmostEqual(far["reference"]["ppl"] / near["reference"]["ppl"], 1, delta=1e-3)
        text = self.ok("eval", "-m", self.wide, "-f", self.text, "-c", "64", "--kv", "f16", "--first-position", "512")
        self.assertIn(", the first at position 512\n", text)

    def test_text_and_markdown_have_a_row_for_each_format(self):
        run = ("eval", "-m", self.wide, "-f", self.text, "-c", "64", "--chunks", "1", "--kv", "f16,tcq4")
        text = self.ok(*run)
        self.assertRegex(text, r"(?m)^tiny on .*: 1 chunk of 64 tokens, 31 positions scored \(32 to 62 of each\)$")
        for name in ("f32 (reference)", "f16 ", "tcq4 "):
            self.assertRegex(text, "(?m)^" + re.escape(name))
        lines = self.ok(*run, "-o", "md").splitlines()
        self.assertEqual(len(lines), 5)
        self.assertEqual({line.count("|") for line in lines}, {12})


class Html(harness.CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        add_inputs(cls)

    def page(self, *options):
        return self.ok("eval", "-m", self.wide, "-f", self.text, "-c", "64", "-o", "html", *options)

    def test_is_one_page_that_needs_nothing_else(self):
        page = self.page()
        self.assertTrue(page.startswith("<!DOCTYPE html>"))
        for foreign in ("http:", "https:", "src=", "href=", "<script", "@import", "url("):
            self.assertNotIn(foreign, page)
        for name in DEFAULTS:
            self.assertIn(f"<td>{name}</td>", page)
        opened = []

        class Checker(html.parser.HTMLParser):
            def handle_starttag(self, tag, attributes):
                if tag != "meta":
                    opened.append(tag)

            def handle_endtag(self, tag):
                checker.case.assertEqual(opened.pop(), tag)

        checker = Checker()
        checker.case = self
        checker.feed(page)
        self.assertEqual(opened, [])

    def test_draws_a_point_and_a_line_for_each_format(self):
        plots = re.findall(r"<svg.*?</svg>", self.page("--kv", "f16,tcq4,ggml-q4_0"), re.DOTALL)
        self.assertEqual(len(plots), 2)
        by_bytes, by_position = map(xml.etree.ElementTree.fromstring, plots)
        circles = by_bytes.findall("circle")
        self.assertEqual(len(circles), 3)
        # f16 takes more bytes and diverges less: further right, further down.
        at = {circle.find("title").text.split(":")[0]: (float(circle.get("cx")), float(circle.get("cy")))
              for circle in circles}
        self.assertGreater(at["f16"][0], at["tcq4"][0])
        self.assertGreater(at["f16"][1], at["tcq4"][1])
        lines = by_position.findall("polyline")
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertEqual(len(line.get("points").split()), 31)
        for plot in (by_bytes, by_position):
            for text in plot.findall("text"):
                self.assertNotIn("nan", "".join(text.itertext()))

    def test_shows_no_plot_where_nothing_diverges(self):
        page = self.page("--kv", "f32")
        self.assertNotIn("<svg", page)
        self.assertIn("No divergence above 0", page)

    def test_names_cannot_become_markup(self):
        path = tiny_model.write(self.folder / "evil.gguf", {"general.name": (tiny_model.STRING, "<b>&'\"")})
        page = self.ok("eval", "-m", path, "-f", self.text, "-c", "64", "--chunks", "1", "--kv", "f16", "-o", "html")
        self.assertIn("&lt;b&gt;&amp;&#39;&quot;", page)
        self.assertNotIn("<b>", page)


class Long(harness.CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = tiny_model.write(cls.folder / "long.gguf", {"llama.context_length": (tiny_model.U32, 16384)})
        cls.text = cls.folder / "text.txt"
        cls.text.write_text((TEXT * 100)[:9000])

    def test_scores_the_last_512_positions_of_one_long_chunk(self):
        got = self.json("eval", "-m", self.tiny, "-f", self.text, "--long", "--kv", "f16")
        self.assertEqual((got["context"], got["chunks"], got["first_scored"], got["positions"]),
                         (8192, 1, 8192 - 513, 512))
        logprobs = self.json("score", "-m", self.tiny, "-p", (TEXT * 100)[:8192], "-c", "8192")["logprobs"]
        mean = -sum(logprobs[-512:]) / 512
        self.assertAlmostEqual(2.718281828459045 ** mean / got["results"][0]["ppl"], 1, places=5)

    def test_refuses_short_texts_and_contexts(self):
        run = ("eval", "-m", self.tiny, "--kv", "f16", "--long")
        self.fails(1, *run, "-p", "short", says=["5 tokens", "8192"])
        self.fails(2, *run, "-f", self.text, "-c", "4096", says=["--long", "8192", "4096"])
        self.fails(2, *run, "-f", self.text, "--all-positions", says=["--long", "--all-positions"])


class RealModel(harness.CliTest):
    def test_more_bits_diverge_less(self):
        text = "\n".join(
            json.loads(line)["text"] for line in (harness.GOLDEN / "tokenizer.jsonl").read_text().splitlines()[:400]
            if json.loads(line)["text"].isascii())
        path = self.file("text.txt", text)
        got = self.json("eval", "-m", harness.smollm2(), "-f", path, "-c", "128", "--chunks", "1",
                        "--kv", "f16,tq8,tcq4,tcq3,tcq2")
        klds = [result["mean_kld"] for result in got["results"]]
        self.assertEqual(klds, sorted(klds))
        self.assertLess(klds[0], 1e-5)
        self.assertGreater(klds[-1], 0.05)
        self.assertEqual(got["results"][0]["bytes_per_token"], 23040)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
