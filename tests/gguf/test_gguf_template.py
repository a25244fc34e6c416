"""Templates render as Hugging Face's environment renders them, and a hostile one ends in one GGUFError."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_templates import BROKEN, HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_jinja import plain_render
from raw_gguf import build, string, u32

from sp.errors import GGUFError
from sp.gguf import ChatTemplate, GGUFFile, chat_template, render_chat
from sp.gguf.template import TOOL_USE, check_template

CHATML = """\
{%- macro block(role, content) %}
    {{- '<|im_start|>' + role + '\\n' + content + '<|im_end|>\\n' }}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson ~ '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, users=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not ns.users %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
        {%- set ns.users = ns.users + 1 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('unknown role ' ~ message.role) }}
    {%- endif %}
    {%- if message.role == 'system' and not loop.first %}{% continue %}{% endif %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- block(message['role'], content) }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
OTHERS = {
    "trimmed blocks": "{% for m in messages %}\n  {{ m.content }}\n  {% if loop.last %}\nend\n{% endif %}\n"
    "{% endfor %}\n",
    "filters": "{{ messages | map(attribute='role') | join(', ') | upper }} {{ messages | selectattr('role', 'equalto',"
    " 'user') | list | length }} {{ ' a ' | trim }} {{ 'abc' | replace('b', 'x') }} {{ [3, 1] | sort | first }}"
    " {{ {'b': 1, 'a': 2} | dictsort }} {{ 'x' | default('y') }} {{ none | default('y', true) }} {{ '3' | int + 1 }}"
    " {{ messages[0] | items | list | length }} {{ ['b', 'a'] | unique | list }} {{ [1, 2] | reverse | list }}",
    "tojson": "{{ messages | tojson }} {{ {'b': [1, 2.5, none, true], 'a': 'é<&>'} | tojson(indent=2) }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}{{ 'é' | tojson(ensure_ascii=true) }}",
    "slices": "{{ messages[1:] | length }} {{ messages[0].content[:2] }} {{ messages[-1].role }} {{ 'abc'[::-1] }}",
    "arithmetic": "{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 10 }} {{ 1 / 4 }} {{ -3 }} {{ '-' * 10 }} {{ [1] * 3 + [2] }}",
    "tests": "{{ messages is iterable }} {{ messages[0] is mapping }} {{ x is defined }} {{ 3 is odd }} {{ 4 is even }}"
    "{{ 'a' is string }} {{ 1 is number }} {{ none is none }} {{ 'a' in 'abc' }} {{ 1 is in [1, 2] }} {{ 3 is gt 2 }}",
    "loops": "{% for k, v in messages[0].items() %}{{ loop.index }}/{{ loop.length }}{{ k }}={{ v }}"
    "{{ ',' if not loop.last }}{% else %}none{% endfor %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}"
    "{{ i }}{{ loop.previtem }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "methods": "{{ 'a,b'.split(',') }} {{ 'abc'.startswith('a') }} {{ 'x'.join(['a', 'b']) }} "
    "{{ ' a'.strip().upper() }}{{ messages[0].get('absent', 'd') }} {{ 'aXb'.replace('X', '-') }}"
    " {{ 'a\nb'.splitlines() }}{{ 'Abc'.lower() }}",
    "blocks of text": "{% set x %}[{{ messages[0].role }}]{% endset %}{{ x }}{{ x ~ 1 ~ none }}{% with y = 2 %}{{ y }}"
    "{% endwith %}",
    "defaults": "{% macro f(a, b='B') %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}"
    "{{ f(1) }}{{ f(1, 2, 3) }}{{ f(b=1, a=2) }}",
    "namespaces in a list": "{% set s = namespace(role='system', content='x') %}{% for m in [s] + messages %}"
    "{{ m.role }}{% endfor %}",
    "appended lists": "{% set l = [] %}{% for m in messages %}{% set _ = l.append(m.role) %}{% endfor %}{{ l | join }}"
    "{{ l.append(2) }}{% set c = messages[:1] %}{% set _ = c.append(1) %}{{ c | length }}",
    "formats": "{{ '{}-{:>5}-{a!r}'.format(1, 'x', a='y') }}{{ '{0.role}{0[role]}'.format(messages[0]) }}"
    "{{ '{:{}.2f}|{:,}|{:%}|{{}}'.format(1.239, 9, 12345, 0.5) }}{{ '{} {}'.format([1, 'a'], none) }}",
    "indents": "{{ 'a\n\nb' | indent }}{{ 'a\nb' | indent(2, true) }}{{ 'a\n\nb' | indent('> ', blank=true) }}",
    "filter blocks": "{% filter upper %}a{{ messages[0].role }}{% endfilter %}{% filter indent(2) | trim %}\n x\ny "
    "{% endfilter %}{% for m in messages %}{% filter replace('e', 'E') %}{{ m.role }}{% endfilter %}{% endfor %}",
    "generations": "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content }}{{ loop.index }}"
    "{% endgeneration %}\n{{ x }}{% endfor %}",
    "dates": "{{ strftime_now('%Y-%m-%d, %d %b %Y (%A) 100%%') }}",
    "values": "{{ none }} {{ true }} {{ 1.5 }} {{ [1, 'a'] }} {{ {'a': (1, 2)} }} {{ absent }} {{ messages }}",
}
SYSTEM = {"role": "system", "content": "Be brief & <kind>."}
USER = {"role": "user", "content": "Où est l'aiguille ?\n"}
ASSISTANT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nLà."}
CHATS = [[USER], [SYSTEM, USER], [SYSTEM, USER, ASSISTANT, USER], [USER, ASSISTANT, SYSTEM]]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    "extra", [{}, {"enable_thinking": False}, {"tools": [{"name": "f", "arguments": {"a": "é<"}}]}]
)
@pytest.mark.parametrize("chat", CHATS)
def test_chatml_equals_plain_jinja(chat: list[dict[str, str]], extra: dict[str, Any], prompt: bool) -> None:
    expected = plain_render(CHATML, messages=chat, add_generation_prompt=prompt, **extra)
    assert render_chat(CHATML, chat, add_generation_prompt=prompt, **extra) == expected


