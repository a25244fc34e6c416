"""A trained cross-attention from the question to units: the head, and the scorer with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Hooks, Model, stream_layer_major
from sp.ops.array_module import array_module, on_host
from sp.prompt.spans import chunk_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS
from sp.scoring.base import Importance, ScoreRequest, densities, register_scorer
from sp.scoring.trained.attention_features import Asking, UnitPool, unit_of_token
from sp.scoring.trained.base import Progress, TrainedScorer, softmax, unit_shares

EPSILON = 1e-9
BETAS = (0.9, 0.98)

Params = Mapping[str, Any]


class PromptStates(NamedTuple):
    """Hidden states of one prompt, with rows of mean square one, and its labels.

    Attributes
    ----------
    asking : float (m, d)
        Rows of the query tokens.
    document : float (n, d)
        Rows of the document.
    pool : UnitPool
        Tokens of each unit.
    unit : int (n,)
        Unit of each token.
    shares : float64 (units,)
        Target shares, which sum to one.
    """

    asking: Any
    document: Any
    pool: UnitPool
    unit: Any
    shares: Any


def unit_rows(x: Any) -> Any:
    """Return rows scaled to a mean square of one."""
    xp = array_module(x)
    return x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(1e-12))


def start_params(width: int, rank: int, seed: int) -> dict[str, Any]:
    """Return the initial parameters: one random projection as `query` and `key`, so that similar states attend."""
    drawn = np.random.default_rng(seed).standard_normal((width, rank)) / np.sqrt(width)
    return {"query": drawn.astype(np.float32), "key": drawn.astype(np.float32), "gate": np.zeros(width, np.float32)}


def attended(params: Params, asking: Any, document: Any) -> tuple[Any, Any, Any, Any]:
    """Return projected queries (m, r) over sqrt(r), keys (n, r), weights P (m, n) and gates a (m,)."""
    q = asking @ params["query"] / np.sqrt(params["query"].shape[1]).astype(asking.dtype)
    k = document @ params["key"]
    return q, k, softmax(q @ k.T), softmax(asking @ params["gate"])


def loss_and_gradient(params: Params, seen: PromptStates) -> tuple[float, dict[str, Any]]:
    """Return the loss of one prompt, and its gradient by every parameter.

    Hidden states of the query tokens, ``Q`` (m, d), attend to those of the document, ``X`` (n, d), each of mean square
    1:

        ``P = softmax_j( (Q A)(X B)^T / sqrt(r) )``, ``a = softmax(Q g)``, ``p_u = sum of (a P)_j over tokens j of u``,
        loss ``- sum_u t_u log(p_u + EPSILON)``

    with `query` A and `key` B of shape (d, r), and `gate` g (d,), which gives the weight of each query token.
    """
    xp = array_module(seen.document)
    q, k, weights, gates = attended(params, seen.asking, seen.document)
    mass = seen.pool.sums((gates @ weights)[None])[0]
    loss = -float(seen.shares @ xp.log(mass + EPSILON))
    by_token = (-seen.shares / (mass + EPSILON))[seen.unit].astype(weights.dtype)  # d loss / d (a P), (n,)
    by_query = weights @ by_token  # d loss / d a, (m,)
    by_logit = gates[:, None] * weights * (by_token - by_query[:, None])  # through the softmax over tokens, (m, n)
    scale = np.sqrt(params["query"].shape[1]).astype(weights.dtype)
    return loss, {
        "query": seen.asking.T @ (by_logit @ k) / scale,
        "key": seen.document.T @ (by_logit.T @ q),
        "gate": seen.asking.T @ (gates * (by_query - gates @ by_query)),
    }


def fit_head(
    prompts: Sequence[PromptStates],
    params: Params,
    *,
    epochs: int,
    batch: int,
    rate: float,
    decay: float,
    seed: int,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Train the head by Adam with decoupled decay (arXiv 1711.05101), with a cosine schedule of the rate to zero.

    `prompts` are float16 or float32, in NumPy or on the device, where the training then runs; `epochs` are passes over
    all prompts, `batch` prompts per step; `progress` is called with 1 after every epoch.
    """
    xp = array_module(prompts[0].document)
    now = {name: xp.asarray(value) for name, value in params.items()}
    first = {name: xp.zeros_like(value) for name, value in now.items()}
    second = {name: xp.zeros_like(value) for name, value in now.items()}
    rng, step = np.random.default_rng(seed), 0
    steps = epochs * -(-len(prompts) // batch)
    for _ in range(epochs):
        order = rng.permutation(len(prompts))
        for first_prompt in range(0, len(order), batch):
            batch_prompts = [_as_float32(prompts[i]) for i in order[first_prompt : first_prompt + batch]]
            slopes = [loss_and_gradient(now, prompt)[1] for prompt in batch_prompts]
            pace = rate * (1 + np.cos(np.pi * step / steps)) / 2
            step += 1
            for name in now:
                slope = sum(slope_of_prompt[name] for slope_of_prompt in slopes) / len(slopes)
                first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * slope
                second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * slope * slope
                ahead = first[name] / (1 - BETAS[0] ** step)
                size = xp.sqrt(second[name] / (1 - BETAS[1] ** step)) + 1e-8
                now[name] = (now[name] - pace * (ahead / size + decay * now[name])).astype(xp.float32)
        progress(1)
    return now


def _as_float32(seen: PromptStates) -> PromptStates:
    return seen._replace(asking=seen.asking.astype("float32"), document=seen.document.astype("float32"))


MOST_RANK = 256


@dataclass(frozen=True)
class CrossLearning:
    """Training options of the head.

    `epochs`, `batch`, `rate` and `decay` are those of `fit_head`. Of a document of more than `most_tokens` tokens, all
    chunks with evidence are used, and others drawn at random up to that number.
    """

    rank: int = 32  # width of its queries and keys
    depth: int | None = None  # layers of the drafter before the hidden states; all by default
    chunk_size: int = 32  # tokens whose weights are summed, in the loss and in the scores
    queries: int = 8  # last tokens that are queries, besides the question's
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
    """Weight of a chunk in one trained attention head of low rank, from the question's hidden states to the prompt's.

    Notes
    -----
    LongAttnComp (arXiv 2606.01336) trains one cross-attention layer; this is a single head, see `loss_and_gradient`.
    """

    learning: ClassVar[type[Any]] = CrossLearning

    def hidden(self, request: ScoreRequest, options: Any) -> tuple[Any, Any, Asking, tuple[float, ...]]:
        """Return hidden states of query tokens (m, d) and of the document (n, d), the query tokens, and densities."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        x = stream_layer_major(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, depth=options.depth, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        asking = Asking.of(request, options.queries)
        rows = unit_rows(x[n - asking.rows :])
        chosen = sorted({*range(*asking.question.indices(asking.rows)), *range(*asking.tail.indices(asking.rows))})
        return rows[array_module(rows).asarray(chosen)], x[: max(asking.start, 1)], asking, densities(attend)

    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> PromptStates | None:
        """Return hidden states and target shares of a prompt, on the model's device, in float16."""
        asking_rows, document, _, _ = self.hidden(request, options)
        n, xp = len(document), array_module(document)
        bounds = chunk_bounds(n, options.chunk_size)
        shares = unit_shares(labels[:n], bounds, Asking(n, 1, slice(0, 1), slice(0, 1)))
        if shares is None:
            return None
        selected = shares > 0
        free = max(options.most_tokens // options.chunk_size - int(selected.sum()), 1)
        others = np.flatnonzero(~selected)
        selected[np.random.default_rng(request.seed).permutation(others)[:free]] = True
        unit = unit_of_token(bounds)
        index = np.flatnonzero(selected[unit])
        number = (np.cumsum(selected) - 1)[unit[index]]
        rows = unit_rows(document[xp.asarray(index)])
        ends = np.append(0, np.cumsum(np.diff(bounds)[selected]))
        half = asking_rows.astype("float16"), rows.astype("float16")
        return PromptStates(*half, UnitPool.of(ends, document), xp.asarray(number), xp.asarray(shares[selected]))

    def fit(self, samples: Sequence[PromptStates], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        """Train the head with `fit_head`."""
        start = start_params(samples[0].document.shape[1], options.rank, seed)
        settings = {name: getattr(options, name) for name in ("epochs", "batch", "rate", "decay")}
        params = fit_head(samples, start, **settings, seed=seed, progress=progress)
        return {name: on_host(value) for name, value in params.items()}

    def rounds(self, options: Any) -> int:
        """Return the number of epochs."""
        return int(options.epochs)

    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of two projections and a gate."""
        width = model.config.hidden
        return {"gate": (width,), "key": (width, options.rank), "query": (width, options.rank)}

    def score_with(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        """Return the attention weight of each token's chunk."""
        asking_rows, document, _, density = self.hidden(request, options)
        xp = array_module(document)
        placed = {name: xp.asarray(value) for name, value in weights.items()}
        _, _, probabilities, gates = attended(placed, asking_rows, unit_rows(document))
        bounds = chunk_bounds(len(document), options.chunk_size)
        mass = UnitPool.of(bounds, document).sums((gates @ probabilities)[None])[0]
        scores = np.zeros(len(request.ids), np.float32)
        scores[: len(document)] = on_host(mass)[unit_of_token(bounds)]
        return Importance(scores, densities=density)
