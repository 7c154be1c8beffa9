#!/usr/bin/env python3
"""Writes tests/golden/chat_template/cases.jsonl: what Jinja makes of templates.

Usage: make_chat_template_cases.py OUT. Needs the PyPI package jinja2 (committed file: 3.1.6).
Each line: name, template, messages, add_generation_prompt, bos_token, eos_token, variables, and
either "output" or "error": true. "kind" is "whole" and "piece" (written by hand: we must
give the same) or "random" (we may refuse, but never differ). The templates of files *.jinja
beside OUT come last, as "whole".
"""
import datetime
import json
import pathlib
import random
import re
import sys
import warnings

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "oracle"))
from chat_templates import Generation, refuse, tojson  # noqa: E402


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = refuse
ENVIRONMENT.globals["strftime_now"] = datetime.datetime(2024, 7, 26, 9, 5, 7).strftime

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

PIECES += r"""
{{ 1.5 }} {{ 1e3 }} {{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 2.5e-10 }} {{ 123456789012345678.0 }} {{ -0.0 }} {{ 1_0.5_0 }} {{ 1E5 }} {{ 100 / 10 }}
{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 0xdead_beef }} {{ 00 }}
{{ 2 ** 3 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 7 % -2.5 }} {{ 1.5 * 2 }} {{ true / 2 }} {{ 10 // 3.0 }} {{ -7 // 2.0 }}
{{ 1 / 0 }}
{{ 1.0 // 0 }}
{{ 0 ** -1 }}
{{ 1 == 1.0 }} {{ 1 < 1.5 }} {{ 2 in [2.0] }} {{ {1: 'a'}[1.0] }} {{ 1.0 is number }} {{ 1.0 is integer }} {{ 1.0 is float }} {{ true is float }}
{{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [1, 'a', none, true, 1.5] }} {{ {'a': 1, 'b': [1, {'c': none}]} }} {{ 'x', }} {{ ((1, 2), 3)[0][1] }} {{ (1, 2) + (3,) }} {{ (1, 2) * 2 }} {{ [0] * 3 }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ 'a' * -1 }}|
{{ ["it's", 'say "x"', 'both \' and "', 'a\nb\tc\\', '\x00\x7f\u00a0\u200b\u00e9'] }}
{{ messages[1] }}
{{ [1] + (2,) }}
{{ (1, 2) == (1, 2) }} {{ (1, 2) == [1, 2] }} {{ (1, 2) < (1, 3) }} {{ [1, 'a'] < [2, 1] }} {{ (1, 2) is sequence }} {{ (1,) is iterable }}
{{ [1, 2] < 3 }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = 'xy' %}{{ c }}{{ d }}{% set a, b = b, a %}{{ a }}{{ b }}
{% set a, b = [1] %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for (a, b) in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}
{% set ns = namespace(a=1) %}{% set ns.a, ns.b = 2, 3 %}{{ ns.a }}{{ ns.b }}{% set ns.c %}x{% endset %}{{ ns.c }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['b'] }}{{ ns }}
{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=1, a=0) }}{{ m() }}{{ m.name }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(*[1, 2]) }}{{ m(**{'a': 3}) }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{{ word }}{% endcall %}{% macro n() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5) n() %}{{ a }}{{ b }}{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(4) }}
{% macro m() %}{{ x }}{{ count }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}{% for x in [5] %}{{ m() }}{% endfor %}
{% macro m() %}{% set y = 1 %}{{ y }}{% endmacro %}{{ m() }}{{ y is defined }}
{% filter upper %}a{{ word }}{% endfilter %}{% filter replace('a', 'b')|upper %}aac{% endfilter %}{% set x | upper | trim %} abc {% endset %}{{ x }}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
{% generation %}a{% set z = 1 %}{% endgeneration %}{{ z is defined }}
{% for x in [{'n': 1, 'c': [{'n': 2, 'c': [{'n': 3}]}, {'n': 4}]}] recursive %}{{ x.n }}d{{ loop.depth }}{{ loop.depth0 }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{% endfor %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.current }}{% set j = joiner('; ') %}{{ j() }}x{{ j() }}y
{{ range(5) | list }} {{ range(1, 4) | join }} {{ range(5, 0, -2) | list }} {{ range(3) }} {{ range(10)[2:5] | list }} {{ 3 in range(5) }} {{ range(4) | length }} {{ range(3)[-1] }}
{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('a', 1)]) }} {{ {1: 'a', none: 'b', true: 'c', (1, 2): 'd'} }}
{{ {[1]: 2} }}
{{ [1, 2, 3, 4, 5][::2] }} {{ [1, 2, 3][::-1] }} {{ 'abcdef'[1:5:2] }} {{ (1, 2, 3)[1:] }} {{ [1, 2, 3][-2:] }} {{ 'abc'[::-1] }}
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A', 'c'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [{'a': 2}, {'a': 1}] | sort(attribute='a') }} {{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 1}] | sort(attribute='a,b') }} {{ 'cab' | sort }}
{{ [1, 'a'] | sort }}
{{ [1, 2, 1, 'A', 'a'] | unique | list }} {{ [{'a': 1}, {'a': 1}] | unique(attribute='a') | list }}
{{ {'b': 1, 'A': 3, 'c': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }} {{ {'b': 1, 'A': 3} | dictsort(true) }}
{% for g in [{'k': 'x', 'v': 1}, {'k': 'y', 'v': 2}, {'k': 'x', 'v': 3}] | groupby('k') %}{{ g.grouper }}={{ g.list | map(attribute='v') | join(',') }};{{ g[0] }}{% endfor %}{% for k, l in messages | groupby('role') %}{{ k }}{{ l | length }}{% endfor %}
{{ messages | map(attribute='role') | list }} {{ messages | map(attribute='x', default='d') | join(',') }} {{ ['a', 'b'] | map('upper') | join }} {{ [1.5, 2.7] | map('int') | list }} {{ ['a'] | map('replace', 'a', 'b') | list }} {{ [[1, 2], [3]] | map('length') | sum }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | join(',') }} {{ messages | selectattr('x') | list }} {{ messages | selectattr('role', 'in', ['user', 'system']) | list | length }} {{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ [1, 2, 3] | reject('gt', 1) | list }} {{ messages | selectattr('content', 'string') | first | tojson }} {{ [1, 2, 3] | select('divisibleby', 3) | list }}
{% set g = [1, 2, 3] | select %}{{ g | list }}{{ g | list }}{{ g | first is defined }}
{{ [1, 2] | select('odd') | length }}
{{ [1, 2, 3] | sum }} {{ [1.5, 2] | sum }} {{ messages | map(attribute='content') | map('length') | sum }} {{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ [1] | sum(start=5) }} {{ [3, 1, 2] | min }} {{ [3, 1, 2] | max }} {{ ['b', 'A'] | min }} {{ [] | max }}| {{ [{'a': 2}, {'a': 1}] | min(attribute='a') }}
{{ ['a'] | sum }}
{{ range(7) | batch(3) | list }} {{ range(7) | batch(3, 'x') | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, 'x') | list }}
{{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ {'a': 1, 'b': 2} | reverse | list }} {{ {'a': 1} | list }} {{ {'a': 1}.items() | list }} {{ {'a': 1, 'b': 2}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1} | items | list }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2, true) }}| {{ 'a\n\nb' | indent(2, blank=true) }}| {{ 'a\nb' | indent('> ') }}| {{ 'a\nb' | indent(width=1, first=True) }}|
{{ 3.14159 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 5 | round }} {{ 3.2 | round(method='ceil') }} {{ 3.7 | round(0, 'floor') }} {{ 1234 | round(-2) }} {{ 1.25 | round(1) }} {{ 3.7 | round | int }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.7' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ true | int }} {{ none | int }} {{ ' 5 ' | int }} {{ '0x1f' | int(base=16) }} {{ '101' | int(0, 2) }} {{ '1_000' | int }} {{ [] | int(3) }} {{ '1e3' | int }}
{{ '1.5' | float }} {{ 'x' | float }} {{ 2 | float }} {{ 'x' | float(1.5) }} {{ none | float }} {{ '1e3' | float }} {{ 'inf' | float }} {{ '-nan' | float }} {{ ' 7 ' | float }}
{{ nothing | int }}
{{ -5 | abs }} {{ (-5) | abs }} {{ -2.5 | abs }} {{ true | abs }}
{{ 'a' | abs }}
{{ 'hello wORLD foo-bar (baz) it\'s' | title }} {{ 'hELLO wORLD' | capitalize }} {{ 'été ßx' | upper }} {{ 'ÉTÉ İ' | lower }} {{ 'ß' | capitalize }} {{ 'ΟΣ' | lower }} {{ 'they\'re' .title() }} {{ 'hi 2you'.title() }} {{ 'aBC dEF'.capitalize() }} {{ 'aBc'.swapcase() }} {{ 'ǆx'.title() }}
{{ '<a href="x">&\'</a>' | e }} {{ '<' | escape | e }} {{ '<' | safe | e }} {{ ('<' | e) + '<' }} {{ ('<' | e) ~ '<' }} {{ '<' | forceescape }} {{ ('<' | safe) | forceescape }} {{ 5 | e }} {{ '<' | e | upper }} {{ ('<'|e) is escaped }}
{{ 'a b/c?d=é&~' | urlencode }} {{ {'a': 'b c', 'd': '/'} | urlencode }} {{ [('x', 1)] | urlencode }} {{ 5 | urlencode }}
{{ 'foo bar baz, qux-quux' | wordcount }} {{ '' | wordcount }}
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz' | truncate(5, leeway=0) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(8, false, '..', 0) }}
{{ 'ab' | center(7) }}| {{ 'ab' | center(6) }}| {{ 'abc' | center(6) }}| {{ 'x'.center(5, '*') }} {{ 'x'.ljust(3) }}| {{ 'x'.rjust(3, '.') }} {{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ '+1'.zfill(4) }}
{{ '%s-%d' | format('a', 5) }} {{ '%(a)s' | format(a=1) }} {{ '%05.1f|%+d|%x|%X|%o|%e|%g|%%' % (3.14159, 5, 255, 255, 8, 12345.678, 0.0001) }} {{ '%s' % 'a' }} {{ '%s %s' % ('a', [1]) }} {{ '%r' % 'a' }} {{ '%-5s|%5s|%.2s' % ('a', 'b', 'cde') }} {{ '%(x)05d' % {'x': 42} }} {{ '%*d' % (5, 42) }} {{ '%c%c' % (65, 'b') }} {{ '%#x' % 255 }} {{ '% d' % 5 }} {{ '%s' % none }} {{ '%d' % 3.7 }} {{ '%5.1f' % 2 }} {{ '%i' % true }}
{{ '%d' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ '%s %s' % 'a' }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=5) }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }} {{ '{:05d} {:,} {:.2f} {:x} {:#x} {:b} {:e} {:%} {:+d}'.format(42, 1234567, 3.14159, 255, 255, 5, 12345.678, 0.25, 7) }} {{ '{{}}'.format() }} {{ '{0[a]} {0[b][1]}'.format({'a': 1, 'b': [1, 2]}) }} {{ '{!r} {!s}'.format('a', 'b') }} {{ '{:{w}}|'.format('a', w=4) }} {{ '{}'.format(1.5) }} {{ '{:.3}'.format('abcdef') }} {{ '{:g} {:.3g} {:.3}'.format(1.5, 1234.5, 3.0) }} {{ '{:>8.2f}'.format(3) }} {{ '{}'.format(none) }} {{ '{:5}|{:5}|'.format(1, true) }}
{{ '{}'.format() }}
{{ '{:d}'.format('a') }}
{{ '{'.format() }}
{{ {'a': 1, 'b': '<'} | xmlattr }}| {{ {'a': none} | xmlattr }}| {{ {'a': 1} | xmlattr(false) }}|
{{ {'b': 1, 'a': [1.5, none, true]} | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ 'é😀' | tojson(ensure_ascii=true) }} {{ [1, 2] | tojson(indent=2, separators=(', ', ' = ')) }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 2) | tojson }} {{ 1e100 | tojson }} {{ [1] | tojson(indent='--') }} {{ 'inf' | float | tojson }} {{ [] | tojson(indent=2) }} {{ [1] | tojson(indent=0) }}
{{ range(3) | tojson }}
{{ 'a' | attr('upper') is defined }} {{ {'a': 1} | attr('a') }}| {{ messages[0] | attr('items') is callable }}
{{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'a,b'.split(sep=',', maxsplit=1) }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }} {{ 'aaa'.rsplit('aa') }} {{ ''.split() }} {{ ''.splitlines() }}
{{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith(()) }}
{{ 'abc'.startswith(['a']) }}
{{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '-') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab' | replace('', '.') }} {{ 5 | replace(5, 6) }}
{{ 'abcb'.find('b') }} {{ 'abcb'.rfind('b') }} {{ 'abc'.find('x') }} {{ 'abcb'.index('c') }} {{ 'abcb'.count('b') }} {{ 'aaa'.count('aa') }} {{ 'éa'.find('a') }} {{ 'abc'.find('c', 1) }} {{ 'abc'.find('') }} {{ 'abc'.count('') }} {{ 'abc'.find('a', -1) }}
{{ 'abc'.index('x') }}
{{ ','.join(['a', 'b']) }} {{ ''.join('abc') }}
{{ ','.join([1]) }}
{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '一'.isnumeric() }} {{ 'a1'.isalnum() }} {{ ''.isalpha() }} {{ ' '.isspace() }} {{ 'Ab'.istitle() }} {{ 'AB'.isupper() }} {{ 'a b1'.islower() }} {{ 'a'.isascii() }} {{ 'é'.isascii() }} {{ '1'.isupper() }}
{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'a\tb'.expandtabs(4) }}
{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ (1, 2).count(1) }} {{ {'a': 1}.copy() }} {{ [1].append is defined }} {{ {'a': 1}.pop is defined }}
{{ [1].append(2) }}
{{ {'a': 1}.pop('a') }}
{{ {'a': 1}.update({'b': 2}) }}
{{ ''.__class__ }}|{{ [].__len__ }}|
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(3) }} {{ 5 is eq 5 }} {{ 5 is ne 5 }} {{ 5 is gt 3 }} {{ 5 is lt(3) }} {{ 5 is ge 5 }} {{ 5 is le 4 }} {{ 5 is greaterthan 4 }} {{ 5 is lessthan 4 }} {{ 'a' is in 'abc' }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 'a' is lower }} {{ 'A' is upper }} {{ range is callable }} {{ 'a' is callable }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ none is sameas none }} {{ true is sameas true }} {{ 1 is sameas true }} {{ 5 is equalto 5 }} {{ 2.0 is even }}
{{ 'a' is even }}
{{ not 1 is odd }} {{ 1 is odd and 2 is even }} {{ 'x' if 3 is odd else 'y' }} {{ 1 + 2 is odd }} {{ (1 + 2) is odd }}
{{ 1 if true }}{{ 1 if false }}|{{ (1 if false) is defined }} {{ 'a' if true else 'b' if true else 'c' }} {{ [1 if false else 2, 3] }}
{{ 'a' 'b' ~ 'c' }} {{ 'a' ~ 1.5 ~ [1] ~ none }} {{ -1 | abs }} {{ 'a' | upper ~ 'b' }} {{ 'a' ~ 'b' | upper }} {{ 1 + 1 | string + 'x' }}
{{ 1 + 2 | string }}
{{ messages.0.role }} {{ [[1, 2], [3]].0.1 }} {{ {'a': {'b': [5]}}.a.b[0] }} {{ {'items': 1}['items'] }} {{ {'keys': 1}.keys is callable }}
{% raw %}{{ x }}{% y %}{# z #}{% endraw %}|{%- raw -%}  a  {%- endraw -%} |
{% print 5 %}{% print 'a', 1 %}
{{ [nothing] }} {{ (none, true) }} {{ nothing | list }} {{ nothing ~ 'x' }} {{ nothing | upper }}| {{ nothing | length }} {{ [] is sameas [] }}
{{ nothing() }}
{{ -nothing }}
{{ nothing < 1 }}
{{ nothing == none }} {{ nothing != nothing2 }} {{ nothing in [1] }} {{ [nothing] == [nothing] }}
{{ '\101\x41\u0041\a\
b' }}
{{ "a\"b" }} {{ 'tab\there' }} {{ '\d' }} {{ '\\n' }}
{% if (1, 2) %}t{% endif %}{% if 0.0 %}f{% else %}z{% endif %}{% if [] or {} or '' or 0 or none %}x{% else %}y{% endif %}
{% for x in [3, 1, 2] | sort if x > 1 %}{{ x }}{{ loop.last }}{% endfor %}{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}
{% set x = 5 %}{% for i in [1, 2] %}{% set x = i %}{% endfor %}{{ x }}{% set f = namespace(found=false) %}{% for i in [1] %}{% if true %}{% set f.found = true %}{% endif %}{% endfor %}{{ f.found }}
{% set d = {'a': 1} %}{% set d = dict(d, b=2) %}{{ d }}{% set l = [1] %}{% set l = l + [2] %}{{ l }}{{ d | length }}
{{ loop is defined }}{% for i in [1] %}{% for j in [2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{{ strftime_now is defined }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A %-d %B %H:%M:%S.%f %j %p%z%Z %%') }}
{{ 'x' | nosuchfilter if false else 'ok' }}
{{ word | default('x') | upper | lower | title | trim | length }}
{{ caller is defined }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1 != 2 }} {{ 'a' in 'ab' in ['ab'] }}
{% break %}
{% for i in [1, 2] %}{% with %}{% break %}{% endwith %}{{ i }}{% endfor %}{% for i in [1, 2] %}{% set x %}{% if i == 2 %}{% continue %}{% endif %}y{% endset %}{{ x }}{% endfor %}{% for i in [1] %}a{% filter upper %}b{% break %}{% endfilter %}{% endfor %}{% for i in [1] %}{% for j in [] %}{% else %}{% break %}{% endfor %}x{% endfor %}
{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% block a %}x{{ word }}{% set z = 1 %}{% endblock %}{{ z is defined }}{% for i in [1] %}{% block b scoped %}{{ i }}{% endblock b %}{% block c %}{{ i is defined }}{% endblock %}{% endfor %}
{{ '{:<05}|{:>05}|{:^05}'.format(3, 4, 5) }} {{ 1e400 }} {{ -1e400 }}
{{ [1, [2, 3]] | tojson }} {{ {'a': {'b': 1}} | tojson(indent=2) }}
{% for x in [1, 2] %}{{ x }}{% break %}{% else %}E{% endfor %}|{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}E{% endfor %}|{% for x in [1, 2] %}{{ x }}{% if x == 1 %}{% continue %}{% endif %}{% else %}E{% endfor %}|{% for x in [1, 2] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}|{% for x in [1, 2] if x > 1 %}{{ x }}{% break %}{% else %}E{{ x is defined }}{{ loop is defined }}{% endfor %}|{% for x in [1, 2] recursive %}{{ x }}{% break %}{% else %}E{% endfor %}|{% for a in [1] %}{% for x in [1] %}{% break %}{% else %}{% break %}{% endfor %}z{% endfor %}
{{ '\x7f~\x1f' | tojson(ensure_ascii=true) }} {{ '\x7f' | tojson }}
{{ (5).real }} {{ (5).imag }} {{ (5).numerator }} {{ (5).denominator }} {{ (5).bit_length() }} {{ (-5).bit_count() }} {{ (5).as_integer_ratio() }} {{ (5).conjugate() }} {{ 5.5.real }} {{ 5.5.imag }} {{ 5.5.conjugate() }} {{ 5.5.is_integer() }} {{ 5.0.is_integer() }} {{ true.real }} {{ true.imag }} {{ true.numerator }} {{ true.bit_length() }} {{ 5.5.numerator is defined }} {{ (5)['real'] }} {{ (5) | attr('real') }} {{ [5] | map(attribute='real') | list }} {{ (0).bit_length() }} {{ none.real is defined }}
{{ (5).is_integer() }}
{% macro f(a, b=1) %}{{ varargs }}{% endmacro %}{{ f.name }} {{ f.arguments }} {{ f.catch_kwargs }} {{ f.catch_varargs }} {{ f.caller }} {{ f.explicit_caller }} {{ f.nope is defined }}|{% macro g(caller=1, kwargs=2) %}{{ kwargs }}{{ caller }}{% endmacro %}{{ g.arguments }} {{ g.catch_kwargs }} {{ g.catch_varargs }} {{ g.caller }} {{ g.explicit_caller }}|{% macro h() %}{{ caller.name }} {{ caller.arguments }} {{ caller.caller }}{% endmacro %}{% call(x) h() %}{% endcall %} {{ h.caller }}
{% set c = cycler('a', 'b') %}{{ c.items }}{{ c.pos }}{{ c.next() }}{{ c.pos }}{{ c.nope is defined }}{% set j = joiner('x') %}{{ j.sep }}{{ j.used }}{{ j() }}{{ j.used }}
{{ '{} {0}'.format(1) }}
{{ '{0} {}'.format(1) }}
{{ '{0:{}}'.format(1, 5) }}
{{ '{:{0}}'.format(5, 5) }}
{{ '{.real}'.format(1) }}
{{ '{x} {}'.format(1, x=2) }} {{ '{:{}}'.format(1, 5) }} {{ '{0.real} {}'.format(1) }} {{ '{0} {0}'.format(1) }}
{{ messages | groupby('nope') }}
{{ [{'a': 1}, {}] | groupby('a') }}
{{ [none, none] | groupby('x') }}
{{ [{'a': none}, {'a': none}] | groupby('a') }}
{{ [{}] | groupby('nope') | length }} {{ [] | groupby('nope') }} {{ [{}, {}] | groupby('nope', default='x') }} {{ [{}, {}] | sort(attribute='nope') }} {{ [{'a': none}, {'a': none}] | sort(attribute='a') }} {{ {'a': none} | dictsort(by='value') }}
{{ {'a': none, 'b': none} | dictsort(by='value') }}
{{ [{}, {}] | min(attribute='nope') }}
{% macro f(x, x) %}{% endmacro %}
{% if false %}{% macro f(x, y, x=1) %}{% endmacro %}{% endif %}a
{% call(x, x) range(1) %}{% endcall %}
{% macro f((a)) %}{% endmacro %}
{% macro f(caller) %}{{ caller() }}{% endmacro %}a
{% macro f(caller, a=1) %}{{ caller }}{% endmacro %}a
{% macro f(caller) %}a{% endmacro %}{{ f(1) }}{% macro g(a, caller=none) %}z{{ caller }}{% endmacro %}{{ g(1, 2) }}{{ g(1, caller=3) }}{{ g(1) }}{% macro h(caller=none) %}{{ caller() }}{% endmacro %}{% call h() %}x{% endcall %}
{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(caller=1) f() %}{{ caller }}x{% endcall %}{% call(caller) f() %}x{% endcall %}
{% macro f() %}{{ caller() }}{{ kwargs }}{% endmacro %}{% call f(caller=1) %}{% endcall %}
{% block a %}1{% endblock %}{% block a %}2{% endblock %}
{% block a %}1{% block a %}2{% endblock %}{% endblock %}
{% if false %}{% block a %}1{% endblock %}{% endif %}{% macro f() %}{% block a %}2{% endblock %}{% endmacro %}
{% filter list %}ab{% endfilter %}
{% filter length %}ab{% endfilter %}
{% filter first %}{% endfilter %}
{% call dict() %}{% endcall %}
{% filter list | join('-') %}ab{% endfilter %}{% set x | list %}ab{% endset %}{{ x }}{% filter default(none) %}{% endfilter %}{% filter e %}<{% endfilter %}
{{ {10: 1, 9: 2, 1.5: 3, true: 4} | tojson(sort_keys=true) }} {{ {none: 1} | tojson(sort_keys=true) }} {{ {-1: 1, -2: {2: 0, 1: 0}} | tojson(sort_keys=true, indent=1) }}
{{ {'a': 1, 1: 2} | tojson(sort_keys=true) }}
{{ {none: 1, 1: 2} | tojson(sort_keys=true) }}
{{ [1] | tojson(indent=65) | length }} {{ [1] | tojson(indent=10001) | length }} {{ [1] | tojson(indent=-5) }} {{ [1] | tojson(indent=true) }} {{ 'a\nb' | indent(10001) | length }}
{{ [1, 2] | slice(5) | list }} {{ [1] | slice(-1) | list }} {{ [] | slice(2, 'x') | list }} {{ [] * 1000000000000 }} {{ '' * 1000000000000 }} {{ '-1'.zfill(-5) }} {{ 'abc def' | truncate(9223372036854775807) }} {{ 'abc' | truncate(9, leeway=9223372036854775807) }}
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
