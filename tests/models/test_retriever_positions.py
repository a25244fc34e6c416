"""Retrievers at positions up to 131071: what their offset heads and their match heads look at."""

from __future__ import annotations

import numpy as np
from retriever_files import ARCHS, answer, token_task
from retriever_models import both, tasks_of

from sp.arrays import Floats, Ints
from sp.models import Hooks, Model, prefill
from sp.models.synthetic.retriever import retriever_tensors
from sp.ops import rms_norm, rope

CONTEXT = 131072


def spread(count: int, run: int, rng: np.random.Generator) -> Ints:
    """`count` positions in runs, spread over the whole context; behind the last there is room for 4 more."""
    starts = np.sort(rng.choice((CONTEXT - 2 * run) // run, count // run - 1, replace=False)) * run
    starts = np.append(starts, CONTEXT - 4 - run)
    return (starts[:, None] + np.arange(run)).reshape(-1)


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
        hooks=Hooks(lambda index, q, cache: seen.update({index: (q, cache.keys(index))})),
    )
    return *seen[layer], logits


@both
def test_kept_tokens_answer_at_positions_up_to_131071(retrievers: dict[str, Model], arch: str) -> None:
    for seed in range(3):
        task = token_task(1036, 60, seed)  # needles lie at multiples of 7, as the runs of 28 do
        positions = spread(len(task.ids), 28, np.random.default_rng(seed))
        assert answer(retrievers[arch], task.ids, 4, positions=positions) == task.value


@both
def test_tokens_that_were_not_neighbours_make_no_key_until_positions_close_up(
    retrievers: dict[str, Model], arch: str
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
    assert answer(retrievers[arch], prompt, 1, positions=positions) == [right]
    assert answer(retrievers[arch], prompt, 1) == [wrong]


@both
def test_shuffled_positions_lose_the_value(retrievers: dict[str, Model], arch: str) -> None:
    found = 0
    for task in tasks_of(512, 30, 4):
        positions = np.random.default_rng(0).permutation(len(task.ids))
        found += answer(retrievers[arch], task.ids, 4, positions=positions) == task.value
    assert found == 0


@both
def test_offset_heads_look_at_one_distance_out_of_131072(retrievers: dict[str, Model], arch: str) -> None:
    model, layer = retrievers[arch], ARCHS.index(arch)
    q, k, _ = tapped(model, np.array([7, 8]), layer)  # both are constants
    by = model.config.rope
    keys = rope(np.repeat(rope(k[:1], np.array([0]), by), CONTEXT, axis=0), np.arange(CONTEXT), by)
    for place in (CONTEXT - 1, 77_777, 4):
        query = rope(rope(q[1:], np.array([-1]), by), np.array([place]), by)[0]
        for head in range(model.config.heads):
            logits = keys[: place + 1, head // model.config.group] @ query[head] / np.sqrt(model.config.head_dim)
            target = place - head - 1
            rest = np.log(np.exp(np.delete(logits, target) - logits[target]).sum())
            assert logits.argmax() == target, f"head {head} at {place}"
            assert rest < -15, f"head {head} at {place}: the others weigh e^{rest:.1f}"


@both
def test_all_match_heads_point_at_the_value(retrievers: dict[str, Model], arch: str) -> None:
    model = retrievers[arch]
    task = token_task(1036, 60, seed=9)
    positions = spread(1036, 28, np.random.default_rng(9))
    q, k, _ = tapped(model, task.ids, model.config.layers - 1, positions)
    for head in range(model.config.heads):
        logits = k[:, head // model.config.group] @ q[-1, head] / np.sqrt(model.config.head_dim)
        weights = np.exp(logits - logits.max())
        assert logits.argmax() == task.start + 3
        assert weights.max() / weights.sum() > 0.999


@both
def test_match_wins_among_131072_keys_of_which_many_differ_in_one_token(
    retrievers: dict[str, Model], arch: str
) -> None:
    model, context, rng = retrievers[arch], CONTEXT, np.random.default_rng(0)
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
    k = rope(np.stack(keys, axis=1), np.arange(context), model.config.rope)
    q = rope(query, np.array([context - len(few)]), model.config.rope)[0]
    for head in range(model.config.heads):
        logits = k[:, head // model.config.group] @ q[head] / np.sqrt(d)
        assert logits.argmax() == 0
        others = np.log(np.exp(logits[1:] - logits[0]).sum())
        assert others < -15, f"head {head}: the others weigh e^{others:.1f}"
