"""Evaluations on the device agree with those on the CPU."""

from __future__ import annotations

import pytest

from sp.evals import TASKS, Row, evaluate
from sp.evals.ppl import generated_text, passages, perplexity
from sp.evals.run import counter
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.session import Pipeline, RunOptions

SENTENCES = SELECTORS.build("sentence", {"neighbours": 0, "sink": 4})
CELLS = [RunOptions(0.2, SCORERS.build(name), SENTENCES) for name in ("tail", "random", "oracle")]


@pytest.fixture(scope="module")
def pairs() -> tuple[Pipeline, Pipeline]:
    return Pipeline.open(device="cuda"), Pipeline.open(device="cpu")


def test_rows_agree(pairs: tuple[Pipeline, Pipeline]) -> None:
    on_device, on_host = pairs
    assert on_device.target.model.device == "cuda"
    count = counter(on_host.target.tokenizer)
    examples = [TASKS.build(name).example(0, 1500, count) for name in ("needle", "needle_multiquery")]

    def known(row: Row) -> tuple[object, ...]:
        return row["task"], row["cell"], row["status"], row["correct"], row["given_kept"]

    mine, its = ([known(row) for row in evaluate(pair, examples, CELLS)] for pair in pairs)
    assert mine == its


def test_perplexity_agrees(pairs: tuple[Pipeline, Pipeline]) -> None:
    tokenizer = pairs[1].target.tokenizer
    found = passages(generated_text(700, counter(tokenizer)), 640, 16, 1, tokenizer)
    mine, its = (list(perplexity(pair, found, CELLS[:2])) for pair in pairs)
    for one, other in zip(mine, its, strict=True):
        assert one["nll"] == pytest.approx(other["nll"], abs=0.1)
        assert one["kl"] == pytest.approx(other["kl"], abs=0.05)
        assert one["kept_tokens"] == pytest.approx(other["kept_tokens"], abs=48)
