"""LangChain's `ChatOpenAI` against a running server: python with_langchain.py URL URL-OF-ONE-THAT-CALLS-A-TOOL.

Prints one JSON object: what each part found. Anything unexpected ends it with a traceback and status 1.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from shared import SCHEMA, refused, weather


def model(url: str, tokens: int = 8, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="target", max_tokens=tokens, max_retries=0, **more)


def main(url: str, agent: str) -> dict[str, Any]:
    talk = model(url)
    whole = talk.invoke("Who is there?")
    chunks = list(model(url, stream_usage=True).stream("Who is there?"))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    used = sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks)
    assert used == whole.usage_metadata["output_tokens"]
    other = model(url, use_responses_api=True).invoke("Who is there?")
    assert other.text == whole.text

    turns: list[Any] = [HumanMessage("Who is there?")]
    for turn in range(3):
        reply = talk.invoke(turns)
        turns += [reply, HumanMessage(f"And then, {turn}?")]
    assert reply.usage_metadata["input_token_details"]["cache_read"] > 0

    held = model(url, 40).with_structured_output(SCHEMA, method="json_schema", strict=True).invoke("Which?")
    assert "-9" in refused(openai.BadRequestError, lambda: model(url, -9).invoke("Who is there?"))
    found = {"chat": with_tool(model(agent, 200)), "responses": with_tool(model(agent, 200, use_responses_api=True))}
    return {"turns": len(turns), "json": held, **found}


def with_tool(asked: ChatOpenAI) -> list[str]:
    """A question, a call, its result, an answer: streamed and put together by the client."""
    own = tool(weather)
    bound = asked.bind_tools([own])
    turns: list[Any] = [HumanMessage("What is the weather in Oslo?")]
    said = []
    for _ in range(2):
        message = AIMessageChunk("")
        for chunk in bound.stream(turns):
            message += chunk
        said.append(message.text)
        turns.append(message)
        turns += [ToolMessage(own.invoke(call["args"]), tool_call_id=call["id"]) for call in message.tool_calls]
    return said


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