def test_chatml_by_hand() -> None:
    assert render_chat(CHATML, [SYSTEM, USER]) == (
        "<|im_start|>system\nBe brief & <kind>.<|im_end|>\n<|im_start|>user\nOù est l'aiguille ?\n<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", OTHERS)
def test_other_features_equal_plain_jinja(name: str) -> None:
    chat = [SYSTEM, USER, ASSISTANT]
    assert render_chat(OTHERS[name], chat) == plain_render(OTHERS[name], messages=chat, add_generation_prompt=True)


def test_refusal_of_the_template_itself() -> None:
    with pytest.raises(GGUFError, match="chat template fails: TemplateError: unknown role wizard"):
        render_chat(CHATML, [{"role": "wizard", "content": "x"}])


def test_messages_stay_as_they_were() -> None:
    chat = [SYSTEM, USER, ASSISTANT, USER]
    before = copy.deepcopy(chat)
    render_chat(CHATML, chat)
    assert chat == before


def test_a_long_document_renders() -> None:
    document = "word " * 400_000
    prompt = render_chat(CHATML, [SYSTEM, {"role": "user", "content": document}])
    assert document in prompt


def test_a_long_conversation_renders() -> None:
    chat = [USER, ASSISTANT] * 1000
    assert render_chat(CHATML, chat) == plain_render(CHATML, messages=chat, add_generation_prompt=True)


