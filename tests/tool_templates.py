"""Small chat templates of our own that show tools, calls and results as published ones do, and chats to show."""

from __future__ import annotations

from typing import Any

from sp.chat import Call, Turn
from sp.chat.turn import message_of
from sp.gguf import render_chat

TAGGED = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{{ messages[0].content + '\\n' if messages[0].role == 'system' }}
    {%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
    {{- 'To call one, write:\\n<tool_call>\\n{\\"name\\": <its name>, \\"arguments\\": <an object>}\\n</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'system' %}
        {%- if not tools %}{{ '<|im_start|>system\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n' if m.content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""As Qwen2.5 and Qwen3: JSON between tags."""

TAGGED_CALL = (
    "    {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}\n"
    "    {%- for key, value in call.function.arguments | items %}\n"
    "        {{- '<parameter=' + key + '>\\n' }}{{ value if value is string else value | tojson }}\n"
    "        {{- '\\n</parameter>\\n' }}\n"
    "    {%- endfor %}\n"
    "    {{- '</function>\\n</tool_call>' }}\n"
)
PARAMETERS = (
    TAGGED.replace('{\\"name\\": <its name>, \\"arguments\\": <an object>}', "<function=its name>\\n</function>")
    .replace(
        """            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}\n""", TAGGED_CALL
    )
    .replace("            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}\n", "")
)
"""As Qwen3-Coder and Qwen3.5: every parameter between tags of its own."""

BARE = """\
{%- if tools is not defined %}{% set tools = none %}{% endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + ('ipython' if m.role == 'tool' else m.role) + '\\n' }}
    {%- if loop.first and tools is not none %}
        {{- 'Answer with {"name": function name, "parameters": an object} to call one of these.\\n' }}
        {%- for tool in tools %}{{ tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
    {%- endif %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
    {%- elif m.role == 'tool' %}{{ m.content | tojson }}
    {%- else %}{{ m.content | trim }}{% endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""As Llama 3: the whole answer is an object, results are quoted, one call a turn."""

IN_CHANNEL = """\
{{- '<|start|>system<|message|>Channels: analysis, commentary, final.<|end|>' }}
{%- if tools %}
    {{- '<|start|>developer<|message|># Tools\\n' }}
    {%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}{{ '<|end|>' }}
{%- endif %}
{%- set last, done = namespace(name=''), messages | selectattr('role', 'equalto', 'assistant') | list %}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- set call, thought = m.tool_calls[0].function, m.content or m.thinking %}
        {%- set last.name = call.name %}
        {%- if thought and done[-1].tool_calls %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' }}
        {%- endif %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
        {{- call.arguments | tojson + '<|call|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- m.content | tojson + '<|end|>' }}
    {%- elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
    {%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""
"""As gpt-oss: a message to a function in a channel, results as JSON; what was said before a call goes in the end."""

TEXTUAL = """\
{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.content is none %}
        {%- for call in m.tool_calls %}{{ '<call>' + call.function.name + '\\n' + call.function.arguments }}{% endfor %}
    {%- else %}{{ '<' + m.role + '>' + m.content }}{% endif %}
{%- endfor %}
"""
"""As DeepSeek's R1: arguments are text, a turn with calls has no content; how to call is not said in a known way."""

NAMED = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
    {%- elif m.role == 'assistant' %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name }}{{ '[ARGS]' + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- '</s>' }}
    {%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}
{%- endfor %}
"""
"""As Devstral 2 and Ministral 3: a name and an object, each behind a mark; where a call ends is not marked."""

BRACED = """\
{%- macro spelled(value) -%}
    {%- if value is string -%}{{ '<|"|>' + value + '<|"|>' }}
    {%- elif value is mapping -%}
        {{- '{' }}{% for key, one in value | items %}{{ key + ':' + spelled(one) + (',' if not loop.last else '') }}
        {%- endfor %}{{ '}' }}
    {%- elif value is sequence -%}
        {{- '[' }}{% for one in value %}{{ spelled(one) + (',' if not loop.last else '') }}{% endfor %}{{ ']' }}
    {%- else -%}{{ value | tojson }}{%- endif -%}
{%- endmacro -%}
""" + TAGGED.replace(
    """            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}\n""",
    "            {{- '<|tool_call>call:' + call.function.name + spelled(call.function.arguments) + '<tool_call|>' }}\n",
).replace("            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}\n", "")
"""As Gemma 4: a name and an object of bare keys, whose strings stand between marks of their own."""

STYLES = {
    "braced": BRACED,
    "tagged_json": TAGGED,
    "tagged_parameters": PARAMETERS,
    "bare_json": BARE,
    "named_json": NAMED,
    "in_channel": IN_CHANNEL,
}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "most": {"type": "integer"},
        "all": {"type": "boolean"},
        "filter": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
    "required": ["path"],
}
READ: dict[str, Any] = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read a file.", "parameters": SCHEMA},
}
LIST: dict[str, Any] = {"type": "function", "function": {"name": "list_files"}}
TOOLS = (READ, LIST)


def written(name: str, call: Call) -> str:
    """A call as a template writes it in an assistant's turn."""
    message = message_of(Turn("assistant", "", calls=(call,)), None)
    said = render_chat(STYLES[name], [message], add_generation_prompt=False)
    if name == "in_channel":
        return said.rpartition("<|start|>assistant")[2]
    return said.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n").removesuffix("</s>")
