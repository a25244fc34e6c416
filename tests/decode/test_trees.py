"""Trees of guesses: the likeliest paths, and how far the target follows them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import log_softmax

from sp.decode.dflash import DDTree, DFlash, best_first, follow
from sp.decode.speculate import Tree
from sp.errors import ConfigError
from sp.ops.sampling.sample import top_logprobs

NOBODY = np.random.default_rng(0)


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    """The tokens that lead to each node but the first."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], int(token)))
    return found[1:]


def likeliest(log_probs: np.ndarray, budget: int, top_k: int, chain: bool) -> set[tuple[int, ...]]:
    """The tree by brute force: every path there is, sorted by its probability, the chain first of all."""
    ranked = np.argsort(-log_probs, axis=1)[:, :top_k]
    every = [path for depth in range(1, len(log_probs) + 1) for path in product(*ranked[:depth].tolist())]
    first = [tuple(ranked[:depth, 0].tolist()) for depth in range(1, len(log_probs) + 1)][:budget] if chain else []
    rest = sorted(
        (path for path in every if path not in first),
        key=lambda path: -sum(log_probs[d, t] for d, t in enumerate(path)),
    )
    return {*first, *rest[: budget - len(first)]}


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("budget", [1, 3, 4, 11, 40, 63, 500])
@pytest.mark.parametrize("seed", range(4))
def test_the_tree_holds_the_likeliest_paths(seed, budget, chain) -> None:
    logits = np.random.default_rng(seed).standard_normal((4, 9)).astype(np.float32) * 2
    if budget < 64:
        tree = DDTree(budget, 3, chain).propose(77, logits, NOBODY)
    else:
        tree = best_first(77, *top_logprobs(logits, 3), budget, chain)
    assert tree.tokens[0] == 77
    assert tree.parents[0] == -1
    assert (tree.parents[1:] < np.arange(1, len(tree.tokens))).all()
    found = paths_of(tree)
    assert len(found) == len(set(found)) == min(budget, 3 + 9 + 27 + 81)
    assert set(found) == likeliest(log_softmax(logits, axis=1), budget, 3, chain)


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize(("block", "top_k", "nodes"), [(2, 8, 9), (2, 16, 17), (3, 3, 13), (9, 1, 9), (3, 8, 40)])
def test_short_blocks_cannot_fill_the_budget(block, top_k, nodes, chain) -> None:
    """Each depth multiplies the paths by its choices; only in the last case there are enough."""
    decoder = DDTree(39, top_k, chain)
    logits = np.random.default_rng(0).standard_normal((block - 1, 50)).astype(np.float32)
    tree = decoder.propose(0, logits, NOBODY)
    assert len(tree.tokens) == decoder.nodes(block) == nodes


def test_without_guesses_there_is_the_known_token_alone() -> None:
    tree = DDTree().propose(4, np.empty((0, 9), np.float32), NOBODY)
    assert (tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()) == ([4], [-1], [0])


def test_more_choices_than_tokens() -> None:
    tree = DDTree(10, 8).propose(0, np.zeros((1, 3), np.float32), NOBODY)
    assert sorted(tree.tokens[1:].tolist()) == [0, 1, 2]


def test_follow_goes_as_far_as_the_target_agrees() -> None:
    tree = Tree(np.array([9, 1, 2, 1, 3, 1]), np.array([-1, 0, 0, 1, 2, 4]))
    cases = [([5, 0, 0, 0, 0, 0], [0], 5), ([1, 1, 0, 8, 0, 0], [0, 1, 3], 8), ([2, 0, 3, 0, 1, 6], [0, 2, 4, 5], 6)]
    for choices, path, token in cases:
        found = follow(tree, np.array(choices))
        assert (found[0].tolist(), found[1]) == (path, token)


@pytest.mark.parametrize("options", [{"budget": 0}, {"top_k": 0}, {"budget": -3}])
def test_an_empty_tree_is_refused(options) -> None:
    with pytest.raises(ConfigError, match="both must be at least 1"):
        DDTree(**options)


@pytest.mark.parametrize(("options", "match"), [({"budget": 64}, "give 1 to 63"), ({"top_k": 17}, "1 to 16")])
def test_trees_that_no_pass_takes_are_refused(options, match) -> None:
    with pytest.raises(ConfigError, match=match):
        DDTree(**options)


@pytest.mark.parametrize("budget", [0, 64])
def test_chains_that_no_pass_takes_are_refused(budget) -> None:
    with pytest.raises(ConfigError, match="give 1 to 63"):
        DFlash(budget=budget)


def test_a_chain_is_cut_to_its_budget() -> None:
    logits = np.eye(5, 7, dtype=np.float32)
    for budget, guesses in ((None, [0, 1, 2, 3, 4]), (2, [0, 1]), (9, [0, 1, 2, 3, 4])):
        decoder = DFlash(budget=budget)
        tree = decoder.propose(6, logits, NOBODY)
        assert (tree.tokens.tolist(), len(tree.tokens)) == ([6, *guesses], decoder.nodes(6))
