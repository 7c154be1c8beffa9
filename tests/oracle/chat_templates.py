"""Renders chat templates (a JSON object, name: text) by kvik and by jinja2, set up as transformers does, and compares.

Usage: chat_templates.py KVIK MODEL TEMPLATES. Prints each difference, then how many templates are equal for all chats.
A refusal of kvik that says "nothing reads" is right if, and only if, jinja2 gives the same text without that field.
"""
import concurrent.futures
import datetime
import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def refuse(message):
    raise TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = refuse
ENVIRONMENT.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Weather of a \"town\".\nIn degrees.",
    "parameters": {"type": "object", "properties": {
        "town": {"type": "string", "description": "Its name"}, "days": {"type": "integer", "default": 1},
        "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["town"]}}}]


def called(arguments, content):
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [{"role": "user", "content": "How warm is it in Bonn?"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"degrees": 21.5}'},
            {"role": "assistant", "content": "21.5 degrees."}, {"role": "user", "content": "Thanks \u00e9"}]


USER = [{"role": "user", "content": "Hi there"}]
THINK = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"},
         {"role": "user", "content": "and 3+3?"}]
OBJECT = {"town": "Bonn", "days": 2, "share": 0.5, "exact": True, "none": None}
CHATS = {
    "user": {"messages": USER},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi there \n"},
                            {"role": "assistant", "content": "Hello!\nYes."},
                            {"role": "user", "content": 'And "now"?'}]},
    "think": {"messages": THINK},
    "thinking on": {"messages": THINK, "enable_thinking": True},
    "thinking off": {"messages": THINK, "enable_thinking": False},
    "tools": {"messages": USER, "tools": TOOLS},
    "call object": {"messages": called(OBJECT, ""), "tools": TOOLS},
    "call string": {"messages": called(json.dumps(OBJECT), ""), "tools": TOOLS},
    "call null": {"messages": called(OBJECT, None)[:3], "tools": TOOLS},
    "call absent": {"messages": [{k: v for k, v in m.items() if k != "content" or v is not None}
                                 for m in called(OBJECT, None)], "tools": TOOLS},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}]}]},
    "documents": {"messages": USER, "documents": [{"title": "A", "text": "b"}]},
    "date": {"messages": USER, "date_string": "26 Jul 2024"},
}


@functools.cache
def compiled(text):
    return ENVIRONMENT.from_string(text)


def by_jinja(text, request):
    values = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **request}
    try:
        return compiled(text).render(**values)
    except Exception as error:  # whatever Python raises, the template has failed
        return error


def by_kvik(kvik, model, template, request):
    done = subprocess.run([kvik, "template", "-m", model, "-f", "-", "--chat-template-file", str(template)],
                          input=json.dumps(request).encode(), capture_output=True)
    return done.stdout.decode() if done.returncode == 0 else RuntimeError(done.stderr.decode().strip())


def without(request, field, message):
    if message is None:
        return {key: value for key, value in request.items() if key != field}
    messages = [dict(m) for m in request["messages"]]
    del messages[message][field]
    return {**request, "messages": messages}


def judge(kvik, model, template, request):
    """(None or what is wrong, which fields kvik named as unread)."""
    text = template.read_text(encoding="utf-8")
    named = []
    while True:
        right, got = by_jinja(text, request), by_kvik(kvik, model, template, request)
        unread = re.search(r'nothing reads "(\w+)"(?: of message (\d+))?', str(got)) if isinstance(got, Exception) else None
        if unread and not isinstance(right, Exception):
            field, message = unread[1], int(unread[2]) - 1 if unread[2] else None
            less = without(request, field, message)
            if by_jinja(text, less) != right:
                return f"kvik calls {field} unread, but jinja2 reads it", named
            named.append(field)
            request = less
            continue
        if isinstance(right, Exception) and isinstance(got, Exception) or right == got:
            return None, named
        if isinstance(right, str) and isinstance(got, str):
            at = next((i for i, (a, b) in enumerate(zip(right, got)) if a != b), min(len(right), len(got)))
            return f"jinja2 {right[at - 20:at + 40]!r}; kvik {got[at - 20:at + 40]!r}", named
        return f"jinja2 {str(right)[:100]!r}; kvik {str(got)[:160]!r}", named


def main():
    kvik, model, texts = sys.argv[1:]
    scratch = tempfile.TemporaryDirectory()
    templates = []
    for name, text in json.loads(pathlib.Path(texts).read_text(encoding="utf-8")).items():
        templates.append(pathlib.Path(scratch.name) / name)
        templates[-1].write_text(text, encoding="utf-8", newline="")
    cases = [(t, name, {**request, "add_generation_prompt": generate}) for t in templates
             for name, request in CHATS.items() for generate in (True, False)]
    bad, unread = {}, 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = pool.map(lambda case: judge(kvik, model, case[0], case[2]), cases)
        for (template, name, request), (wrong, named) in zip(cases, results):
            unread += bool(named)
            if wrong:
                bad.setdefault(template.name, []).append(name)
                print(f"{template.name}: {name}, {request['add_generation_prompt']}: {wrong}")
    print(f"{len(templates) - len(bad)} of {len(templates)} templates equal jinja2 in {len(cases)} chats; "
          f"in {unread} chats kvik named fields that the template does not read")
    sys.exit(1 if bad or not templates else 0)


if __name__ == "__main__":
    main()
