#!/usr/bin/env python3
"""Writes chat_templates.json: templates, conversations, and the text (or the refusal) that transformers makes of them.

The templates are our own. Between them they use what published templates use: loops and their `loop` variables, macros,
namespaces, slices, string methods, tests and filters, whitespace control with and without dashes, `raise_exception`,
`strftime_now`, `tojson`, `{% break %}`, `{% generation %}`.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent


class Frozen(datetime):
    """`strftime_now` must say the same on every day."""

    @classmethod
    def now(cls, tz: Any = None) -> "Frozen":
        return NOW


NOW = Frozen(2024, 2, 9, 7, 5, 3)


def says(*turns: str) -> list[dict[str, Any]]:
    """User and assistant in turn, the user first."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


def system(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}]


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one_question": says("How far is the moon?"),
    "with_system": system("You answer in one word.") + says("Is water wet?"),
    "three_turns": says("Name a river.", "The Elbe.", "And another?"),
    "long": system("Be kind.") + says("a", "b", "c", "d", "e", "f", "g"),
    "ends_with_assistant": says("Count to three.", "One, two,"),
    "blanks": system("  \n Spaces around. \n") + says("\n  leading and trailing \t ", "  kept? \n\n", "\nyes\n"),
    "markup": says("<b>\"5 < 6 & 7 > 2\"</b> {{ 1 + 1 }} {% raw %} \\n 'quoted'", "`{#no#}`", "it's <|not|> a token"),
    "unicode": system("Réponds 🦊") + says("Зима — 冬\u00a0\u2028x", "naïve e\u0301 👩‍👩‍👧", "ﬁn ẞ İ"),
    "empty_contents": system("") + says("", "", "only this"),
    "thoughts": says("2 + 2?", "<think>\nfour, surely\n</think>\n\nIt is 4.", "3 + 3?", "<think>six</think>6", "4 + 4?"),
    "reasoning_key": [
        *says("Why?"),
        {"role": "assistant", "content": "Because.", "reasoning_content": " mulling \n"},
        *says("Oh."),
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        {"role": "user", "content": "Sure?"},
    ],
    "named": [{"role": "user", "name": "Ida", "content": "I am Ida."}, {"role": "user", "name": "Bo", "content": "I am Bo."}],
    "two_users": says("first") + says("second"),
    "late_system": says("hello", "hi") + system("Now shout.") + says("bye"),
    "odd_role": [*says("hello"), {"role": "oracle", "content": "beware"}],
}

# Other templates print the Python lists as Python would, which says nothing about templates.
READ_PARTS = {"reasoning", "macros", "dated", "titles"}

