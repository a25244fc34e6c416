"""Fixed text takes nothing from what is kept of a document: with sessions, without them, and on several GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import serving as tool
import web

from sp.models import ContextParallel
from sp.parallel.host import HostGroup
from sp.scoring import SCORERS
from sp.session import Conversations, Pipeline, RunOptions, embedded, load

KEY, VALUE = "quiet-coral", 3254257
NEEDLE = f"{KEY} was assigned the number {VALUE}."
OPTIONS = RunOptions(keep_ratio=0.1, compress="always", max_new_tokens=12, scorer=SCORERS.build("lexical"))


@pytest.fixture(scope="module", params=["alone", "session", "cards"])
def server_of(request: pytest.FixtureRequest, pair: Pipeline) -> Iterator[tool.Running]:
    if request.param == "cards":  # threads of the host
        assert pair.drafter is not None
        target = load(embedded("drafter"), device="cpu", group=HostGroup(2))
        pair = Pipeline(target, pair.drafter, gpus=ContextParallel(HostGroup(2), [pair.drafter.model] * 2))
    talks = Conversations(pair) if request.param == "session" else None
    with tool.serving(pair, talks=talks, options=OPTIONS) as running:
        yield running


def ask(server: tool.Running, path: str, **body: Any) -> dict[str, Any]:
    reply = web.post(f"{server.url}/v1/{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_a_long_system_message_leaves_the_document_its_share(server_of: tool.Running) -> None:
    document = tool.document(KEY, VALUE, 40)
    parts = [{"type": "text", "text": text} for text in (document, tool.question(KEY))]
    kept = {}
    for name, repeats in (("short", 1), ("long", 60)):
        system = {"role": "system", "content": "Answer with the number alone. " * repeats}
        given = {"messages": [system, {"role": "user", "content": parts}], "sp": {"return_kept": True}}
        reply = ask(server_of, "chat/completions", **given)
        used = reply["usage"]["sp"]
        kept[name] = used["kept_tokens"], reply["usage"]["prompt_tokens"]
        assert used["compressed"]
        assert NEEDLE in str(used["kept_text"])
    longer = kept["long"][1] - kept["short"][1]
    assert longer > 0.1 * kept["short"][1], "more than its share of the budget"
    assert abs(kept["long"][0] - kept["short"][0] - longer) <= 32


@pytest.mark.parametrize("keep", [0.01, 0.05, 0.5])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hello there."}]}),
        ("completions", {"prompt": "Hello there."}),
    ],
)
def test_a_text_that_is_all_question_is_read_whole(
    server_of: tool.Running, path: str, body: dict[str, Any], keep: float
) -> None:
    wanted = {"compress": "always", "keep_ratio": keep}
    used = ask(server_of, path, **body, sp=wanted, max_tokens=2)["usage"]
    assert not used["sp"]["compressed"]
    assert used["sp"]["kept_tokens"] == used["prompt_tokens"]
    assert "may be left out" in used["sp"]["reason"]
