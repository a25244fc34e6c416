"""Retrievers do what their construction promises, and stop doing it when any part of the forward pass is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from retriever_files import TokenTask, answer, expected_next, text_task, token_task

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.gguf import GGUFFile, GGUFWriter, Tokenizer, chat_template, render_chat
from sp.models import Model, load_model, prefill
from sp.models.retriever import RETRIEVER_SHAPES, retriever_tensors, write_retriever
from sp.ops import rms_norm, rope
from sp.quant import F32

CONTEXT = 131072
ARCHS = ("qwen3", "qwen35")
both = pytest.mark.parametrize("arch", ARCHS)
Tensors = dict[str, Floats]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One retriever of each architecture, Q8_0."""
    folder = tmp_path_factory.mktemp("retrievers")
    return {
        arch: load_model(write_retriever(folder / f"{arch}.gguf", f"retriever-{arch}", "q8_0", seed=3))
        for arch in ARCHS
    }


def build(folder: Path, arch: str, change: Callable[[Tensors], None] = lambda tensors: None, **options: float) -> Model:
    """A model of 256 tokens from tensors that `change` may spoil first."""
    metadata, tensors = retriever_tensors(arch, 256, seed=5, **options)  # type: ignore[arg-type]
    change(tensors)
    writer = GGUFWriter(folder / "model.gguf", metadata)
    for name, values in tensors.items():
        writer.add(name, values.shape, F32, F32.encode(values))
    return load_model(writer.write())


def accuracy(model: Model, tasks: list[TokenTask]) -> float:
    """Share of tasks whose whole value is answered."""
    return float(np.mean([answer(model, task.ids, len(task.value)) == task.value for task in tasks]))


def tasks_of(tokens: int, needles: int, count: int, **options: int) -> list[TokenTask]:
    return [token_task(tokens, needles, seed, **options) for seed in range(count)]


# ---- retrieval


@both
@pytest.mark.parametrize(("tokens", "needles", "count"), [(256, 12, 8), (1024, 80, 4), (4096, 300, 1)])
def test_exact_value_among_keys_that_share_tokens(
    models: dict[str, Model], arch: str, tokens: int, needles: int, count: int
) -> None:
    assert accuracy(models[arch], tasks_of(tokens, needles, count)) == 1.0


@both
@pytest.mark.parametrize("kv", ["f32", "q4_0"])
def test_survives_other_cache_formats(models: dict[str, Model], arch: str, kv: str) -> None:
    for task in tasks_of(512, 30, 3):
        assert answer(models[arch], task.ids, 4, kv=kv) == task.value


@both
@pytest.mark.parametrize("file_type", ["f32", "f16", "bf16", "q4_k_m"])
def test_every_file_type_retrieves(tmp_path: Path, arch: str, file_type: str) -> None:
    model = load_model(write_retriever(tmp_path / "r.gguf", f"retriever-{arch}", file_type, seed=1, code_dim=48))
    assert accuracy(model, tasks_of(384, 20, 3)) == 1.0


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


# ---- positions