# name, template, special tokens, extra variables to try (each a set of its own; {} is always tried).
TEMPLATES: list[tuple[str, str, dict[str, str], list[dict[str, Any]]]] = [
    (
        "framed",
        "{%- if not messages or messages[0]['role'] != 'system' %}"
        "{{- '<|im_start|>system\\nBe of use, and brief.<|im_end|>\\n' }}"
        "{%- endif %}"
        "{%- for message in messages %}"
        "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        [],
    ),
    (
        "headers",
        """{% set known = ['system', 'user', 'assistant'] %}
{% for message in messages %}
    {% if message.role not in known %}
        {{- raise_exception('No such role: ' ~ message.role ~ '. Known are ' ~ known | join(', ')) }}
    {% endif %}
    {% set opening = '<|head|>' + message['role'] + '<|/head|>\\n\\n' %}
    {% if loop.first %}{% set opening = bos_token + opening %}{% endif %}
    {{- opening + message['content'] | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{% endif %}
""",
        {"bos_token": "<|begin|>", "eos_token": "<|eot|>"},
        [],
    ),
    (
        "bracketed",
        """{%- if messages and messages[0].role == 'system' -%}
    {%- set preface = messages[0].content.strip() + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set preface = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{{ bos_token }}
{%- for turn in turns -%}
    {%- if (turn.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Turns must alternate user and assistant; turn ' ~ loop.index ~ ' is ' ~ turn.role) }}
    {%- endif -%}
    {%- if turn.role == 'user' -%}
        {{ ' [ASK] ' ~ (preface if loop.first else '') ~ turn.content ~ ' [/ASK]' }}
    {%- elif turn.role == 'assistant' -%}
        {{ ' ' ~ turn.content | trim ~ eos_token }}
    {%- endif -%}
{%- endfor -%}
""",
        {"bos_token": "<s>", "eos_token": "</s>"},
        [],
    ),
    (
        "reasoning",
        """{%- set ns = namespace(last_ask=-1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if not ns.seen and message.role == 'user' and message.content is string %}
        {%- set ns.seen = true %}
        {%- set ns.last_ask = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_ask and (loop.last or thought) %}
            {{- '<|turn|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|turn|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|done|>\\n' }}
    {%- else %}
        {{- '<|turn|>' + message.role + '\\n' + content + '<|done|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
        {"eos_token": "<|done|>", "pad_token": "<|pad|>"},
        [{"enable_thinking": False}, {"enable_thinking": True}],
    ),
    (
        "macros",
        """{%- macro flatten(content, image='[picture]') -%}
    {%- if content is string -%}
        {{ content }}
    {%- elif content is iterable -%}
        {%- for part in content -%}
            {%- if part.type == 'text' %}{{ part.text }}{% else %}{{ image }}{% endif -%}
            {%- if not loop.last %}{{ ' ' }}{% endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception('Content is neither text nor parts') }}
    {%- endif -%}
{%- endmacro -%}
{%- macro line(speaker, text) -%}
{{ speaker | upper }}: {{ text }}
{%- endmacro -%}
{%- set everyone = messages | map(attribute='role') | unique | list -%}
[{{ everyone | join('+') }}; {{ messages | selectattr('role', 'equalto', 'user') | list | length }} asked]
{% for message in messages -%}
{{ line(message.name | default(message.role), flatten(message.content, image='[img]') | trim) }}{{ eos_token if message.role == 'assistant' }}
{% endfor -%}
{%- if add_generation_prompt -%}
{{ line('assistant', '') }}
{%- endif -%}
""",
        {"eos_token": "<end>"},
        [],
    ),
    (
        "dated",
        """{% if date_string is not defined %}
    {% set date_string = strftime_now("%d %b %Y") %}
{% endif %}
{% if messages and messages[0].role == "system" %}
    {% set system_message = messages[0].content | trim %}
    {% set messages = messages[1:] %}
{% else %}
    {% set system_message = "" %}
{% endif %}
{{ bos_token }}# system
  Knowledge ends: December 2023
  Today is {{ date_string }} ({{ strftime_now('%A, day %j, %H:%M') }})

{{ system_message or 'no instructions' }}
{# a comment leaves no line behind #}
{% for message in messages %}
# {{ message.role }}
    {% if message.content is not string %}
{{ message.content | tojson }}
    {% else %}
{{ message.content | tojson }}{{ message.content }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
# assistant
{% endif %}""",
        {"bos_token": "<|bos|>", "eos_token": "<|eos|>"},
        [{"date_string": "1 Jan 1970"}],
    ),
    (
        "loops",
        """{%- for message in messages if message.content -%}
    {%- if message.role == 'system' and not loop.first %}{% continue %}{% endif -%}
    {%- if loop.index > 6 %}{{ '…' }}{% break %}{% endif -%}
    {{ '-' * loop.index }}{{ loop.revindex }}/{{ loop.length }} {{ loop.cycle('odd', 'even') }} {{ message.role[:1] | upper }}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %} again{% endif -%}
    {%- if loop.nextitem is not defined %} last{% endif %}
{% for key, value in message.items() if key not in ('role', 'content', 'reasoning_content', 'thinking') -%}
        {{ ' ' * 4 }}{{ key }}={{ value }}
{% endfor -%}
    {{ message.get('content') | string | replace('\\n', '\\\\n') }}
{% else -%}
nobody spoke
{% endfor -%}
{{ '(' ~ messages | length ~ ' ' ~ ('turn' if messages | length == 1 else 'turns') ~ ')' }}
{%- if add_generation_prompt %} >{% endif %}
""",
        {"eos_token": "</s>"},
        [],
    ),
    (
        "generation_tags",
        """{{- bos_token -}}
{%- set offset = 1 if messages and messages[0].role == 'system' else 0 -%}
{%- for m in messages[offset:] -%}
{%- if m.role == 'assistant' -%}
<a>{% generation %}{{ m.content }}</a>{% endgeneration %}
{%- elif m.role == 'user' -%}
<u>{{ (messages[0].content ~ '\\n') if offset and loop.first }}{{ m.content }}</u>
{%- else -%}
{{ raise_exception('system must come first') }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'assistant' -%}<a>{%- endif -%}
""",
        {"bos_token": "<d>", "eos_token": "</a>"},
        [],
    ),
    (
        "titles",
        """{%- set labels = {'user': 'Question', 'assistant': 'Answer', 'system': 'Setting'} -%}
{%- for message in messages -%}
{{- labels[message.role] or labels.get(message.role) or (message.role | title) -}}
{{- '. ' if message.content is string and message.content.startswith('A') else ': ' -}}
{{- message.content.strip().capitalize() if message.content is string else message.content | length -}}
{{- '\\n' if not loop.last or message.role != 'assistant' -}}
{%- endfor -%}
{%- if add_generation_prompt and (not messages or messages | last is mapping and (messages | last).role != 'assistant') -%}
Answer:
{%- endif -%}
""",
        {"bos_token": "", "eos_token": "\n"},
        [],
    ),
]


def main() -> None:
    chat_template_utils.datetime = Frozen
    templates = []
    for name, template, special, extras in TEMPLATES:
        renders = []
        for conversation in CONVERSATIONS:
            if conversation == "parts" and name not in READ_PARTS:
                continue
            for variables in [{}, *extras]:
                for add_generation_prompt in (False, True):
                    given = {"conversation": conversation, "add_generation_prompt": add_generation_prompt}
                    result = rendered(template, special, CONVERSATIONS[conversation], add_generation_prompt, variables)
                    renders.append(given | {"variables": variables} | result)
        templates.append({"name": name, "template": template, "special_tokens": special, "renders": renders})
    whole = {"now": NOW.isoformat(), "conversations": CONVERSATIONS, "templates": templates}
    (HERE / "chat_templates.json").write_text(json.dumps(whole, indent=1) + "\n")
    for each in templates:
        refused = [r for r in each["renders"] if "text" not in r]
        print(f"{each['name']}: {len(each['renders'])} renders, {len(refused)} of them refused")


def rendered(
    template: str,
    special: dict[str, str],
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
    variables: dict[str, Any],
) -> dict[str, str]:
    """`text`, or what the template `raised`."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0}, "?")), **special)
    try:
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except jinja2.TemplateError as error:
        if type(error) is not jinja2.TemplateError:  # a mistake in the template, not its `raise_exception`
            raise
        return {"raised": str(error)}
    return {"text": text}


if __name__ == "__main__":
    main()
