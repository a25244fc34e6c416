"""Small chat templates of our own that treat thinking as published ones do, and what they must give, by hand."""

from __future__ import annotations

from sp.chat import Turn

SWITCHED = """\
{%- set ns = namespace(asked=0) %}
{%- for m in messages %}
    {%- if m.role == 'user' and not m.content.startswith('<tool_response>') %}
        {%- set ns.asked = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- set said, thought = m.content, m.reasoning_content or '' %}
    {%- if m.role == 'assistant' and '</think>' in said %}
        {%- set thought = said.split('</think>')[0].split('<think>')[-1] %}
        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if thought and loop.index0 > ns.asked %}{{ '<think>\\n' + thought.strip() + '\\n</think>\\n\\n' }}{% endif %}
    {{- said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
"""As Qwen3: thinking is dropped from turns before the last question, and a closed block switches it off."""

OPENED = """\
{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] | trim + eos_token }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|><think>\\n' }}{% endif %}
"""
"""As DeepSeek-R1: it always thinks, and the prompt begins to."""

BLOCKS = """\
{%- for m in messages %}
    {{- '[' + m.role + ']' }}
    {%- if m.content is string %}{{ m.content }}{% else %}
        {%- for b in m.content %}
            {{- '[THINK]' + b.thinking + '[/THINK]' if b.type == 'thinking' else b.text }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
"""
"""As Ministral: thinking is a block of the content."""

CHANNELS = """\
{{- 'Reasoning: ' + (reasoning_effort or 'medium') + '\\n' }}
{%- for m in messages %}
    {%- if m.thinking and loop.last %}{{ '<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
    {{- '<|start|>' + m.role + '<|message|>' + (m.content | tojson if m.role == 'tool' else m.content) + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""
"""As gpt-oss: channels, an effort, and results of tools as JSON."""


def switched(turns: list[Turn]) -> list[tuple[int | None, str]]:
    """What `SWITCHED` writes, piece by piece: with the message it comes from, or None for markup."""
    users = [i for i, t in enumerate(turns) if t.role == "user" and not t.content.startswith("<tool_response>")]
    asked, found = users[-1] if users else 0, list[tuple[int | None, str]]()
    for index, turn in enumerate(turns):
        found.append((None, f"<|im_start|>{turn.role}\n"))
        thought, said = turn.reasoning, turn.content
        if turn.role == "assistant" and "</think>" in said:
            thought = said.split("</think>")[0].split("<think>")[-1]
            said = said.split("</think>")[-1].lstrip("\n")
        if thought and index > asked:
            found += [(None, "<think>\n"), (index, thought.strip()), (None, "\n</think>\n\n")]
        found += [(index, said), (None, "<|im_end|>\n")]
    return [*found, (None, "<|im_start|>assistant\n")]