def spread(count: int, run: int, rng: np.random.Generator) -> Ints:
    """`count` positions in runs, spread over the whole context; behind the last there is room for 4 more."""
    starts = np.sort(rng.choice((CONTEXT - 2 * run) // run, count // run - 1, replace=False)) * run
    starts = np.append(starts, CONTEXT - 4 - run)
    return (starts[:, None] + np.arange(run)).reshape(-1)


@both
def test_kept_tokens_answer_at_positions_up_to_131071(models: dict[str, Model], arch: str) -> None:
    for seed in range(3):
        task = token_task(1036, 60, seed)  # needles lie at multiples of 7, as the runs of 28 do
        positions = spread(len(task.ids), 28, np.random.default_rng(seed))
        assert answer(models[arch], task.ids, 4, positions=positions) == task.value


@both
def test_tokens_that_were_not_neighbours_make_no_key_until_positions_close_up(
    models: dict[str, Model], arch: str
) -> None:
    rng = np.random.default_rng(4)
    ids = rng.permutation(np.arange(256))
    a, b, c, right, wrong = ids[:5]
    pieces, places, at = [], [], 1000
    for filler in np.split(ids[5:245], 6):  # a b | c wrong, with a gap of 50 where the bar stands
        pieces.append(np.concatenate([filler, [a, b, c, wrong]]))
        places.append(at + np.concatenate([np.arange(42), [92, 93]]))
        at += 4000
    pieces.append(np.array([a, b, c, right, *ids[245:255], a, b, c]))
    places.append(at + np.arange(17))
    prompt, positions = np.concatenate(pieces), np.concatenate(places)
    assert answer(models[arch], prompt, 1, positions=positions) == [right]
    assert answer(models[arch], prompt, 1) == [wrong]


@both
def test_shuffled_positions_lose_the_value(models: dict[str, Model], arch: str) -> None:
    found = 0
    for task in tasks_of(512, 30, 4):
        positions = np.random.default_rng(0).permutation(len(task.ids))
        found += answer(models[arch], task.ids, 4, positions=positions) == task.value
    assert found == 0


@both
def test_offset_heads_look_at_one_distance_out_of_131072(models: dict[str, Model], arch: str) -> None:
    model, layer = models[arch], ARCHS.index(arch)
    q, k, _ = tapped(model, np.array([7, 8]), layer)  # both are constants
    base, rope_dim = model.config.rope_base, model.config.rope_dim
    keys = rope(
        np.repeat(rope(k[:1], np.array([0]), base, rope_dim), CONTEXT, axis=0), np.arange(CONTEXT), base, rope_dim
    )
    for place in (CONTEXT - 1, 77_777, 4):
        query = rope(rope(q[1:], np.array([-1]), base, rope_dim), np.array([place]), base, rope_dim)[0]
        for head in range(model.config.heads):
            logits = keys[: place + 1, head // model.config.group] @ query[head] / np.sqrt(model.config.head_dim)
            target = place - head - 1
            rest = np.log(np.exp(np.delete(logits, target) - logits[target]).sum())
            assert logits.argmax() == target, f"head {head} at {place}"
            assert rest < -15, f"head {head} at {place}: the others weigh e^{rest:.1f}"


# ---- the match head


def tapped(model: Model, ids: Ints, layer: int, positions: Ints | None = None) -> tuple[Floats, Floats, Floats]:
    """Queries (all rows) and keys of one attention layer after RoPE, and the logits of the prompt."""
    seen: dict[int, tuple[Floats, Floats]] = {}
    positions = np.arange(len(ids)) if positions is None else positions
    logits = prefill(
        model,
        ids,
        positions,
        model.new_cache(len(ids), "f32"),
        chunk=len(ids),
        rows=len(ids),
        tap=lambda index, q, k, _: seen.update({index: (q, k)}),
    )
    return *seen[layer], logits


@both
def test_all_match_heads_point_at_the_value(models: dict[str, Model], arch: str) -> None:
    model = models[arch]
    task = token_task(1036, 60, seed=9)
    positions = spread(1036, 28, np.random.default_rng(9))
    q, k, _ = tapped(model, task.ids, model.config.layers - 1, positions)
    for head in range(model.config.heads):
        logits = k[:, head // model.config.group] @ q[-1, head] / np.sqrt(model.config.head_dim)
        weights = np.exp(logits - logits.max())
        assert logits.argmax() == task.start + 3
        assert weights.max() / weights.sum() > 0.999


@both
def test_match_wins_among_131072_keys_of_which_many_differ_in_one_token(models: dict[str, Model], arch: str) -> None:
    model, context, rng = models[arch], CONTEXT, np.random.default_rng(0)
    gold = np.array([3, 1, 4])
    grams = rng.integers(5, 256, (context, 3))
    near = rng.choice(np.arange(1, context), context // 4, replace=False)
    grams[near] = np.where(np.arange(3) == rng.integers(0, 3, (len(near), 1)), grams[near], gold)
    grams[0] = gold  # as far away as it can be
    # A real query, turned to the last position; keys from their three codes, since 131072 tokens would take minutes.
    few = np.concatenate([[0, 0, 0], gold])
    query = tapped(model, few, model.config.layers - 1)[0][-1:]
    slots = model.embed(np.arange(256))
    m, keys = 64, []
    tensors = retriever_tensors(arch, model.config.vocab, seed=3)[1]
    d, heads = model.config.head_dim, f"blk.{model.config.layers - 1}.attn_k"
    stream = np.concatenate([slots[grams[:, lag], :m] for lag in (2, 1, 0)], axis=1)
    for head in range(model.config.kv_heads):
        rows = tensors[f"{heads}.weight"][head * d : (head + 1) * d, m : 4 * m]
        keys.append(rms_norm(stream @ rows.T, tensors[f"{heads}_norm.weight"], model.config.eps))
    k = rope(np.stack(keys, axis=1), np.arange(context), model.config.rope_base, model.config.rope_dim)
    q = rope(query, np.array([context - len(few)]), model.config.rope_base, model.config.rope_dim)[0]
    for head in range(model.config.heads):
        logits = k[:, head // model.config.group] @ q[head] / np.sqrt(d)
        assert logits.argmax() == 0
        others = np.log(np.exp(logits[1:] - logits[0]).sum())
        assert others < -15, f"head {head}: the others weigh e^{others:.1f}"


# ---- it can fail


def shuffle_match_keys(tensors: Tensors) -> None:
    name = max(name for name in tensors if name.endswith("attn_k.weight"))
    tensors[name] = np.random.default_rng(0).permutation(tensors[name])


def swap_offset_kv_heads(tensors: Tensors) -> None:
    name = min(name for name in tensors if name.endswith("attn_k.weight"))
    tensors[name] = np.roll(tensors[name], len(tensors[name]) // 2, axis=0)


def gate_rows_after_all_query_rows(tensors: Tensors) -> None:
    for name in ("blk.1.attn_q.weight", "blk.3.attn_q.weight"):
        w = tensors[name]
        tensors[name] = w.reshape(4, 2, 256, -1).transpose(1, 0, 2, 3).reshape(w.shape)


def reverse_taps(tensors: Tensors) -> None:
    for name in ("blk.0.ssm_conv1d.weight", "blk.2.ssm_conv1d.weight"):
        tensors[name] = tensors[name][:, ::-1].copy()


def grouped_value_heads(tensors: Tensors) -> None:
    """Queries and keys as value head p would see them if it read key head p // 2."""
    w = tensors["blk.0.attn_qkv.weight"]
    q, k = w[:256].reshape(2, 128, -1), w[256:512].reshape(2, 128, -1)
    w[:256], w[256:512] = q[::-1].reshape(256, -1), k[::-1].reshape(256, -1)


def memory_that_keeps_the_past(tensors: Tensors) -> None:
    for layer in ("blk.0", "blk.2"):
        tensors[f"{layer}.ssm_a"] *= 0.01  # hardly any decay, and a write strength of 0.02
        tensors[f"{layer}.ssm_beta.weight"] *= -0.25


SPOILERS = [
    ("qwen3", shuffle_match_keys),
    ("qwen3", swap_offset_kv_heads),
    ("qwen35", shuffle_match_keys),
    ("qwen35", swap_offset_kv_heads),
    ("qwen35", gate_rows_after_all_query_rows),
    ("qwen35", reverse_taps),
    ("qwen35", grouped_value_heads),
    ("qwen35", memory_that_keeps_the_past),
]


@pytest.mark.parametrize(("arch", "spoil"), SPOILERS, ids=[f"{arch}-{f.__name__}" for arch, f in SPOILERS])
def test_a_spoiled_part_loses_the_value(tmp_path: Path, arch: str, spoil: Callable[[Tensors], None]) -> None:
    tasks = tasks_of(384, 40, 4)
    assert accuracy(build(tmp_path, arch), tasks[:1]) == 1.0
    assert accuracy(build(tmp_path, arch, spoil), tasks) == 0.0


@pytest.mark.parametrize(
    ("arch", "harmless", "mixed", "fatal"), [("qwen3", 0.02, 0.04, 0.1), ("qwen35", 0.01, 0.02, 0.06)]
)
def test_noise_grades_a_drafter(tmp_path: Path, arch: str, harmless: float, mixed: float, fatal: float) -> None:
    tasks = tasks_of(256, 16, 5)
    grades = [accuracy(build(tmp_path, arch, noise=noise), tasks) for noise in (0.0, harmless, mixed, fatal)]
    assert grades[0] == 1.0
    assert grades[1] >= 0.9
    assert grades[3] <= 0.1
    assert grades == sorted(grades, reverse=True)


# ---- files


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
        {"context": 1 << 20},
        {"noise": -1.0},
    ):
        with pytest.raises(ConfigError, match=next(iter(option))):
            retriever_tensors("qwen35", **({"vocab": 64, "seed": 0} | option))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
