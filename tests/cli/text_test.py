"""tokenize, template, inspect, score, perplexity and bench: shapes, and golden values of the real model."""

import json
import math
import sys

import harness
import tiny_model


class Tokenize(harness.CliTest):
    def test_ids_of_a_file_and_of_a_text_are_the_same(self):
        text = "caf\u00e9 \u2603"
        ids = list(text.encode())
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "-p", text), {"ids": ids})
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "-f", self.file("t.txt", text)), {"ids": ids})
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "-f", "-", input=text), {"ids": ids})

    def test_bytes_that_are_not_utf8_are_written_out(self):
        got = self.ok("tokenize", "-m", self.tiny, "-p", "\u20ac\"\\")
        self.assertEqual([line.split()[1] for line in got.splitlines()],
                         ['"\\xe2"', '"\\x82"', '"\\xac"', '"\\""', '"\\\\"'])

    def test_control_tokens_only_when_asked(self):
        text = "a<|end|>"
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "-p", text)["ids"], list(text.encode()))
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "--special", "-p", text)["ids"], [97, 257])

    def test_adds_bos_as_the_model_says(self):
        path = tiny_model.write(self.folder / "bos.gguf",
                                {"tokenizer.ggml.add_bos_token": (tiny_model.BOOL, True)})
        self.assertEqual(self.json("tokenize", "-m", path, "-p", "a")["ids"], [256, 97])

    def test_nothing_gives_no_tokens(self):
        self.assertEqual(self.json("tokenize", "-m", self.tiny, "-p", ""), {"ids": []})

    def test_text_output_has_a_line_for_each_token(self):
        self.assertEqual(self.ok("tokenize", "-m", self.tiny, "-p", 'a"\n'),
                         '    97  "a"\n    34  "\\""\n    10  "\\n"\n')

    def test_golden_lines(self):
        model = harness.smollm2()
        lines = (harness.GOLDEN / "tokenizer.jsonl").read_text(encoding="utf-8").splitlines()
        for line in lines[::max(1, len(lines) // 12)]:
            case = json.loads(line)
            if not case["second_source_agrees"]:
                continue
            path = self.file("golden.txt", case["text"])
            self.assertEqual(self.json("tokenize", "-m", model, "-f", path)["ids"], case["ids"])
            self.assertEqual(self.json("tokenize", "-m", model, "--special", "-f", path)["ids"], case["ids_special"])


class Template(harness.CliTest):
    MESSAGES = [{"role": "system", "content": "be\nbrief"}, {"role": "user", "content": "say <|end|>"}]

    def test_prints_the_string_alone(self):
        path = self.file("m.json", json.dumps(self.MESSAGES))
        plain = "<|turn|>system:be\nbrief<|end|><|turn|>user:say <|end|><|end|>"
        self.assertEqual(self.ok("template", "-m", self.tiny, "-f", path), plain)
        self.assertEqual(self.ok("template", "-m", self.tiny, "-f", path, "--add-generation-prompt"),
                         plain + "<|turn|>assistant:")

    def test_takes_an_object_with_messages(self):
        path = self.file("m.json", json.dumps({"messages": self.MESSAGES[:1]}))
        self.assertEqual(self.ok("template", "-m", self.tiny, "-f", path), "<|turn|>system:be\nbrief<|end|>")

    def test_content_never_becomes_control_tokens(self):
        path = self.file("m.json", json.dumps(self.MESSAGES))
        ids = self.json("template", "-m", self.tiny, "-f", path)["ids"]
        self.assertEqual([id for id in ids if id > 255], [256, 257, 256, 257])

    def test_golden_chats(self):
        model = harness.smollm2()
        for line in (harness.GOLDEN / "chat.jsonl").read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            path = self.file("chat.json", json.dumps(case["messages"]))
            self.assertEqual(self.ok("template", "-m", model, "-f", path), case["prompt"], case["name"])
            self.assertEqual(self.ok("template", "-m", model, "-f", path, "--add-generation-prompt"),
                             case["prompt_generate"], case["name"])


class Inspect(harness.CliTest):
    def test_shows_metadata_and_tensors(self):
        got = self.json("inspect", "-m", self.tiny)
        self.assertEqual(got["metadata"]["general.architecture"], "llama")
        self.assertEqual(got["metadata"]["tokenizer.ggml.tokens"], {"array_of": "string", "count": 258})
        self.assertEqual({t["name"]: tuple(t["shape"]) for t in got["tensors"]}, tiny_model.tensors())
        self.assertEqual(got["bytes"], self.tiny.stat().st_size)
        text = self.ok("inspect", "-m", self.tiny)
        for word in ("general.architecture", "blk.2.ffn_down.weight", "bytes per token", "bf16"):
            self.assertIn(word, text)

    def test_bytes_per_token_follow_from_the_shape(self):
        # 2 (K and V) x layers x heads x dims x bytes; 8 dims of V are stored as 16.
        rows = {row["type_k"]: row for row in self.json("inspect", "-m", self.tiny)["kv"]["formats"]}
        for name, size in (("f32", 4), ("f16", 2), ("bf16", 2)):
            self.assertEqual(rows[name]["bytes_per_token"],
                             tiny_model.LAYERS * tiny_model.KV_HEADS * (8 + 16) * size)

    def test_smollm2_takes_23040_bytes_per_token_at_f16(self):
        rows = {row["type_k"]: row for row in self.json("inspect", "-m", harness.smollm2())["kv"]["formats"]}
        self.assertEqual(rows["f16"]["bytes_per_token"], 23040)
        self.assertEqual(rows["f32"]["bytes_per_token"], 46080)


class Parts(harness.CliTest):
    """A model in several files."""

    def test_score_is_that_of_the_whole(self):
        text = "it is a truth universally acknowledged, "
        wanted = self.json("score", "-m", self.tiny, "-p", text)
        for num_parts in (2, 3, 5):
            first = tiny_model.write_parts(self.folder, f"cut{num_parts}", num_parts)[0]
            self.assertEqual(self.json("score", "-m", first, "-p", text), wanted, num_parts)

    def test_inspect_lists_them(self):
        paths = tiny_model.write_parts(self.folder, "listed", 3)
        sizes = [path.stat().st_size for path in paths]
        got = self.json("inspect", "-m", paths[0])
        self.assertEqual(got["parts"], [{"file": str(p), "bytes": n} for p, n in zip(paths, sizes)])
        self.assertEqual(got["bytes"], sum(sizes))
        self.assertEqual({t["name"]: tuple(t["shape"]) for t in got["tensors"]}, tiny_model.tensors())
        text = self.ok("inspect", "-m", paths[0])
        self.assertIn("Parts (3)\n", text)
        for path, size in zip(paths, sizes):
            self.assertIn(f"  {path}  {size} bytes", text)
        self.assertNotIn("Parts", self.ok("inspect", "-m", self.tiny))
        self.assertEqual(len(self.json("inspect", "-m", self.tiny)["parts"]), 1)

    def test_what_is_wrong_names_the_file(self):
        def parts(name, changes=None):
            return tiny_model.write_parts(self.folder, name, 2, changes)

        def refused(first, *says):
            for command in (("score", "-p", "x"), ("inspect",)):
                self.fails(1, *command, "-m", first, says=[str(s) for s in says])

        first, second = parts("second")
        refused(second, second, "part 2 of 2", first)
        first, second = parts("missing")
        second.unlink()
        refused(first, second, "part 2 of the 2")
        first, second = parts("cut")
        second.write_bytes(second.read_bytes()[:-40])
        refused(first, second)
        first, second = parts("empty")
        second.write_bytes(b"")
        refused(first, second)
        first, second = parts("twice")
        second.write_bytes(first.read_bytes())
        refused(first, second, "part 1 of 2")
        first, _ = parts("renamed")
        refused(first.rename(self.folder / "renamed.gguf"), "renamed.gguf", "-00001-of-00002.gguf")
        first, second = parts("count", {1: {"split.count": (tiny_model.U16, 3)}})
        refused(first, second, "3 parts")
        first, second = parts("total", {1: {"split.tensors.count": (tiny_model.I32, 9)}})
        refused(first, second, "split.tensors.count")
        first, second = parts("other", {1: {"general.architecture": (tiny_model.STRING, "qwen2")}})
        refused(first, second, "general.architecture")


class Score(harness.CliTest):
    def test_has_one_log_probability_fewer_than_ids(self):
        got = self.json("score", "-m", self.tiny, "-p", "hello")
        self.assertEqual(got["ids"], list(b"hello"))
        self.assertEqual(len(got["logprobs"]), 4)
        self.assertTrue(all(-30 < p < 0 for p in got["logprobs"]))

    def test_takes_ids(self):
        path = self.file("ids.json", "[104, 101, 108, 108, 111]")
        self.assertEqual(self.json("score", "-m", self.tiny, "--ids", path),
                         self.json("score", "-m", self.tiny, "-p", "hello"))

    def test_is_the_same_for_any_layout_block_size_batch_and_threads(self):
        text = "the quick brown fox jumps over the lazy dog " * 5
        wanted = self.json("score", "-m", self.tiny, "-p", text)
        for options in (("--kv-layout", "contiguous"), ("--block-size", "64"), ("-b", "7"), ("-b", "1"), ("-t", "3")):
            self.assertEqual(self.json("score", "-m", self.tiny, "-p", text, *options), wanted, options)


class PerplexityOfText(harness.CliTest):
    def test_agrees_with_score(self):
        text = "it is a truth universally acknowledged, " * 4
        got = self.json("perplexity", "-m", self.tiny, "-p", text, "-c", "32", "--chunks", "2")
        self.assertEqual((got["chunks"], len(got["chunk_nll"])), (2, 2))
        nlls = []
        for k in range(2):
            chunk = text[32 * k:32 * (k + 1)]
            logprobs = self.json("score", "-m", self.tiny, "-p", chunk)["logprobs"]
            self.assertAlmostEqual(got["chunk_nll"][k][0], -sum(logprobs[16:]) / 15, places=6)
            self.assertAlmostEqual(got["chunk_nll"][k][1], -sum(logprobs) / 31, places=6)
            nlls += logprobs[16:]
        mean = -sum(nlls) / len(nlls)
        self.assertAlmostEqual(got["ppl"], math.exp(mean), places=4)
        variance = sum((nll + mean) ** 2 for nll in nlls) / len(nlls)
        self.assertAlmostEqual(got["ppl_error"], got["ppl"] * math.sqrt(variance / (len(nlls) - 1)), places=4)

    def test_text_output_is_running_then_final(self):
        out = self.ok("perplexity", "-m", self.tiny, "-p", "x" * 100, "-c", "32")
        self.assertRegex(out, r"^\[1\][\d.]+,\[2\][\d.]+,\[3\][\d.]+\nFinal estimate: PPL = [\d.]+ \+/- [\d.]+ ")


class Bench(harness.CliTest):
    def test_json_has_a_record_for_each_test(self):
        got = self.json("bench", "-m", self.tiny, "-p", "16,32", "-n", "4", "-d", "0,64", "-r", "2", "-t", "1",
                        "-ctk", "f16,f32")
        self.assertEqual(len(got), 2 * 2 * 3)
        self.assertEqual([r["test"] for r in got[:6]],
                         ["pp16", "pp32", "tg4", "pp16 @ d64", "pp32 @ d64", "tg4 @ d64"])
        for record in got:
            self.assertEqual(len(record["samples_ts"]), 2)
            self.assertGreater(record["avg_ts"], 0)
            for key in ("model_type", "model_size", "model_n_params", "n_threads", "type_k", "type_v", "n_prompt",
                        "n_gen", "n_depth", "avg_ns", "stddev_ns", "stddev_ts", "samples_ns", "backend"):
                self.assertIn(key, record)

    def test_markdown_is_a_table(self):
        lines = self.ok("bench", "-m", self.tiny, "-p", "16", "-n", "2", "-r", "1", "-t", "1").splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual({line.count("|") for line in lines}, {10})
        self.assertIn("| pp16 |", lines[2])
        self.assertIn("| tg2 |", lines[3])

    def test_processor_time_is_named_and_wants_one_thread(self):
        bench = ("bench", "-m", self.tiny, "-p", "16", "-n", "0", "-r", "1", "--clock", "cpu")
        self.assertIn("| t/cpu-s |", self.ok(*bench, "-t", "1"))
        self.assertEqual(self.json(*bench, "-t", "1")[0]["clock"], "cpu")
        self.fails(2, *bench, "-t", "2", says=["--clock cpu", "-t 1"])

    def test_each_way_to_store_the_cache_is_a_row_that_names_it(self):
        wide = tiny_model.write(self.folder / "wide.gguf", head_dim=64)
        bench = ("bench", "-m", wide, "-p", "0", "-n", "2", "-d", "100", "-r", "1", "-t", "1")
        types = "f16,tcq4,tcq4+first4,q8+recent16,tq4:tcq3+skip0/-1+nocalib"
        done = self.kvik(*bench, "--kv", types, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        # As run does, bench calibrates the keys that can be, once.
        self.assertEqual(done.stderr.count("calibrating the keys of this model, once"), 1)
        rows = json.loads(done.stdout)
        self.assertEqual([row["kv"] for row in rows], types.split(","))
        self.assertEqual([row["key_frame"] for row in rows], [None, 128, 128, None, None])
        self.assertEqual([(row["exact_first"], row["exact_recent"], row["f16_layers"]) for row in rows],
                         [(0, 0, []), (0, 0, []), (4, 0, []), (0, 16, []), (0, 0, [0, tiny_model.LAYERS - 1])])
        table = self.ok(*bench, "--kv", "f16,tcq4", "--kv-first", "4").splitlines()
        self.assertEqual({line.count("|") for line in table}, {11})
        self.assertIn("| tcq4 | tcq4 | tcq4+first4 | tg2 @ d100 |", table[3])
        by_option = self.json(*bench, "--kv-quality", "tiny", "--kv-calib", "off")
        self.assertEqual([row["kv"] for row in by_option], ["tcq3+first4+nocalib"])


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
