"""Usage, metrics and the page are right for each of the three APIs."""

from __future__ import annotations

import json

import httpx
import pytest
from fronting import Behind, before
from test_front_blocks import FACT, MARK, QUESTION, RULES, TYPES, conversation

from sp.front.history import OPENING
from sp.front.shorten import Compressor

USAGES = {
    "chat": ("/v1/chat/completions", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}),
    "responses": ("/v1/responses", {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}),
    "messages": ("/v1/messages", {"input_tokens": 5, "cache_read_input_tokens": 4}),
}


@pytest.mark.parametrize("api", list(USAGES))
def test_usage_metrics_and_page_of_each_api(behind: Behind, words: Compressor, api) -> None:
    path, usage = USAGES[api]
    behind.reply = json.dumps({"usage": usage}).encode()
    body = conversation(api, [{"type": TYPES[api], "text": QUESTION, **MARK}])
    with before(behind.url, words, RULES) as (url, front):
        httpx.post(url + path, json={name: items[:1] for name, items in body.items()}, trust_env=False)
        reply = httpx.post(url + path, json=body, trust_env=False)
        metrics, page = (httpx.get(url + end, trust_env=False).text for end in ("/metrics", "/"))
    reported = reply.json()["usage"]
    own = reported.pop("sp")
    assert reported == usage
    assert (own["shortened"], own["decided"], own["recalled"]) == (1, 0, front.recent[0].recalled)
    assert own["recalled"] > 0
    assert own["sent_tokens"] < own["tokens"]
    assert 'sp_front_tokens_total{kind="upstream_prompt"} 18.0' in metrics
    assert 'sp_front_tokens_total{kind="upstream_cached"} 8.0' in metrics
    assert f"sp_front_recalls_total {own['recalled']:.1f}" in metrics
    assert f"{own['tokens']:,} tokens received, {own['sent_tokens']:,} sent on" in page
    assert f"<ins>{OPENING}" in page
    assert FACT in page
    assert "<del>" in page
