"""Chat templates of files, pieced together from sound and hostile ones: each renders, or is refused in one short line.

A share runs as `test_gguf_template_fuzz.py`; many more with `fuzz_inputs.py`.
"""

from __future__ import annotations

import random
import re
from typing import Any

from hostile_templates import ENDLESS, ESCAPES
from outcomes import Outcomes

from sp.gguf import ChatTemplate, render_chat
from sp.gguf.template import check_template

SOUND = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns') }}{% endif %}[{{ m['role'] }}] {{ m['content'] | trim }}{% endfor %}",
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages[::-1] -%}{%- if m.role == 'user' and ns.last < 0 -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}{{ messages | tojson }}{{ ns.last }}",
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% macro say(m) %}{{ m.role | upper }}: "
    "{{ m.content.split('</think>')[-1] }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
)
"""Of the kinds that vendors write."""
BASES = (*SOUND * 30, *ESCAPES.values(), *(one for one in ENDLESS.values() if len(one) < 2000))
PIECES = (
    "{{", "}}", "{%", "%}", "{#", "#}", "-%}", "{% endfor %}", "{% else %}", "{% set a = a ~ a %}", "'", '"', "(", ")",
    "[", "]", "|", "* 9999999", "** 99", ".__class__", "| tojson", "| attr('x')", "['x']", "is defined", "not in",
    "range(10 ** 9)", "\x00", "\x1b[2J", "\u202e", "é狐🦙", "\n", "y" * 5000, "{{ raise_exception('z' * 9000) }}",
    "{{ raise_exception('a\n\x1b[2J') }}", "{{ raise_exception(messages) }}", "{{ nosuch.field.of }}", "{{ 1 / 0 }}",
    "{{ strftime_now('%Y') }}", "{{ strftime_now('%' * 9000) }}", "{% call(x) y() %}", "{% raw %}", "{{ '%s' % 9 }}",
)  # fmt: skip
TOKEN = re.compile(r"\{[{%#]-?|-?[}%#]\}|\w+|\s+|.", re.DOTALL)
TALK = (
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "é" * 300}, {"role": "assistant", "content": "x"}],
)


def mutated(rng: random.Random) -> str:
    """A template with one to four words gone, doubled, swapped, or put in from elsewhere."""
    words = TOKEN.findall(rng.choice(BASES))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, other = rng.randrange(len(words) + 1), rng.randrange(len(words) + 1)
        how = rng.randrange(8)
        if how >= 6:
            same = [place for place, word in enumerate(words) if word.isidentifier()] or [0]
            words[rng.choice(same)] = words[rng.choice(same)]
        elif how == 0:
            del words[at : at + rng.choice((1, 1, 3, 9))]
        elif how <= 2:
            words.insert(at, rng.choice(PIECES))
        elif how == 3:
            words[at:at] = words[other : other + rng.choice((1, 5, 40))]
        elif how == 4:
            words[at:at] = TOKEN.findall(rng.choice(BASES))[:200]
        else:
            words[at : at + 1] = [rng.choice(PIECES)]
        words = words or [" "]
    return "".join(words)


def read(source: str, talk: Any) -> None:
    """Check a template and render a conversation with it."""
    check_template(source)
    render_chat(ChatTemplate(source, "<s>", "</s>"), talk)


def try_many(count: int, seed: int) -> Outcomes:
    """So many mutations; what became of them."""
    rng, outcomes = random.Random(seed), Outcomes()
    for _ in range(count):
        source, talk = mutated(rng), rng.choice(TALK)
        outcomes.meet([lambda source=source, talk=talk: read(source, talk)], lambda source=source: repr(source))
    return outcomes
