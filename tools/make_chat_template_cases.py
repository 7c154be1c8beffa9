#!/usr/bin/env python3
"""Writes tests/golden/chat_template/cases.jsonl: what Jinja makes of templates.

Usage: make_chat_template_cases.py OUT. Needs the PyPI package jinja2 (committed file: 3.1.6).
Each line: name, template, messages, add_generation_prompt, bos_token, eos_token, variables, and
either "output" or "error": true. "kind" is "whole" and "piece" (written by hand: the subset must
give the same) or "random" (the subset may refuse, but never differ). The templates of files *.jinja
beside OUT come last, as "whole".
"""
import json
import pathlib
import random
import re
import sys
import warnings

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise TemplateError(message)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception

CHAT = [
    {"role": "system", "content": "  Be brief. \n"},
    {"role": "user", "content": "Hi {{ 'x' }} \u00e9\u4f60\U0001F600 <|end|>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
    {"role": "user", "content": "Bye"},
]
NO_SYSTEM = CHAT[1:]
VARIABLES = {"flag": True, "off": False, "count": 7, "word": "Abc", "empty": ""}

# Whole templates, in the manner of the families of models.
WHOLE = {
    "turns": """{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{% endif %}""",
    "headers": """{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}

{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
        {%- for name, value in message.tool_calls[0].arguments | items %}
            {{- name ~ '=' ~ value }}{% if not loop.last %}, {% endif %}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "thinking": """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {%- if loop.last or (not loop.last and reasoning) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "alternating": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "roles": """{% for message in messages -%}
  {% set role = 'model' if message.role == 'assistant' else message.role %}
  <start_of_turn>{{ role }}
  {{ message.content | trim }}<end_of_turn>
{% else %}
nobody spoke
{% endfor %}
{% if add_generation_prompt -%}
<start_of_turn>model
{% endif %}
""",
}

# One construct each. Variables: VARIABLES and messages.
PIECES = """
{{ 1 }}|{{ -3 }}|{{ +3 }}|{{ 1_000 }}|{{ true }}|{{ True }}|{{ none }}|{{ None }}|{{ nothing }}|
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}
{{ (1 + 2) * 3 }} {{ - 2 * 3 }} {{ 2 - -2 }} {{ true + true }} {{ -true }}
{{ 'a' + "b" }}{{ 'a' 'b' "c" }}{{ 'a' ~ 1 ~ none ~ true ~ nothing }}{{ 1 ~ 2 + 3 ~ 4 }}
{{ 'a' ~ 1 + 2 }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 'a' + nothing }}
{{ nothing.x }}
{{ word.x }}|{{ word.x is defined }}
{{ nothing['x'] }}
{{ 1 // 0 }}
{{ '\\n\\t\\\\\\'\\"\\x41\\u00e9\\U0001F600\\q' }}
{{ "it's" }} {{ 'say "x"' }}
{{ 1 == true }} {{ 1 != true }} {{ 'a' == 'a' }} {{ 'a' == 1 }} {{ none == none }} {{ nothing == nothingelse }} {{ none == false }} {{ 0 == false }} {{ [1, 2] == [1, 2] }} {{ [1] == [true] }} {{ {'a': 1} == {'a': 1} }}
{{ 1 < 2 }} {{ 2 <= 2 }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ '\u00e9' > 'z' }} {{ '\U0001F600' > '\uffee' }} {{ true < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 'b' in 'abc' }} {{ 'x' not in 'abc' }} {{ '' in 'abc' }} {{ 1 in [1, 2] }} {{ 'role' in messages[0] }} {{ 'x' in messages[0] }} {{ 'x' in nothing }} {{ not 'x' in 'x' }}
{{ 1 in 'a1' }}
{{ 1 in 1 }}
{{ true and 'x' }} {{ '' or 'y' }} {{ 0 or none }} {{ 'a' and '' }}| {{ not 0 }} {{ not not 'a' }} {{ true or nothing.x }} {{ not true == false }}
{{ 'a' if flag else 'b' }}{{ 'a' if off else 'b' }}|{{ 'a' if off }}|{{ 'a' if off else 'b' if off else 'c' }}
{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].content }} {{ messages[9] }}| {{ messages[0].nope }}| {{ messages[0]['nope'] }}|
{{ word[0] }}{{ word[-1] }}{{ word[9] }}| {{ messages['role'] }}|
{{ word[1:] }} {{ word[:-1] }} {{ word[::-1] }} {{ word[::2] }} {{ word[5:] }}| {{ word[-9:2] }} {{ word[2:0:-1] }} {{ word[9:-9:-2] }} {{ word[none:2] }}
{{ messages[1].content[3:9] }}|{{ messages[1].content[::-1] }}|{{ messages[1].content[-3] }}
{{ word[::0] }}
{{ word['a':] }}
{{ nothing[1:] }}
{{ messages[1:]|length }} {{ messages[:-1]|length }} {{ messages[::-1][0].content }} {{ messages[10:]|length }}
{{ [1, 'a', none, true][1] }} {{ [1, 2,][1] }} {{ []|length }} {{ [[1], [2]][1][0] }} {{ ([1] + [2])|length }}
{{ {'a': 1}.a }} {{ {'a': 1, 'b': 2}['b'] }} {{ {'a': 1, 'a': 2}|length }} {{ {}|length }}
{{ word|length }} {{ word|count }} {{ messages|length }} {{ messages[0]|length }} {{ nothing|length }} {{ '\u00e9\U0001F600'|length }}
{{ 1|length }}
{{ '  x \n'|trim }}| {{ 'xxaxx'|trim('x') }} {{ '\u3000a\u00a0\x1f'|trim }}| {{ 5|trim }} {{ none|trim }} {{ nothing|trim }}|
{{ 'aBc'|upper }} {{ 'aBc'|lower }} {{ 'aBc'.upper() }} {{ 'aBc'.lower() }}
{{ [1, 2]|first }} {{ [1, 2]|last }} {{ 'abc'|first }} {{ 'abc'|last }} {{ []|first }}| {{ []|last is defined }}
{{ [1, 'b', none]|join }} {{ ['a', 'b']|join(', ') }} {{ 'abc'|join('-') }} {{ []|join(',') }}| {{ messages[0]|join(',') }}
{{ nothing|default('d') }} {{ nothing|d('e') }} {{ ''|default('d') }}| {{ ''|default('d', true) }} {{ 0|d(5, true) }} {{ 'x'|default('d', true) }} {{ nothing|default }}|
{{ 'aXbX'|replace('X', 'yy') }} {{ 'aaa'|replace('aa', 'b') }} {{ 'abc'.replace('b', '') }}
{{ ['a', 'b', 'a']|reject('equalto', 'a')|join(',') }} {{ [1, true, 2]|select('equalto', 1)|list|length }} {{ 'abc'|reject('==', 'a')|first }} {{ nothing|select('equalto', 1)|join }}|
{{ 5|string + 'a' }} {{ true|string }} {{ none|string }}
{{ 'abc'|list|length }} {{ ('abc'|list)[1] }} {{ messages[0]|list|join(',') }}
{{ 'a"\\\\\\n\\u0001\u00e9\x7f/<>&'|tojson }} {{ 5|tojson }} {{ none|tojson }} {{ true|tojson }} {{ [1, [], {}, 'x']|tojson }} {{ {'a': [1, {'b': none}]}|tojson }}
{{ messages[0]|tojson }}
{{ messages|tojson(indent=2) }}
{{ {'a': [1, {'b': none}], 'c': {}, 'd': []}|tojson(indent=4) }}
{{ nothing|tojson }}
{% for k, v in messages[0]|items %}{{ k }}={{ v }};{% endfor %}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].keys()|list|join }}{{ messages[0].values()|join }}
{% for k in messages[0] %}{{ k }};{% endfor %}{% for c in 'a\u00e9' %}{{ c }};{% endfor %}{% for x in nothing %}x{% else %}none{% endfor %}
{{ messages[0].get('role') }} {{ messages[0].get('x') }} {{ messages[0].get('x', 'y') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('ab') }} {{ 'abc'.startswith('') }}
{{ 'a,b,,c'.split(',')|join('|') }} {{ 'a,b,c'.split(',', 1)|join('|') }} {{ ''.split(',')|length }} {{ 'aaa'.split('aa')|join('|') }} {{ 'a,b'.split(',', -1)|length }} {{ 'a,b'.split(',', 0)|length }}
{{ 'a'.split('') }}
{{ 'xxabxx'.strip('x') }} {{ 'xyab'.lstrip('yx') }} {{ 'abxy'.rstrip('yx') }} {{ ' a '.strip() }}| {{ ' a '.lstrip() }}| {{ ' a '.rstrip() }}| {{ '\u00e9a\u00e9'.strip('\u00e9') }}
{{ nothing.strip() }}
{{ 1 is defined }} {{ nothing is defined }} {{ nothing is undefined }} {{ nothing is not defined }} {{ not nothing is defined }} {{ none is defined }} {{ tools is none }} {{ documents is none }}
{{ none is none }} {{ 0 is none }} {{ nothing is none }} {{ 'a' is string }} {{ 1 is string }} {{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ 1 is boolean }}
{{ {} is mapping }} {{ [] is mapping }} {{ 'a' is iterable }} {{ [] is iterable }} {{ {} is iterable }} {{ 1 is iterable }} {{ nothing is iterable }} {{ 'a' is sequence }} {{ {} is sequence }} {{ [] is sequence }} {{ nothing is sequence }} {{ none is iterable }}
{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ flag is true }} {{ off is false }} {{ off is not true }}
{% if flag %}a{% elif off %}b{% else %}c{% endif %}{% if off %}a{% elif flag %}b{% else %}c{% endif %}{% if off %}a{% elif off %}b{% else %}c{% endif %}{% if off %}a{% endif %}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ loop.nextitem.role if not loop.last else '-' }} {% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}:{{ m.content }};{% endfor %}
{% for a in [1, 2] %}{% for b in 'xy' %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}
{% for a, b in [[1, 2], 'xy'] %}{{ a }}-{{ b }};{% endfor %}
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
{% for x in 5 %}{{ x }}{% endfor %}
{% for x in [] %}a{% else %}b{% endfor %}{% for x in [1] %}a{% else %}b{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}
{% set x = 1 %}{% if flag %}{% set x = 2 %}{% endif %}{{ x }}
{% set ns = namespace(n=0, s='') %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.nope }}|{{ ns.nope is defined }}
{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a|join(',') }}
{% set x %}a{{ 1 + 1 }}{% set y = 5 %}b{% endset %}[{{ x }}]{{ y is defined }}
{% set x = 'a' %}{% set x.b = 1 %}
{% set messages = messages[1:] %}{{ messages[0].role }}{% set bos_token = 'x' %}{{ bos_token }}
{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}
{{ raise_exception('no') }}
{{ flag }}{{ count }}{{ word }}{{ empty }}{{ count + 1 }}
a{# comment {{ x }} #}b{#- c -#}  d
  {# x #}
  a
  {%- if flag %} b {% endif -%}  c
  {% if flag %}
    x
  {% endif %}
y
  {%+ if flag %} x {%+ endif +%}
  z
{{ 1 }}
{{ 2 -}}

  {{- 3 }}
x {%- if flag -%}   y   {%- endif -%} z
{ { } } {% if '%}' %}{{ '}}' }}{% endif %}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}}|length}}
{{ [1,2][0]}}{{(1)}}{{ messages [0] . role }}{{ 'a'|upper|lower }}
{% for x in [1,2,3] %}
  {{ x }}
{% endfor %}
end
line one

line two

{{ 1 }}{% if flag %}

kept{% endif %}
{{ 1
{% if flag %}
{% endif %}
{% endfor %}
{{ 1 1 }}
{{ }}
{{ 'abc }}
{{ (1 }}
{{ 1) }}
{{ [1 }}
{% for x on y %}{% endfor %}
{% set x 1 %}
{{ a b }}
{# open
"""

# Template texts with line breaks, tried as they are.
BLOCKS = [
    "\n\n{% if flag %}\n\n a\n{% endif %}\n\n\nb\n\n",
    "  {% if flag %}  \n  a  \n  {% endif %}  \n  b",
    "a\n  {#- x -#}  \n  b\n\t{# y #}\nc",
    "{% if flag +%}\n a\n{% endif %}\nb",
    "a  {%- if flag +%}\n b {%+ endif %}\nc",
    "\r\na\r\n{% if flag %}\r\nb\r{% endif %}\rc\r\n",
    "{{ 'a\nb' }}\n",
    "\t {{ 1 }}\n \t{%- set x = 1 %}\n{{ x }}\n\n",
    "x\u00a0{%- if flag %}y{% endif -%}\u3000z",
    "\u00a0\u2003{% if flag %}a{% endif %}",
    "{% set a = 1 -%}\n\n  {% set b = 2 %}\n  {{ a }}{{ b }}",
    "a{% if flag %}b\n  {% endif %}c",
    "{# a #}\n\n{# b #}\nc",
    "{#- -#}a{#+ +#}\nb",
]


def random_expression(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([
            "1", "0", "-2", "7", "'a'", "'b c'", "''", "'\u00e9x'", "true", "false", "none", "word",
            "count", "flag", "off", "empty", "nothing", "messages", "messages[0]", "m.role",
            "m['content']", "m.nope", "loop.index0", "loop.last", "[1, 'a']", "[]", "{'a': 1}",
            "ns.n", "ns.s"])
    sub = lambda: random_expression(rng, depth - 1)
    kind = rng.randrange(14)
    if kind == 0:
        return f"{sub()} {rng.choice(['+', '-', '*', '//', '%', '~'])} {sub()}"
    if kind == 1:
        return f"({sub()} {rng.choice(['+', '~', '+'])} {sub()})"
    if kind == 2:
        return f"{sub()} {rng.choice(['==', '!=', '<', '>=', 'in', 'not in'])} {sub()}"
    if kind == 3:
        return f"({sub()} {rng.choice(['and', 'or'])} {sub()})"
    if kind == 4:
        return f"not {sub()}"
    if kind == 5:
        return f"({sub()} if {sub()} else {sub()})"
    if kind == 6:
        test = rng.choice(["defined", "none", "string", "number", "mapping", "iterable", "true",
                           "undefined", "sequence", "boolean", "integer", "false"])
        return f"({sub()} is {rng.choice(['', 'not '])}{test})"
    if kind in (7, 8):
        name = rng.choice(["trim", "length", "upper", "lower", "first", "last", "join(',')",
                           "default('d')", "d('e', true)", "string", "list", "tojson", "items",
                           "replace('a', 'bb')", "trim('a')", "tojson(indent=1)"])
        return f"({sub()})|{name}"
    if kind == 9:
        name = rng.choice(["strip()", "lstrip('a')", "rstrip()", "upper()", "lower()", "split('a')",
                           "startswith('a')", "endswith('x')", "replace('a', '')", "get('a')",
                           "keys()", "items()", "values()", "split(' ', 1)"])
        return f"({sub()}).{name}"
    if kind == 10:
        return f"({sub()})[{rng.choice(['0', '-1', '1', '5', sub()])}]"
    if kind == 11:
        part = lambda: rng.choice(["", "0", "1", "-1", "2", "9"])
        return f"({sub()})[{part()}:{part()}{rng.choice(['', ':', ':-1', ':2'])}]"
    if kind == 12:
        return f"[{sub()}, {sub()}]"
    return f"-{sub()}" if rng.random() < 0.3 else f"({sub()})"


def random_template(rng):
    space = lambda: rng.choice(["", " ", "\n", "  ", "\n  ", "\n\n", "x"])
    sign = lambda: rng.choice(["", "", "", "-"])
    body = "".join(
        f"{space()}{{{{{sign()} {random_expression(rng, 3)} {sign()}}}}}{space()}"
        for _ in range(rng.randrange(1, 3)))
    wrapped = (f"{space()}{{%{sign()} set ns = namespace(n=1, s='q') {sign()}%}}{space()}"
               f"{{%{sign()} for m in messages {sign()}%}}{space()}"
               f"{{%{sign()} if {random_expression(rng, 2)} {sign()}%}}{body}"
               f"{{%{sign()} else {sign()}%}}{space()}n{space()}{{%{sign()} endif {sign()}%}}"
               f"{{%{sign()} set ns.n = ns.n + 1 {sign()}%}}{space()}"
               f"{{%{sign()} endfor {sign()}%}}{space()}")
    return wrapped


# Templates in files: the tokens, the variables to try.
FILES = {
    "qwen2.5-7b-instruct": ("<|endoftext|>", "<|im_end|>", [{}]),
    "qwen3-0.6b": ("<|endoftext|>", "<|im_end|>", [{}, {"enable_thinking": False}]),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", [{}, {"today": "26 Jul 2024"}]),
}
FILE_CHATS = {
    "chat": CHAT,
    "no_system": NO_SYSTEM,
    "answered": NO_SYSTEM[:2],
    "tool": [CHAT[1], {"role": "assistant", "content": "I ask."},
             {"role": "tool", "content": "4"}, {"role": "tool", "content": "{\"a\": 5}"}],
    "nobody": [],
}


def run(name, kind, template, messages, generate, variables, bos="<s>", eos="</s>"):
    case = {"name": name, "kind": kind, "template": template, "messages": messages,
            "add_generation_prompt": generate, "bos_token": bos, "eos_token": eos,
            "variables": variables}
    try:
        output = ENVIRONMENT.from_string(template).render(
            messages=messages, add_generation_prompt=generate, bos_token=bos, eos_token=eos,
            tools=None, documents=None, **variables)
        # Addresses of Python's objects would differ from run to run.
        case["output"] = re.sub(" at 0x[0-9a-f]+>", " at 0x0>", output)
    except Exception:  # whatever Python raises, the template has failed
        case["error"] = True
    return case


def file_cases(folder):
    for name, (bos, eos, settings) in FILES.items():
        template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        for chat_name, chat in FILE_CHATS.items():
            for variables in settings:
                yield run(f"{name}/{chat_name}/{len(variables)}", "whole", template, chat,
                          chat_name != "answered", variables, bos, eos)


def main():
    warnings.simplefilter("ignore")  # Python dislikes some random expressions
    cases = []
    for name, template in WHOLE.items():
        chats = {"chat": CHAT, "no_system": NO_SYSTEM, "one": CHAT[1:2], "nobody": []}
        for chat_name, chat in chats.items():
            for generate in (False, True):
                for variables in ({}, {"enable_thinking": False}):
                    if variables and name != "thinking":
                        continue
                    cases.append(run(f"{name}/{chat_name}/{generate}/{len(variables)}", "whole",
                                     template, chat, generate, variables))
    pieces = [line for line in PIECES.strip("\n").split("\n")] + BLOCKS
    for i, template in enumerate(pieces):
        template = template.replace("\\\\", "\\") if i < len(pieces) - len(BLOCKS) else template
        cases.append(run(f"piece {i}", "piece", template, CHAT, True, VARIABLES))
    rng = random.Random(2024)
    ok = wrong = 0
    while ok < 250 or wrong < 60:
        case = run(f"random {ok + wrong}", "random", random_template(rng), CHAT[:3], True,
                   VARIABLES)
        if "output" in case:
            ok += 1
            if ok > 250:
                continue
        else:
            wrong += 1
            if wrong > 60:
                continue
        cases.append(case)
    cases.extend(file_cases(pathlib.Path(sys.argv[1]).parent))
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        for case in cases:
            out.write(json.dumps(case, ensure_ascii=False) + "\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "of them errors")


if __name__ == "__main__":
    main()