RENDER = """
import copy, json, resource, sys, time
from pathlib import Path
from sp.errors import GGUFError
from sp.gguf import render_chat
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
chat, templates = json.load(sys.stdin)
before, found = copy.deepcopy(chat), {}
for name, source in templates.items():
    start = time.process_time()
    try:
        render_chat(source, chat)
        said = None
    except GGUFError as error:
        said = str(error)
    found[name] = said, time.process_time() - start, chat == before
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refusals() -> dict[str, tuple[str | None, float, bool]]:
    """By hostile template, in little memory: its error, the processor's seconds, and whether the chat stayed."""
    asked = json.dumps([[SYSTEM, USER], HOSTILE])
    done = subprocess.run([sys.executable, "-c", RENDER], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_one_line(name: str, refusals) -> None:
    said, _, stayed = refusals[name]
    assert said is not None, "rendered"
    assert "chat template " in said
    assert said.isprintable()
    assert len(said) < 500
    assert stayed


def test_hostile_templates_cost_little_time_and_memory(refusals) -> None:
    assert refusals.keys() == HOSTILE.keys()
    assert not [name for name, (said, _, _) in refusals.items() if said is None or "MemoryError" in said]
    slow = {name: seconds for name, (_, seconds, _) in refusals.items() if seconds > 2}  # 0.4 s at most when idle
    assert not slow


def test_error_does_not_carry_control_characters() -> None:
    with pytest.raises(GGUFError) as caught:
        render_chat("{{ raise_exception('a\x1b[2Jb\nc') }}", [USER])
    assert "a\ufffd[2Jb c" in str(caught.value)


def test_check_template() -> None:
    check_template(CHATML)
    with pytest.raises(GGUFError, match=r"line 2"):
        check_template("\n{% if %}")
    with pytest.raises(GGUFError, match="may not use Include"):
        check_template("{% include 'x' %}")


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(GGUFError, match=r"fails \(line 3\)"):
        render_chat("a\nb\n" + BROKEN["syntax"], [USER])


def test_template_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for keys, expected in (([string("tokenizer.chat_template", CHATML)], CHATML), ([], None)):
        path.write_bytes(build(keys))
        with GGUFFile.open(path) as file:
            assert chat_template(file) == expected
    path.write_bytes(build([u32("tokenizer.chat_template", 3)]))
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match=r"'tokenizer.chat_template' is not a string"):
        chat_template(file)


def test_the_template_of_a_name(tmp_path: Path) -> None:
    path, key = tmp_path / "m.gguf", "tokenizer.chat_template"
    path.write_bytes(build([string(key, CHATML), string(f"{key}.tool_use", "{{ tools }}")]))
    with GGUFFile.open(path) as file:
        assert (chat_template(file), chat_template(file, TOOL_USE)) == (CHATML, "{{ tools }}")
    path.write_bytes(build([string(key, CHATML), u32(f"{key}.tool_use", 3)]))
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match=r"'tokenizer.chat_template.tool_use' is not"):
        chat_template(file, TOOL_USE)


def test_chats_with_tools_have_a_template_of_their_own_where_the_other_shows_none() -> None:
    plain = ChatTemplate("{{ messages }}", "<s>", "</s>", "{{ tools }}")
    assert plain.for_tools == ChatTemplate("{{ tools }}", "<s>", "</s>")
    for template in (ChatTemplate("{{ tools }}{{ messages }}", tool_use="{{ tools }}"), ChatTemplate("x")):
        assert template.for_tools is template


fragments = st.sampled_from(
    [
        *(
            "{% for m in messages %}",
            "{% endfor %}",
            "{% if m %}",
            "{% endif %}",
            "{{ m.role }}",
            "{{ messages | tojson }}",
        ),
        *("{% set a = ", " %}", "{{ ", " }}", "a", "~ a", "+ a", "* 9999", "** 99", "[a, a]", "| list", "| join(a)"),
        *("'x'", "range(99999)", "| map('upper')", "{% macro f(a) %}", "{% endmacro %}", "f(a)", "| string", "%}"),
        *("namespace(a=a)", ".__class__", ".split('x')", "{#", "#}", "\n", "-%}", "{%- ", "(", ")", "[0]", "[1:]"),
        *("is defined", "\x00", "é"),
    ]
)


@settings(max_examples=150, deadline=2000)
@given(st.lists(fragments, max_size=25).map(" ".join))
def test_any_template_renders_or_is_refused(source: str) -> None:
    try:
        text = render_chat(source, [USER])
    except GGUFError as error:
        text = str(error)
    assert isinstance(text, str)


@settings(max_examples=120, deadline=2000)
@given(st.text(max_size=80))
def test_any_text_as_a_template(source: str) -> None:
    try:
        text = render_chat(source, [USER])
    except GGUFError as error:
        text = str(error)
    assert isinstance(text, str)
