"""A trained cross-attention from the question to units: the head, and the scorer with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Hooks, Model, stream_by_layer
from sp.ops.array_module import array_module, on_host
from sp.prompt.spans import chunk_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS
from sp.scoring.base import Importance, ScoreRequest, densities, register_scorer
from sp.scoring.trained.attention_features import Asking, Pool, unit_of_token
from sp.scoring.trained.base import Progress, TrainedScorer, softmax, unit_shares

EPSILON = 1e-9
BETAS = (0.9, 0.98)

Params = Mapping[str, Any]


class Seen(NamedTuple):
    """One prompt. `asking` (m, d): of unit mean square, as are `document`'s; `document` (n, d); `pool`: which tokens
    each unit has; `unit` int (n,): the unit of each token; `shares` (units,): target shares, which sum to one.
    """

    asking: Any
    document: Any
    pool: Pool
    unit: Any
    shares: Any


def unit_rows(x: Any) -> Any:
    """Rows scaled to a mean square of one."""
    xp = array_module(x)
    return x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(1e-12))


def start_params(width: int, rank: int, seed: int) -> dict[str, Any]:
    """Where the fit begins: `query` and `key` one random projection, so that what is alike attends to its like."""
    drawn = np.random.default_rng(seed).standard_normal((width, rank)) / np.sqrt(width)
    return {"query": drawn.astype(np.float32), "key": drawn.astype(np.float32), "gate": np.zeros(width, np.float32)}


def attended(params: Params, asking: Any, document: Any) -> tuple[Any, Any, Any, Any]:
    """Projected queries (m, r) over sqrt(r), keys (n, r), weights P (m, n) and gates a (m,)."""
    q = asking @ params["query"] / np.sqrt(params["query"].shape[1]).astype(asking.dtype)
    k = document @ params["key"]
    return q, k, softmax(q @ k.T), softmax(asking @ params["gate"])


def loss_and_gradient(params: Params, seen: Seen) -> tuple[float, dict[str, Any]]:
    """The loss of one prompt, and its gradient by every parameter.

    Hidden states of the tokens that ask, ``Q`` (m, d), look at those of the document, ``X`` (n, d), each of mean square
    1:

        ``P = softmax_j( (Q A)(X B)^T / sqrt(r) )``, ``a = softmax(Q g)``, ``p_u = sum of (a P)_j over tokens j of u``,
        loss ``- sum_u t_u log(p_u + EPSILON)``

    with `query` A and `key` B of shape (d, r), and `gate` g (d,), which says how much each asking token counts.
    """
    xp = array_module(seen.document)
    q, k, weights, gates = attended(params, seen.asking, seen.document)
    mass = seen.pool.sums((gates @ weights)[None])[0]
    loss = -float(seen.shares @ xp.log(mass + EPSILON))
    by_token = (-seen.shares / (mass + EPSILON))[seen.unit].astype(weights.dtype)
    by_query = weights @ by_token
    by_logit = gates[:, None] * weights * (by_token - by_query[:, None])
    scale = np.sqrt(params["query"].shape[1]).astype(weights.dtype)
    return loss, {
        "query": seen.asking.T @ (by_logit @ k) / scale,
        "key": seen.document.T @ (by_logit.T @ q),
        "gate": seen.asking.T @ (gates * (by_query - gates @ by_query)),
    }


def fit_head(
    prompts: Sequence[Seen],
    params: Params,
    *,
    epochs: int,
    batch: int,
    rate: float,
    decay: float,
    seed: int,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Adam with decoupled decay (arXiv 1711.05101), the rate falling to zero along a cosine. `prompts`: float16 or
    float32, in NumPy or on the device, where the fit is done then; `epochs`, `batch`: rounds over all prompts, and
    prompts a step; `progress`: called with 1 after every round.
    """
    xp = array_module(prompts[0].document)
    now = {name: xp.asarray(value) for name, value in params.items()}
    first = {name: xp.zeros_like(value) for name, value in now.items()}
    second = {name: xp.zeros_like(value) for name, value in now.items()}
    rng, step = np.random.default_rng(seed), 0
    steps = epochs * -(-len(prompts) // batch)
    for _ in range(epochs):
        order = rng.permutation(len(prompts))
        for at in range(0, len(order), batch):
            chosen = [_as_float32(prompts[i]) for i in order[at : at + batch]]
            slopes = [loss_and_gradient(now, one)[1] for one in chosen]
            pace = rate * (1 + np.cos(np.pi * step / steps)) / 2
            step += 1
            for name in now:
                slope = sum(each[name] for each in slopes) / len(slopes)
                first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * slope
                second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * slope * slope
                ahead = first[name] / (1 - BETAS[0] ** step)
                size = xp.sqrt(second[name] / (1 - BETAS[1] ** step)) + 1e-8
                now[name] = (now[name] - pace * (ahead / size + decay * now[name])).astype(xp.float32)
        progress(1)
    return now


def _as_float32(seen: Seen) -> Seen:
    return seen._replace(asking=seen.asking.astype("float32"), document=seen.document.astype("float32"))


MOST_RANK = 256


@dataclass(frozen=True)
class CrossLearning:
    """How the head learns. `epochs`, `batch`, `rate`, `decay`: see `fit_head`; `most_tokens`: of a longer document so
    many tokens are learnt from: all chunks with evidence, others drawn at random.
    """

    rank: int = 32  # width of its queries and keys
    depth: int | None = None  # layers of the drafter behind which hidden states are taken; all by default
    chunk_size: int = 32  # tokens whose weights are summed, in the loss and in the scores
    queries: int = 8  # last tokens that ask, besides the question's
    epochs: int = 20
    batch: int = 8
    rate: float = 3e-3
    decay: float = 1e-2
    most_tokens: int = 8192

    def __post_init__(self) -> None:
        check_fields(self, "options")
        limits = {
            "rank": MOST_RANK, "chunk_size": 4096, "queries": MOST_QUESTION_TOKENS, "epochs": 10_000,
            "batch": 4096, "most_tokens": 1 << 20,
        }  # fmt: skip
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")
        for name in ("rate", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, not {getattr(self, name):g}")


@register_scorer("cross_attention")
@dataclass(frozen=True)
class CrossAttentionScorer(TrainedScorer):
    """Weight that one trained head of low rank gives a chunk, from the question's hidden states to the prompt's.

    Notes
    -----
    LongAttnComp (arXiv 2606.01336) trains one cross-attention layer; here it is a single head, see `loss_and_gradient`.
    """

    learning: ClassVar[type[Any]] = CrossLearning

    def hidden(self, request: ScoreRequest, options: Any) -> tuple[Any, Any, Asking, tuple[float, ...]]:
        """Hidden states of the asking tokens (m, d) and of the document (n, d), who asks, and densities."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        x = stream_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, depth=options.depth, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        asking = Asking.of(request, options.queries)
        rows = unit_rows(x[n - asking.rows :])
        chosen = sorted({*range(*asking.question.indices(asking.rows)), *range(*asking.tail.indices(asking.rows))})
        return rows[array_module(rows).asarray(chosen)], x[: max(asking.start, 1)], asking, densities(attend)

    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> Seen | None:
        """See `TrainedScorer`; hidden states stay where the model is, in float16."""
        asking_rows, document, _, _ = self.hidden(request, options)
        n, xp = len(document), array_module(document)
        bounds = chunk_bounds(n, options.chunk_size)
        shares = unit_shares(labels[:n], bounds, Asking(n, 1, slice(0, 1), slice(0, 1)))
        if shares is None:
            return None
        kept = shares > 0
        free = max(options.most_tokens // options.chunk_size - int(kept.sum()), 1)
        others = np.flatnonzero(~kept)
        kept[np.random.default_rng(request.seed).permutation(others)[:free]] = True
        unit = unit_of_token(bounds)
        index = np.flatnonzero(kept[unit])
        number = (np.cumsum(kept) - 1)[unit[index]]
        rows = unit_rows(document[xp.asarray(index)])
        ends = np.append(0, np.cumsum(np.diff(bounds)[kept]))
        half = asking_rows.astype("float16"), rows.astype("float16")
        return Seen(*half, Pool.of(ends, document), xp.asarray(number), xp.asarray(shares[kept]))

    def fit(self, samples: Sequence[Seen], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        begin = start_params(samples[0].document.shape[1], options.rank, seed)
        how = {name: getattr(options, name) for name in ("epochs", "batch", "rate", "decay")}
        found = fit_head(samples, begin, **how, seed=seed, progress=progress)
        return {name: on_host(value) for name, value in found.items()}

    def rounds(self, options: Any) -> int:
        """One an epoch."""
        return int(options.epochs)

    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """Two projections and a gate."""
        width = model.config.hidden
        return {"gate": (width,), "key": (width, options.rank), "query": (width, options.rank)}

    def weigh(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        asking_rows, document, _, density = self.hidden(request, options)
        xp = array_module(document)
        placed = {name: xp.asarray(value) for name, value in weights.items()}
        _, _, probabilities, gates = attended(placed, asking_rows, unit_rows(document))
        bounds = chunk_bounds(len(document), options.chunk_size)
        mass = Pool.of(bounds, document).sums((gates @ probabilities)[None])[0]
        scores = np.zeros(len(request.ids), np.float32)
        scores[: len(document)] = on_host(mass)[unit_of_token(bounds)]
        return Importance(scores, densities=density)
