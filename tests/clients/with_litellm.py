"""LiteLLM against a running server: python with_litellm.py URL URL-OF-ONE-THAT-CALLS-A-TOOL.

Prints one JSON object: what each part found. Anything unexpected ends it with a traceback and status 1.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks GitHub for one when it is imported

import litellm
from shared import SCHEMA, WEATHER, refused, weather

WHO = {"role": "user", "content": "Who is there?"}


def main(url: str, agent: str) -> dict[str, Any]:
    openai = {"model": "openai/target", "api_base": f"{url}/v1", "api_key": "none", "max_tokens": 8}
    whole = litellm.completion(messages=[WHO], **openai)
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=[WHO], **openai, **counted))
    assert text_of(chunks) == whole.choices[0].message.content
    used = [each.usage for each in chunks if getattr(each, "usage", None)][-1]
    assert used.completion_tokens == whole.usage.completion_tokens

    turns = [WHO]
    for turn in range(3):
        reply = litellm.completion(messages=turns, **openai)
        turns += [reply.choices[0].message.model_dump(), {"role": "user", "content": f"And then, {turn}?"}]
    assert reply.usage.prompt_tokens_details.cached_tokens > 0

    format_ = {"type": "json_schema", "json_schema": {"name": "found", "strict": True, "schema": SCHEMA}}
    held = litellm.completion(messages=[WHO], response_format=format_, **{**openai, "max_tokens": 40})

    asked = {"model": "anthropic/target", "api_base": url, "api_key": "none", "max_tokens": 8}
    message = litellm.completion(messages=[WHO], **asked)
    assert message.choices[0].message.content == whole.choices[0].message.content
    assert text_of(litellm.completion(messages=[WHO], stream=True, **asked)) == whole.choices[0].message.content

    response = litellm.responses(input="Who is there?", max_output_tokens=8, **{**openai, "max_tokens": None})
    assert response.output_text == whole.choices[0].message.content
    bad = {**openai, "max_tokens": -9}
    assert "max_tokens is -9" in refused(litellm.BadRequestError, lambda: litellm.completion(messages=[WHO], **bad))
    return {
        "turns": len(turns),
        "json": json.loads(held.choices[0].message.content),
        "openai": with_tool({**openai, "api_base": f"{agent}/v1", "max_tokens": 200}),
        "anthropic": with_tool({**asked, "api_base": agent, "max_tokens": 200}),
    }


def text_of(chunks: Iterable[Any]) -> str:
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


def with_tool(given: dict[str, Any]) -> list[str]:
    """A question, a call, its result, an answer: streamed and put together by the client."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    said = []
    for _ in range(2):
        chunks = list(litellm.completion(messages=turns, tools=[WEATHER], stream=True, **given))
        message = litellm.stream_chunk_builder(chunks, messages=turns).choices[0].message
        said.append(message.content)
        turns.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            result = weather(**json.loads(call.function.arguments))
            turns.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return said


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
