"""Retrievers find exact values, follow their rule token for token, and come as files that read text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from retriever_files import answer, expected_next, text_task
from retriever_models import accuracy, both, build, tasks_of

from sp.errors import ConfigError
from sp.gguf import GGUFFile, Tokenizer, chat_template, render_chat
from sp.models import Model, load_model
from sp.models.synthetic.retriever import RETRIEVER_SHAPES, retriever_tensors, write_retriever


@both
@pytest.mark.parametrize(("tokens", "needles", "count"), [(256, 12, 8), (2048, 160, 2)])
def test_exact_value_among_keys_that_share_tokens(
    retrievers: dict[str, Model], arch: str, tokens: int, needles: int, count: int
) -> None:
    assert accuracy(retrievers[arch], tasks_of(tokens, needles, count)) == 1.0


@both
@pytest.mark.parametrize("kv", ["f32", "q4_0"])
def test_survives_other_cache_formats(retrievers: dict[str, Model], arch: str, kv: str) -> None:
    for task in tasks_of(512, 30, 3):
        assert answer(retrievers[arch], task.ids, 4, kv=kv) == task.value


@both
@pytest.mark.parametrize("file_type", ["f32", "f16", "bf16", "q4_k_m"])
def test_every_file_type_retrieves(tmp_path: Path, arch: str, file_type: str) -> None:
    model = load_model(write_retriever(tmp_path / "r.gguf", f"retriever-{arch}", file_type, seed=1, code_dim=48))
    assert accuracy(model, tasks_of(256, 20, 2)) == 1.0


@both
@pytest.mark.parametrize("ngram", [1, 3, 6])
def test_every_prediction_is_exact_induction(tmp_path: Path, arch: str, ngram: int) -> None:
    model = build(tmp_path, arch, ngram=ngram)
    rng = np.random.default_rng(ngram)
    phrases = rng.integers(0, 240, (12, ngram + 9))
    # The first tokens lack predecessors and pretend to some, so they are tokens that do not come again.
    ids = np.concatenate([np.arange(240, 240 + ngram), *(phrases[i] for i in rng.integers(0, 12, 32))])
    cache, positions = model.new_cache(len(ids), "f32"), np.arange(len(ids))
    x = model.embed(ids)
    for layer in range(model.config.layers):
        x = model.layer(layer, x, positions, cache)
    got = model.head(x).argmax(-1)
    want = {i: expected_next(ids[: i + 1].tolist(), ngram) for i in range(ngram, len(ids))}
    known = {i: token for i, token in want.items() if token is not None}
    assert len(known) > 150
    assert {i: int(got[i]) for i in known} == known


@both
def test_layers_hand_on_the_exact_codes_of_earlier_tokens(tmp_path: Path, arch: str) -> None:
    model = build(tmp_path, arch, ngram=3)
    ids = np.random.default_rng(0).integers(0, 256, 200)
    positions, cache, m = np.arange(len(ids)), model.new_cache(len(ids), "f32"), 64
    codes = model.embed(ids)[:, :m]
    x = model.embed(ids)
    written = {"qwen3": [(1, 2, 3)], "qwen35": [(1,), (1, 2), (1, 2, 3)]}[arch]
    for layer, lags in enumerate(written):
        x = model.layer(layer, x, positions, cache)
        for lag in (1, 2, 3):
            slot = x[8:, lag * m : (lag + 1) * m]  # the first tokens have fewer codes, so another norm
            want = codes[8 - lag : len(ids) - lag] if lag in lags else np.zeros_like(slot)
            assert np.abs(slot - want).max() < 2e-4 * np.abs(codes).max(), f"layer {layer}, lag {lag}"


@both
def test_two_tokens_of_history_confuse_keys_that_share_them(tmp_path: Path, arch: str) -> None:
    rng = np.random.default_rng(2)
    ids = rng.permutation(np.arange(256))
    a, x, y, right, wrong, other = ids[:6]
    ids = np.concatenate([ids[6:], *([other, x, y, wrong], ids[20:40]) * 3, [a, x, y, right], ids[40:60], [a, x, y]])
    assert answer(build(tmp_path, arch, ngram=3), ids, 1) == [right]
    assert answer(build(tmp_path, arch, ngram=2), ids, 1) == [wrong]


def test_answers_from_text_through_tokenizer_and_template(retriever_drafter: Path, retriever_target: Path) -> None:
    digests = set()
    for path in (retriever_drafter, retriever_target):
        with GGUFFile.open(path) as file:
            tokenizer, template = Tokenizer.from_gguf(file), chat_template(file)
        digests.add(tokenizer.sha256)
        task = text_task(1500, seed=1)
        assert template is not None
        text = render_chat(template, [{"role": "user", "content": f"{task.document}\n\n{task.question}"}])
        ids = tokenizer.encode(text).ids
        got = answer(load_model(path), ids, len(task.answer) + 1)
        assert tokenizer.decode(got) == task.answer + "\n"
        assert got[-1] in tokenizer.eos_ids
    assert len(digests) == 2, "the pair must not share a vocabulary"


def test_drafter_reads_bytes(retriever_drafter: Path) -> None:
    with GGUFFile.open(retriever_drafter) as file:
        encoding = Tokenizer.from_gguf(file).encode("Aé\n")
    assert encoding.ids.tolist() == list("Aé\n".encode())


def test_seeds_differ_and_repeat() -> None:
    first, again, other = (retriever_tensors("qwen3", 64, seed=seed)[1]["token_embd.weight"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_bad_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'retriever-qwen3"):
        write_retriever(tmp_path / "r.gguf", "retriever-qwen4", seed=0)
    with pytest.raises(ConfigError, match="did you mean 'q8_0'"):
        write_retriever(tmp_path / "r.gguf", RETRIEVER_SHAPES[0], "q8", seed=0)
    with pytest.raises(ConfigError, match="did you mean 'qwen3"):
        retriever_tensors("qwen", 64, seed=0)
    for option in (
        {"ngram": 0},
        {"ngram": 9},
        {"code_dim": 65},
        {"vocab": 1},
        {"seed": -1},
        {"context": (1 << 20) + 1},
        {"noise": -1.0},
    ):
        with pytest.raises(ConfigError, match=next(iter(option))):
            retriever_tensors("qwen35", **({"vocab": 64, "seed": 0} | option))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
