"""Late interaction in the space of a trained head: the head, the space, and the scorer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, ModelError, plain
from sp.models import Cache, Hooks, Model, ModelConfig
from sp.models.file.safetensors_file import SafetensorsFile
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.attention_heads import unrotate
from sp.ops.attention.importance import chunk_means
from sp.ops.attention.kv_pages import PagedKV
from sp.prompt.spans import chunk_bounds, sentence_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, Fold, Reduction, read_on, unrotated_keys
from sp.scoring.attention.heads import LAST_QUERIES
from sp.scoring.base import HEATMAP_CHUNK, Importance, ReadingScorer, ScoreRequest, densities, register_scorer
from sp.scoring.trained.attention_features import Pool
from sp.trace import write_atomic
from sp.values import shown

SCHEMA = "sp-scoring-head/1"
MOST_BYTES = 16 << 20  # of a file: that of a drafter of 8B would have some 6 million
SHIPPED = Path(str(files("sp") / "assets" / "scoring_heads"))  # folder of those that come with sp
NAME = re.compile(r"(query|key|gate)\.(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, eq=False)
class ScoringHead:
    """Weights of `sp.scoring.trained.late_interaction`, by attention layer. `query` dict of int to float32 (heads x
    head_dim, rank).
    """

    drafter: str  # sha256 of the GGUF file that they were trained on
    query: Mapping[int, Floats]
    key: Mapping[int, Floats]  # rows of keys, and then of values
    gate: Mapping[int, Floats]  # of the layers that `query` has

    @property
    def rank(self) -> int:
        """Dimensions of the space."""
        return int(next(iter(self.key.values())).shape[1])

    @property
    def depth(self) -> int:
        """Layers to run."""
        return max((*self.query, *self.key)) + 1

    def check(self, config: ModelConfig, where: str) -> None:
        """ConfigError, which begins with `where`, unless layers and shapes are those of a model."""
        for name in ("query", "key", "gate"):
            for layer, array in getattr(self, name).items():
                sizes = config.heads_of(min(layer, config.layers - 1))
                wide, deep = sizes.heads * sizes.head_dim, 2 * sizes.kv_heads * sizes.head_dim
                shape = {"query": (wide, self.rank), "key": (deep, self.rank), "gate": (wide,)}[name]
                if layer not in config.attention_layers or array.shape != shape:
                    raise ConfigError(
                        f"{where}: of another drafter: {name} of layer {layer} has shape {array.shape}, and this "
                        f"{config.architecture} would need {shape} of layers {shown(config.attention_layers)}"
                    )

    def save(self, path: Path, made: Mapping[str, str]) -> None:
        """Write the file in one piece, all of it in float16; `made` says how it was trained, for people."""
        from safetensors.numpy import save

        parts = {"query": self.query, "key": self.key, "gate": self.gate}
        arrays = {f"{name}.{layer}": a.astype(np.float16) for name, part in parts.items() for layer, a in part.items()}
        write_atomic(path, save(arrays, {"schema": SCHEMA, "drafter": self.drafter, **made}))

    @classmethod
    def load(cls, path: Path) -> ScoringHead:
        """Read a file that `save` wrote. ConfigError if missing, too large, damaged, or of another version."""
        from safetensors import SafetensorError, safe_open

        try:
            if (size := path.stat().st_size) > MOST_BYTES:
                raise ConfigError(f"{path}: {size:,} bytes are too many for a scoring head; is it a model?")
            if not path.is_file():
                raise ConfigError(f"{path}: no file; name one of a scoring head with scorer.weights")
            with safe_open(path, framework="numpy") as opened:
                told = opened.metadata() or {}
            if told.get("schema") != SCHEMA:
                found = f"schema {shown(told['schema'])}" if "schema" in told else "no schema"
                raise ConfigError(
                    f"{path}: no scoring head ({found}, not {SCHEMA!r}); name another with scorer.weights"
                )
            stored = SafetensorsFile.open(path)
            parts: dict[str, dict[int, Floats]] = {"query": {}, "key": {}, "gate": {}}
            for name in sorted(stored.tensors):
                part = NAME.fullmatch(name)
                if part is None:
                    raise ConfigError(f"{path}: no scoring head: {plain(name, 40)} is none of its arrays")
                array = np.ascontiguousarray(stored.weight(name).dense(), np.float32)
                if not np.isfinite(array).all():
                    raise ConfigError(f"{path}: {plain(name, 40)} has weights that are no numbers; get it again")
                parts[part[1]][int(part[2])] = array
            head = cls(told["drafter"], parts["query"], parts["key"], parts["gate"])
            ranks = {a.shape[1] for part in (head.query, head.key) for a in part.values()}
            if not head.key or not head.query or set(head.query) != set(head.gate) or len(ranks) != 1 or 0 in ranks:
                raise ConfigError(f"{path}: no scoring head: its layers or ranks do not fit together; get it again")
            return head
        except OSError as error:
            reason = error.strerror or "cannot be read"
            raise ConfigError(f"{path}: {reason}; name a file with scorer.weights") from None
        except (SafetensorError, ModelError, LookupError, ValueError) as error:
            raise ConfigError(f"{path}: no scoring head ({type(error).__name__}); get it again") from None


@cache
def _loaded(path: Path, mtime: int) -> ScoringHead:
    return ScoringHead.load(path)


def opened(path: Path) -> ScoringHead:
    """`ScoringHead.load`, remembered as long as the file stays as it is."""
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):  # no such file, or a name that no file can have
        return ScoringHead.load(path)  # which says what is wrong


@cache
def shipped() -> dict[str, Path]:
    """Files that ship with sp, by the sha256 of their drafters."""
    return {opened(path).drafter: path for path in sorted(SHIPPED.glob("*.safetensors"))}


def head_for(config: ModelConfig, weights: str = "") -> ScoringHead:
    """The head in a file, or that which ships for a model's file, checked against its shape. `config`: whose
    `retrieval` says which file it is; `weights`: path of a file of a head. The drafter's own file may then be another
    of the same shape, such as the same model in another format; ConfigError: there is none, or it is of another
    drafter.
    """
    if weights:
        head, where = opened(Path(weights)), weights
    else:
        sha256 = config.retrieval.sha256 if config.retrieval else ""
        if sha256 not in shipped():
            raise ConfigError(
                "scorer late_interaction has no trained head for this drafter; take --scorer calibrated, or name a "
                "file of one: scorer.weights=FILE"
            )
        head, where = opened(shipped()[sha256]), shipped()[sha256].name
    head.check(config, where)
    return head


STEP, WINDOW = 8, 64  # tokens from the start of a window to that of the next, and of a window
SLICE = 1 << 16  # tokens that are compared at once, whole steps: a bound on memory


@dataclass
class Space:
    """Tokens of a prompt in the space of a head, gathered layer by layer; only the sums over layers are held. `tokens`,
    `rows`: of the prompt, and its last ones that ask.
    """

    model: Model
    head: ScoringHead
    tokens: int
    rows: int
    positions: Any  # where the model is
    document: Any = None
    asking: Any = None
    gates: Any = field(default=0.0)
    weights: dict[tuple[str, int], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Place all weights before anything is read: a copy between launches would make the host wait."""
        xp, head = array_module(self.positions), self.head
        for name, part in (("query", head.query), ("key", head.key), ("gate", head.gate)):
            self.weights |= {(name, layer): xp.asarray(array) for layer, array in part.items()}

    def add(self, layer: int, q: Floats, at: PagedKV) -> None:
        """Take a layer's queries (rows, heads, d) of the last tokens, rotated, and all its keys and values."""
        xp = array_module(q)
        if layer in self.head.query:
            flat = _flat(self.unrotated(q, layer))
            found = flat @ self.weights["query", layer]
            self.asking = found if self.asking is None else self.asking + found
            self.gates = self.gates + flat @ self.weights["gate", layer]
        if layer in self.head.key:
            if self.document is None:
                self.document = xp.zeros((self.tokens, self.head.rank), np.float32)
            keys, values = xp.split(self.weights["key", layer], 2)
            k, v = replace(at, tokens=self.tokens).model_rows()
            k = unrotate(k, self.positions, self.model.config.rope_of(layer))
            for first in range(0, self.tokens, SLICE):
                part = slice(first, first + SLICE)
                self.document[part] += _flat(k[part]) @ keys + _flat(v[part]) @ values

    def unrotated(self, q: Floats, layer: int) -> Floats:
        """A layer's queries (rows, heads, d) of the last tokens without rotary embedding, in an array of their own."""
        return unrotate(q.copy(), self.positions[-self.rows :], self.model.config.rope_of(layer))

    def of_units(self, bounds: Ints) -> Any:
        """What each unit of tokens has, float32 (units,) from -1 to 1, where the model is: on the device it is only
        queued. `bounds` array (units + 1,): ascending; no unit is longer than `SLICE`.
        """
        xp, found, first = array_module(self.document), [], 0
        while first < len(bounds) - 1:
            last = max(int(np.searchsorted(bounds, bounds[first] + SLICE, "right")) - 1, first + 1)
            alike = self._alike(int(bounds[first]), int(bounds[last]))
            pool = Pool.of(bounds[first : last + 1] - bounds[first], alike)
            found.append(self._weights @ pool.largest(alike.T))
            first = last
        return xp.concatenate(found)

    def of_windows(self, tokens: int) -> Any:
        """What the windows have, of the first so many tokens, as `of_units`; `of_tokens` takes it from there."""
        xp, found = array_module(self.document), []
        for first in range(0, tokens, SLICE):
            alike = self._alike(first, min(first + SLICE, tokens))
            steps = xp.full((-(-len(alike) // STEP) * STEP, self.rows), -1, np.float32)
            steps[: len(alike)] = alike
            found.append(steps.reshape(-1, STEP, self.rows).max(axis=1))
        edge = xp.full((WINDOW // STEP - 1, self.rows), -1, np.float32)
        best = xp.concatenate([edge, *found, edge])  # at an edge windows hold fewer tokens
        span = 1
        while span < WINDOW // STEP:
            best = xp.maximum(best[:-span], best[span:])
            span *= 2
        return best @ self._weights

    def _alike(self, first: int, last: int) -> Any:
        """Cosines of tokens with asking tokens, float32 (last - first, rows)."""
        return _unit_length(self.document[first:last]) @ _unit_length(self.asking).T

    @property
    def _weights(self) -> Any:
        """Of asking tokens, (rows,)."""
        xp = array_module(self.document)
        weights = xp.exp(self.gates - self.gates.max())
        return weights / weights.sum()


def of_tokens(windows: Floats, tokens: int) -> Floats:
    """What the best of the windows has that hold a token, of the first so many; float32 (tokens,)."""
    inside = np.lib.stride_tricks.sliding_window_view(windows, WINDOW // STEP)
    return np.repeat(inside.max(axis=1), STEP)[:tokens]


def _flat(rows: Any) -> Any:
    """Heads (n, heads, d) side by side as float32 (n, heads x d)."""
    return rows.reshape(len(rows), -1).astype(np.float32)


def _unit_length(rows: Any) -> Any:
    """Rows (n, rank) scaled to length one."""
    xp = array_module(rows)
    return rows / xp.sqrt((rows * rows).sum(axis=1, keepdims=True) + np.float32(1e-12))


LONGEST = 64  # tokens of a sentence, at most, that is compared as one
ATTENTION = 0.25  # how much attention counts, of three parts with the same spread; see ``experiments/scoring_head``
POOL = 13  # tokens over which attention is averaged
LOOKED_AT = Reduction("queries,heads,pool", "max", "max", POOL)
FINENESS = 16  # tokens of a chunk that scores can tell from the next
LEAD = 2  # tokens before the question, of the blank line, that ask with it, as the head learnt it


@register_scorer("late_interaction")
@dataclass(frozen=True)
class LateInteractionScorer(ReadingScorer):
    """Similarity of the question's tokens to a text's, in a space that was trained for one drafter, and its attention.

    A token is a row ``x``: what the drafter's layers have as its un-rotated keys and values; an asking token is a row
    ``q`` of their un-rotated queries. With `key` B, `query` A and `gate` g of a `ScoringHead`, a unit u of tokens has

        ``sum_i softmax_i(q_i g) max_(j in u) cos(q_i A, x_j B)``

    over asking tokens i: those of the question, of the blank line before it and of the markup behind it, and only the
    last 64 of them; where a prompt names no question, its last 32 tokens. A token is worth

        ``z(its sentence's) + z(the best of the windows of 64 tokens that hold it) + 0.25 z(a)``

    where z takes the mean from the tokens before the question and divides by their standard deviation, and a is the
    largest un-rotated attention of any asking token and head of the head's last layer, as a mean over 13 tokens. A
    sentence tells facts apart, a window finds what is said in several. Asking tokens are worth least. Layers behind
    the head's last are not run.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    weights : str
        File of a head; left empty, that which ships for the drafter's file.

    Notes
    -----
    The sum of maxima is that of ColBERT (arXiv 2004.12832); how the head was trained: ``experiments/scoring_head``.
    """

    retrieves: ClassVar[bool] = True
    keeps: ClassVar[bool] = True
    calibrate: ClassVar[str] = "never"  # a head is looked up by the file alone; no measurement would bring one

    weights: str = ""

    def head(self, config: ModelConfig) -> ScoringHead:
        """The head, checked against the model; ConfigError if there is none for it."""
        return head_for(config, self.weights)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Up to the head's last layer."""
        return self.head(config).depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter's first layers once over the prompt, and compare; ConfigError if there is no head for it."""
        model, n = request.model, len(request.ids)
        head, attend = self.head(model.config), self.attend(request)
        start = first_asking(request)
        rows, last = min(n - start, MOST_QUESTION_TOKENS), max(head.query)
        space, fold = Space(model, head, n, rows, model.place(request.positions)), Fold(LOOKED_AT)

        def show(layer: int, q: Floats, cache: Cache) -> None:
            at = cache.stored(layer)
            space.add(layer, q[-rows:], at)
            if layer == last and start:
                keys = unrotated_keys(at, space.positions[:start], model, layer)  # which lie where the model is
                fold.add_layer(space.unrotated(q[-rows:], layer), keys, causal=False)

        # Of several cards the first reads alone: what a head needs is loaded and allocated where its layers begin, when
        # cards already wait for each other (`FIRST_STEPS` of `sp.parallel.nccl_card`), and they might wait for ever.
        read_on(replace(request, cards=None), Hooks(show), attend=attend, rows=rows, depth=head.depth)
        scores = np.zeros(n, np.float32)
        if start:
            bounds = units_of(request, start)
            queued = space.of_units(bounds), space.of_windows(start)  # all of it before the host waits for any
            units, windows = (np.asarray(on_host(part), np.float32) for part in queued)
            parts = np.repeat(units, np.diff(bounds)), of_tokens(windows, start), fold.result()
            scores[:start] = joined(parts, (1, 1, ATTENTION))
        return Importance(
            scores, by_layer=chunk_means(scores[None], HEATMAP_CHUNK), densities=densities(attend), fineness=FINENESS
        )


def units_of(request: ScoreRequest, tokens: int) -> Ints:
    """Bounds (units + 1,) of sentences in the first so many tokens; of chunks where the text is not known."""
    if request.spans is None:
        return chunk_bounds(tokens, FINENESS)
    return sentence_bounds(request.text, request.spans[:tokens], LONGEST)


def joined(parts: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Weighted sum of parts (n,), each with mean 0 and standard deviation 1, from 0 for the least on; float32."""
    total = np.zeros(len(parts[0]))
    for part, weight in zip(parts, weights, strict=True):
        spread = float(part.std(dtype=np.float64))
        if spread > 0:
            total += weight * (part - part.mean(dtype=np.float64)) / spread
    found: Floats = np.asarray(total - total.min(), np.float32)
    return found


def first_asking(request: ScoreRequest) -> int:
    """The first token that asks: the question's, with the blank line before it; without one, of the last tokens.

    >>> none, ids = np.zeros(9, bool), np.arange(9)
    >>> [first_asking(ScoreRequest(None, ids, ids, question, none)) for question in (ids >= 6, none)]
    [4, 0]
    """
    if not request.question.any():
        return max(0, len(request.ids) - LAST_QUERIES)
    return max(0, int(request.question.argmax()) - LEAD)
