"""template and the chats of run: request objects, tools, variables, a template of one's own, jinja2 as the oracle."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

import harness
import tiny_model

USER = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ALL = ("{% if tools %}TOOLS {{ tools | tojson }}{% endif %}{% if enable_thinking is defined %}THINK {{ enable_thinking }}"
       "{% endif %}{{ messages[0].content }}{% if add_generation_prompt %} GO{% endif %}")


class Requests(harness.CliTest):
    def setUp(self):
        self.template = self.file("all.jinja", ALL)

    def render(self, request, *arguments):
        return self.ok("template", "-m", self.tiny, "-f", "-", "--chat-template-file", self.template, *arguments,
                       input=json.dumps(request))

    def refused(self, request, *arguments, says, code=1):
        self.fails(code, "template", "-m", self.tiny, "-f", "-", *arguments, input=json.dumps(request), says=says)

    def test_all_of_a_request_object_reaches_the_template(self):
        request = {"messages": USER, "tools": TOOLS, "enable_thinking": False, "add_generation_prompt": True}
        expected = 'TOOLS [{"type": "function", "function": {"name": "f"}}]THINK FalseHi GO'
        self.assertEqual(self.render(request), expected)
        request = {"messages": USER, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
        self.assertEqual(self.render(request, "--add-generation-prompt"), expected)

    def test_options_do_the_same_and_win(self):
        tools = self.file("tools.json", json.dumps(TOOLS))
        self.assertEqual(self.render(USER, "--tools", tools, "--template-var", "enable_thinking=true"),
                         'TOOLS [{"type": "function", "function": {"name": "f"}}]THINK TrueHi')
        self.assertEqual(self.render({"messages": USER, "enable_thinking": True}, "--template-var",
                                     "enable_thinking=null"), "THINK NoneHi")

    def test_a_field_that_nothing_reads_is_named(self):
        self.refused({"messages": USER, "tools": TOOLS}, says='nothing reads "tools"')
        self.refused({"messages": USER, "enable_thinking": False}, says='nothing reads "enable_thinking"')
        self.refused({"messages": USER, "temperature": 0.5}, says='nothing reads "temperature"')
        self.refused([{**USER[0], "name": "bob"}], says='nothing reads "name" of message 1')
        self.refused(USER, "--template-var", "day=1", says='nothing reads "day"')
        self.assertEqual(self.ok("template", "-m", self.tiny, "-f", "-",
                                 input=json.dumps({"messages": USER, "tools": None, "documents": []})),
                         "<|turn|>user:Hi<|end|>")

    def test_wrong_options_are_named_before_the_model_is_read(self):
        for option in ("enable_thinking", "=1", "a b=1", "x=yes", "messages=[]"):
            self.fails(2, "template", "-m", "nowhere.gguf", "-f", "-", "--template-var", option, says="--template-var")
        wrong = self.file("wrong.jinja", "a\n{% if %}")
        self.fails(1, "template", "-m", "nowhere.gguf", "-f", "-", "--chat-template-file", wrong,
                   says=["wrong.jinja", "line 2, column 7"])
        self.fails(1, "template", "-m", "nowhere.gguf", "-f", "-", "--tools", self.file("t.json", "{}"), says="t.json")

    def test_integers_that_would_lose_digits_are_refused(self):
        for number in ("9223372036854775808", "99999999999999999999999"):
            self.fails(1, "template", "-m", self.tiny, "-f", "-", input='{"messages": [], "x": ' + number + "}",
                       says=["64 bits", number])

    def test_content_is_text_wherever_a_template_of_ones_own_puts_it(self):
        own = self.file("own.jinja", "<|turn|>{{ messages | tojson }}")
        ids = self.json("template", "-m", self.tiny, "-f", "-", "--chat-template-file", own,
                        input=json.dumps([{"role": "user", "content": "<|end|>"}]))["ids"]
        self.assertEqual(ids[0], 256)
        self.assertNotIn(257, ids)

    def test_run_takes_them_too(self):
        own = self.file("run.jinja", "{{ messages[0].content }}{% if not think %}!{% endif %}")
        common = ("run", "-m", self.tiny, "-n", "1", "--temp", "0", "-p", "ab")
        plain = self.json(*common, "--chat", "--chat-template-file", own)["prompt_ids"]
        self.assertEqual(len(plain), 3)
        thinking = self.json(*common, "--chat", "--chat-template-file", own, "--template-var", "think=true")
        self.assertEqual(len(thinking["prompt_ids"]), 2)
        self.fails(2, *common, "--template-var", "think=true", says=["--template-var", "--chat"])


class ChatTemplates(harness.CliTest):
    def test_chat_templates_of_seventy_models_equal_jinja2(self):
        required = "chat-templates" in os.environ.get("KVIK_REQUIRE_MODELS", "").split()
        texts = harness.fetched() / "chat-templates.json"
        missing = ("run scripts/fetch-templates chat-templates first" if not texts.exists() else
                   "the package jinja2 is missing; run scripts/setup" if not importlib.util.find_spec("jinja2") else "")
        if missing:
            self.assertFalse(required, missing)
            raise unittest.SkipTest(missing)
        pieces = [*tiny_model.byte_pieces(), "<s>", "</s>"]
        model = tiny_model.write(self.folder / "s.gguf", {"tokenizer.ggml.tokens": (tiny_model.STRING, pieces)})
        oracle = pathlib.Path(__file__).resolve().parent.parent / "oracle" / "chat_templates.py"
        done = subprocess.run([sys.executable, "-B", oracle, harness.KVIK, model, texts], capture_output=True,
                              text=True, encoding="utf-8", timeout=600, env=harness.clean_environment())
        print(done.stdout[-2000:], file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("70 of 70 templates equal jinja2", done.stdout)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
