"""Mutations of request bodies: a request whose prompt can be rendered, or refused with a 4xx and one short line.

A share runs as `serve/test_serve_door.py`; many more with `gguf/fuzz_inputs.py`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

from fuzz_texts import changed_bytes, changed_json
from outcomes import Outcomes, SlowError
from tool_templates import PARAMETERS

import sp
from sp.errors import SpError
from sp.gguf import ChatTemplate
from sp.serve.app import Spoken
from sp.serve.fields import as_request_error
from sp.serve.grammars import Grammars
from sp.serve.lanes import lane_of
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.serve.protocol import parse_json, parse_request
from sp.serve.responses.request import Asked
from sp.session import Pipeline

FILL = "The grass is green. " * 150
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "description": "Looks."}}
STRICT = {"type": "function", "function": {**LOOK["function"], "strict": True}}
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": f"{FILL}\n\nWhat is green?"}], "max_tokens": 9, "model": "x"},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b?"}]}], "temperature": 0.7, "top_p": 0.9,
     "top_k": 5, "min_p": 0.1, "seed": 3, "n": 2, "logprobs": True, "top_logprobs": 2, "stop": ["x", "y"]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "tool_call_id": "c1", "content": "seen"}], "stream": True,
     "stream_options": {"include_usage": True}, "user": "me", "prompt_cache_key": "k"},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [LOOK], "tool_choice": "auto",
     "parallel_tool_calls": False},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [LOOK], "tool_choice": "required", "max_tokens": 2},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [STRICT], "response_format": {"type": "json_object"}},
    {"messages": [{"role": "user", "content": "hi"}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False},
     "reasoning_effort": "low", "sp": {"keep_ratio": 0.1, "scorer": "tail", "selector": "top_chunks", "compress":
     "always", "threshold": 3, "protect": "auto", "decode": "greedy", "session": True, "recall": "auto"}},
)  # fmt: skip
TEXTS: tuple[dict[str, Any], ...] = (
    {"prompt": f"{FILL}\n\nWhat?", "max_tokens": 3, "temperature": 1, "logprobs": 2, "stop": "x", "sp": {"alpha": 0.1}},
    {"prompt": "é", "echo": False, "best_of": 1, "logit_bias": {"7": -9}, "repeat_penalty": 2, "suffix": "", "n": 1},
)
ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
RESPONSES: tuple[dict[str, Any], ...] = (
    {"input": f"{FILL}\n\nWhat is green?", "max_output_tokens": 9, "instructions": "Be brief.", "stream": True,
     "text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}, "verbosity": "low"}},
    {"input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
               {"role": "user", "content": "hi"},
               {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
               ITEM, {"type": "function_call_output", "call_id": "c1", "output": "seen"}],
     "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}, {"type": "web_search"}],
     "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False, "top_logprobs": 2,
     "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"], "store": False},
)  # fmt: skip
SEEDS: tuple[tuple[Spoken, dict[str, Any]], ...] = tuple(
    [("chat", each) for each in CHATS]
    + [("completion", each) for each in TEXTS]
    + [("response", each) for each in RESPONSES]  # type: ignore[misc]
)


class RefusedError(SpError):
    """A body was answered with a status of 400 to 499."""


def read(kind: Spoken, raw: bytes, pair: Pipeline, grammars: Grammars, statuses: Counter[int]) -> None:
    """What the server does with a body before a model reads; what it would refuse is a `RefusedError`."""
    try:
        body = parse_json(raw)
        defaults = Defaults(max_new_tokens=64)
        if kind == "response":
            asked = Asked.of(body, defaults, pair.target.template)
            job, body = asked.job(defaults, grammars.checked), asked.body
        else:
            job = grammars.checked(parse_request(kind, body, defaults))
        lane_of(body, "::1", "")
        prompt, _ = to_prompt(job, pair.target.template, pair.target.tokenizer)
        if (constraint := grammars.constraint(job, prompt.thinks, lambda: False)) is not None:
            constraint.allowed()
    except SlowError:
        raise
    except Exception as error:
        refusal = as_request_error(error)
        statuses[refusal.status] += 1
        json.dumps(refusal.body(), ensure_ascii=False).encode()
        if not 400 <= refusal.status < 500:
            raise
        raise RefusedError(refusal.body()["error"]["message"]) from error
    statuses[200] += 1


def fuzz(count: int, seed: int, pair: Pipeline) -> tuple[Outcomes, Counter[int]]:
    """So many mutations of valid bodies, to a model that calls tools; what came of them, and statuses."""
    pair = Pipeline(replace(pair.target, template=ChatTemplate(PARAMETERS)), pair.drafter)
    outcomes, statuses = Outcomes(), Counter[int]()
    grammars = Grammars(pair.target.tokenizer, pair.target.template)
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        kind, body = SEEDS[number % len(SEEDS)]
        raw = changed_json(body, rng).encode("utf-8", "surrogatepass")
        raw = changed_bytes(raw, rng) if rng.random() < 0.1 else raw
        outcomes.meet(
            [lambda kind=kind, raw=raw: read(kind, raw, pair, grammars, statuses)],
            lambda kind=kind, raw=raw: f"{kind}: {raw[:1500]!r}",
        )
    return outcomes, statuses


def try_many(count: int, seed: int) -> Outcomes:
    """So many mutations, to the embedded pair."""
    return fuzz(count, seed, sp.load(device="cpu"))[0]
