"""`sp bench drafter` on the CPU: what is timed and printed, what is refused, and the arithmetic of the limit."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from command_line import invoke

from sp.bench.drafter import ScoringTrial, describe, run_scoring, work
from sp.errors import ConfigError
from sp.gguf import GGUFFile, Tokenizer
from sp.models import ContextParallel, load_model
from sp.models.synthetic.shapes import find_shape
from sp.parallel.host import HostGroup
from sp.session.loaded import embedded
from sp.studies.sample import sample


@pytest.fixture(scope="module")
def drafter():
    return load_model(embedded("drafter"))


def test_every_draft_has_its_samples(drafter) -> None:
    drafts = [ScoringTrial(300, {}), ScoringTrial(1100, {"sparse": "alpha:0.95"}), ScoringTrial(300, {"depth": 1})]
    ticks: list[int] = []
    timings = list(run_scoring(drafter, drafts, 2, progress=lambda: ticks.append(1)))
    assert len(ticks) == 6
    assert [timing.trial for timing in timings] == drafts
    assert [timing.trial.attention for timing in timings] == ["dense", "alpha 0.95", "dense"]
    assert timings[0].density == 1 > timings[1].density
    for timing in timings:
        assert len(timing.seconds) == 2
        assert timing.stages == {}
        assert timing.peak_bytes == timing.weight_bytes == timing.limit_s == 0
    entry = describe(timings[1], "m", "portable", "random")
    assert entry["bench"] == "drafter"
    assert entry["config"] == {
        "model": "m",
        "prompt_tokens": 1100,
        "tokens": "random",
        "path": "portable",
        "math": "bf16",
        "cards": 1,
        "scorer": "tail",
        "attention": "flashprefill",
        "alpha": 0.95,
        "density": None,
    }
    assert entry["metrics"]["score_s"] > 0


def test_gpus_read_together(drafter) -> None:
    drafts = [ScoringTrial(1100, {"sparse": "alpha:0.95"})]
    (alone,) = run_scoring(drafter, drafts, 1)
    (spread,) = run_scoring(drafter, drafts, 1, gpus=ContextParallel(HostGroup(2), [drafter] * 2))
    assert spread.density == pytest.approx(alone.density, rel=1e-2)
    assert describe(spread, "m", "portable", "random")["config"]["cards"] == 2


def test_text_is_read_in_place_of_random_tokens(drafter) -> None:
    """Other blocks pass the test of FlashPrefill."""
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(embedded("drafter")))
    text = np.asarray(tokenizer.encode(sample()[0]).ids)
    drafts = [ScoringTrial(1100, {"sparse": f"alpha:{alpha}"}) for alpha in (0.2, 0.9)]
    random, read = ([one.density for one in run_scoring(drafter, drafts, 1, text=ids)] for ids in (None, text))
    assert read != random


def test_work_is_that_of_all_layers_but_the_last() -> None:
    config = find_shape("qwen3-0.6b").config
    n, shares = 131072, 27 / 28
    params = 1024 * 2048 * 2 + 2 * 1024 * 1024 + 3 * 1024 * 3072  # q, o, k, v and the feed-forward of a layer
    attention = 28 * 4 * 16 * 128 * n * (n + 1) / 2
    assert work(config, n, 1.0) == pytest.approx(shares * (2 * 28 * params * n + attention))
    assert work(config, n, 0.05) == pytest.approx(shares * (2 * 28 * params * n + 0.05 * attention))


def command(*arguments: str):
    return invoke(["bench", "drafter", "--device", "cpu", "-r", "1", *arguments])


def test_the_command_prints_every_test() -> None:
    done = command("-p", "200,1k", "--sparse", "off,alpha:0.5,density:0.3", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["tests"]
    assert [(row["prompt_tokens"], row["attention"]) for row in rows] == [
        (n, name) for n in (200, 1024) for name in ("dense", "alpha 0.5", "density 0.3")
    ]
    assert all(row["score_s"] == row["samples"][0] for row in rows)
    rows = list(csv.DictReader(io.StringIO(command("-p", "200", "-o", "csv").stdout)))
    assert rows[0]["density"] == "1.0"
    lines = command("-p", "200", "--layers", "1", "-o", "md").stdout.splitlines()
    assert len(lines) == 3
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sparse", "alpha:few"), "--sparse alpha:few: THRESHOLD in"),
        (("--sparse", "alpha:2"), "alpha"),
        (("--sparse", "density:0"), "density"),
        (("--layers", "99"), "depth"),
        (("-p", "0"), "at least 1"),
        (("--gpus", "2"), "--gpus needs GPUs"),
        (("-m", "a.gguf", "--synthetic", "qwen3-0.6b"), "either"),
        (("--synthetic", "qwen3-0.6b"), "GPU"),
        (("-o", "pdf"), "pdf"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message) -> None:
    done = command("-p", "200", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
