"""What clients of llama.cpp's server ask for besides answers: tokens of a text, text of tokens, the model's data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sp.gguf import Tokenizer
from sp.serve.anthropic.routes import Answering, guarded
from sp.serve.fields import RequestError, shown, text_of
from sp.serve.protocol import parse_json
from sp.session.loaded import Loaded

Work = Callable[[Mapping[str, Any], Tokenizer], dict[str, Any]]


class Tokens:
    """The endpoints over a service."""

    def __init__(self, service: Answering) -> None:
        self._service = service
        self._one = asyncio.Semaphore(1)  # answers come first

    def routes(self) -> list[Route]:
        """Where they are."""
        works: dict[str, Work] = {"/tokenize": tokens_of, "/detokenize": text_of_tokens}
        made = [Route(path, partial(guarded, self._service, partial(self._do, work)), methods=["POST"])
                for path, work in works.items()]  # fmt: skip
        return [*made, Route("/props", self._props)]

    async def _do(self, work: Work, request: Request) -> Response:
        def done() -> dict[str, Any]:
            return work(parse_json(raw), self._service.worker.pipeline.target.tokenizer)

        async with self._service.bodies.read(request) as raw, self._one:
            return JSONResponse(await asyncio.to_thread(done))

    async def _props(self, _: Request) -> Response:
        return JSONResponse(props_of(self._service.worker.pipeline.target))


def tokens_of(body: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokens of ``content``. With ``add_special`` those that begin and end a text are among them, without
    ``parse_special`` the spelling of a special token is only text, and ``with_pieces`` each has its text beside it, or
    its bytes where they are a part of a character; RequestError for a value that is none.
    """
    text = text_of(body.get("content"), "content")
    framed, special, pieces = (
        _flag(body, name, default) for name, default in (("add_special", 0), ("parse_special", 1), ("with_pieces", 0))
    )
    plain = () if special else ((0, len(text.encode())),)
    ids = tokenizer.encode(text, plain, framed=framed).ids.tolist()
    return {"tokens": [{"id": i, "piece": _piece(tokenizer.token_bytes(i))} for i in ids] if pieces else ids}


def text_of_tokens(body: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The text of ``tokens``; RequestError unless they are numbers, PromptError for one outside the vocabulary."""
    given = body.get("tokens")
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise RequestError(f"tokens is {shown(given)}; send a list of whole numbers", "tokens")
    return {"content": tokenizer.decode(given)}


def props_of(target: Loaded) -> dict[str, Any]:
    """What is asked of a model before it is talked to; of its path the name alone."""
    template = target.template
    return {
        "default_generation_settings": {"n_ctx": target.model.config.context},
        "total_slots": 1,  # one request runs at a time
        "model_path": target.path.name,
        "model_alias": target.path.stem,
        "chat_template": "" if template is None else template.source,
        **({"chat_template_tool_use": template.tool_use} if template and template.tool_use else {}),
        "bos_token": "" if template is None else template.bos_token,
        "eos_token": "" if template is None else template.eos_token,
        "modalities": {"vision": False, "audio": False},
    }


def _flag(body: Mapping[str, Any], name: str, default: int) -> bool:
    value = body.get(name, bool(default))
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}; send true or false", name)
    return value


def _piece(raw: bytes) -> str | list[int]:
    """The text of a token, or its bytes.

    >>> _piece("é".encode()), _piece("é".encode()[:1])
    ('é', [195])
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
