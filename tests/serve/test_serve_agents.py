"""OpenAI's Agents SDK on the Responses model: an agent with a function tool, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import serving as tool
from test_serve_tools import Scripted, scripted
from tool_templates import TAGGED

from sp.session import Pipeline, RunResult

pytestmark = pytest.mark.skipif(find_spec("agents") is None, reason="could not import 'agents'")

CALL = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
RAIN = "It rains in Oslo."


class Looking(Scripted):
    """Calls the tool, and once it was answered says what it was told."""

    calls, result, tells = CALL, "rain in Oslo", RAIN

    def run(self, prompt: Any, options: Any, **given: Any) -> RunResult:
        self.said = self.tells if f"<tool_response>\n{self.result}" in prompt.text else self.calls
        return super().run(prompt, options, **given)


@pytest.fixture(scope="module")
def looking(pair: Pipeline) -> Iterator[tool.Running]:
    made = scripted(pair, TAGGED, CALL)
    with tool.serving(Looking(made.target, made.drafter), answer=256) as running:
        yield running


@pytest.fixture(scope="module")
def agents() -> Any:
    """The SDK, which takes seconds to import: not before its tests begin, which most processes of tests never run."""
    return import_module("agents")


def agent_of(agents: Any, server: tool.Running) -> Any:
    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(model="target", openai_client=tool.async_client(server.url))
    return agents.Agent(name="sky", instructions="Use the tool.", tools=[weather], model=model)


def test_an_agent_with_a_tool(agents: Any, looking: tool.Running) -> None:
    found = asyncio.run(agents.Runner.run(agent_of(agents, looking), "What is the weather in Oslo?"))
    assert found.final_output == RAIN
    kinds = [type(each).__name__ for each in found.new_items]
    assert kinds == ["MessageOutputItem", "ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
    turns = [*found.to_input_list(), {"role": "user", "content": "And now?"}]
    assert asyncio.run(agents.Runner.run(agent_of(agents, looking), turns)).final_output == RAIN
    assert found.context_wrapper.usage.requests == 2


def test_the_same_streamed(agents: Any, looking: tool.Running) -> None:
    async def work() -> tuple[Any, list[str]]:
        result, kinds = agents.Runner.run_streamed(agent_of(agents, looking), "What is the weather in Oslo?"), []
        async for event in result.stream_events():
            kinds.append(event.data.type if event.type == "raw_response_event" else event.type)
        return result, kinds

    found, kinds = asyncio.run(work())
    assert found.final_output == RAIN
    assert kinds.count("response.completed") == 2
    assert "response.output_text.delta" in kinds
