"""Endpoints of llama.cpp's server besides answers: text to tokens, tokens to text, the model's properties."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sp.chat.messages import describe_value
from sp.gguf import Tokenizer
from sp.serve.anthropic.routes import AnswerService, guarded
from sp.serve.fields import RequestError, text_of
from sp.serve.protocol import parse_json
from sp.session.loaded import Loaded

Conversion = Callable[[Mapping[str, Any], Tokenizer], dict[str, Any]]


class TokenEndpoints:
    """The endpoints of a service."""

    def __init__(self, service: AnswerService) -> None:
        self._service = service
        self._one = asyncio.Semaphore(1)  # one at a time, so that answers keep the cores

    def routes(self) -> list[Route]:
        """Return the routes."""
        conversions: dict[str, Conversion] = {"/tokenize": tokens_of, "/detokenize": text_of_tokens}
        routes = [Route(path, partial(guarded, self._service, partial(self._do, conversion)), methods=["POST"])
                for path, conversion in conversions.items()]  # fmt: skip
        return [*routes, Route("/props", self._props)]

    async def _do(self, conversion: Conversion, request: Request) -> Response:
        def convert() -> dict[str, Any]:
            return conversion(parse_json(raw), self._service.worker.pipeline.target.tokenizer)

        async with self._service.bodies.read(request) as raw, self._one:
            return JSONResponse(await asyncio.to_thread(convert))

    async def _props(self, _: Request) -> Response:
        return JSONResponse(props_of(self._service.worker.pipeline.target))


def tokens_of(body: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokens of ``content``; RequestError for an invalid value.

    ``add_special`` adds the tokens that begin and end a text. Without ``parse_special`` the spelling of a special token
    is plain text. ``with_pieces`` adds the text of each token, or its bytes if they are a part of a character.
    """
    text = text_of(body.get("content"), "content")
    framed, special, pieces = (
        _flag(body, name, default) for name, default in (("add_special", 0), ("parse_special", 1), ("with_pieces", 0))
    )
    plain = () if special else ((0, len(text.encode())),)
    ids = tokenizer.encode(text, plain, framed=framed).ids.tolist()
    return {"tokens": [{"id": i, "piece": _piece(tokenizer.token_bytes(i))} for i in ids] if pieces else ids}


def text_of_tokens(body: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the text of ``tokens``; RequestError if they are not numbers, PromptError for one outside the
    vocabulary.
    """
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
        raise RequestError(f"tokens is {describe_value(ids)}; send a list of whole numbers", "tokens")
    return {"content": tokenizer.decode(ids)}


def props_of(target: Loaded) -> dict[str, Any]:
    """Return the properties of a model that clients read before they use it; of its path only the file name."""
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
        raise RequestError(f"{name} is {describe_value(value)}; send true or false", name)
    return value


def _piece(raw: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes.

    >>> _piece("é".encode()), _piece("é".encode()[:1])
    ('é', [195])
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
