"""Late interaction in the space of a trained head: the head, the space, and the scorer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, ModelError, plain
from sp.kernels import import_cupy, kept
from sp.kernels.device import current_device
from sp.models import Cache, Hooks, Model, ModelConfig
from sp.models.cache.carry import copy_over
from sp.models.file.safetensors_file import SafetensorsFile
from sp.models.run.hooks import looked_at
from sp.ops.array_module import array_module
from sp.ops.attention.attention_heads import unrotate
from sp.ops.attention.importance import chunk_means
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.space import Units, padded_rank, space_rows, space_scores, space_worth
from sp.ops.rope import Rope
from sp.prompt.spans import chunk_bounds, sentence_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, Fold, Reduction, read_on, unrotated_keys
from sp.scoring.attention.heads import LAST_QUERIES
from sp.scoring.base import HEATMAP_CHUNK, Importance, ReadingScorer, ScoreRequest, densities, register_scorer
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


class Weights(NamedTuple):
    """Of a head, where the model is; on the device in `padded_rank` dimensions."""

    asking: Any  # float32 (sum of heads x head_dim, rank + 1): of all layers that ask; the last column is their gates'
    key: dict[int, Any]  # (2 x kv_heads x head_dim, rank): by layer, on the device float16, as files have them


def weights_of(head: ScoringHead, layers: tuple[int, ...], rank: int) -> Weights:
    """Weights in that many dimensions, those beyond the head's zero; of queries for `layers` in this order."""
    gates = np.concatenate([head.gate[layer] for layer in layers])
    asking = np.zeros((len(gates), rank + 1), np.float32)
    asking[:, : head.rank], asking[:, -1] = np.concatenate([head.query[layer] for layer in layers]), gates
    return Weights(asking, {layer: np.pad(a, ((0, 0), (0, rank - head.rank))) for layer, a in head.key.items()})


@kept.cache
def placed_weights(head: ScoringHead, layers: tuple[int, ...], device: int) -> Weights:
    """The same on a device. Heads stay once they are opened, and so may these."""
    made, place = weights_of(head, layers, padded_rank(head.rank)), import_cupy().asarray
    return Weights(place(made.asking), {layer: place(a.astype(np.float16)) for layer, a in made.key.items()})


class Side(NamedTuple):
    """Layers that ask with heads alike, turned alike, and their queries (layers, rows, heads, d) of the last tokens."""

    rotary: Rope
    layers: tuple[int, ...]
    queries: Any

    def turn_back(self, positions: Ints) -> None:
        """Take rotary embedding from all queries, in place; `positions` int64 (layers x rows or more,)."""
        count, rows, heads, d = self.queries.shape
        flat = self.queries.reshape(-1, heads, d)
        bare = unrotate(flat, positions[: count * rows], self.rotary)
        if bare is not flat:  # on the CPU
            flat[...] = bare

    def flat(self) -> Floats:
        """All layers' heads side by side, float32 (rows, layers x heads x d); on the device by one launch."""
        _, rows, heads, d = self.queries.shape
        by_row = self.queries.reshape(-1, rows, heads * d).transpose(1, 0, 2)
        found: Floats = by_row.astype(np.float32, order="C").reshape(rows, -1)
        return found


class Space:
    """Tokens of a prompt in the space of a head, gathered layer by layer; of keys and values only sums are held.

    `positions`: of all tokens; of these the last `rows` ask. What is copied to the device is copied at once, before
    anything is read: a copy between launches would make the host wait.
    """

    def __init__(self, model: Model, head: ScoringHead, positions: Ints, rows: int) -> None:
        self._config = model.config
        alike: dict[tuple[Rope, int, int], list[int]] = {}
        for layer in sorted(head.query):
            sizes = model.config.heads_of(layer)
            alike.setdefault((model.config.rope_of(layer), sizes.heads, sizes.head_dim), []).append(layer)
        most, on_device = max(map(len, alike.values())), model.device == "cuda"
        self.positions = model.place(positions)
        self._asking_at = model.place(np.tile(positions[len(positions) - rows :], most))
        xp, kind = (import_cupy(), np.float16) if on_device else (np, np.float32)
        self._sides = [
            Side(rotary, tuple(layers), xp.empty((len(layers), rows, heads, d), kind))
            for (rotary, heads, d), layers in alike.items()
        ]
        self._queries = {layer: q for side in self._sides for layer, q in zip(side.layers, side.queries, strict=True)}
        layers = tuple(self._queries)
        self._weights = (
            placed_weights(head, layers, current_device()) if on_device else weights_of(head, layers, head.rank)
        )
        self.document: Any = None

    def add(self, layer: int, q: Floats, at: PagedKV) -> None:
        """Take a layer's queries (rows, heads, d) of the last tokens, rotated, and all its keys and values."""
        if layer in self._queries:
            copy_over(q, self._queries[layer])
        if layer in self._weights.key:
            rotary, weights = self._config.rope_of(layer), self._weights.key[layer]
            self.document = space_rows(at, self.positions, rotary, weights, self.document)

    def turn_back(self) -> None:
        """Take rotary embedding from all queries, once they are all there."""
        for side in self._sides:
            side.turn_back(self._asking_at)

    def unrotated(self, layer: int) -> Floats:
        """A layer's queries (rows, heads, d) after `turn_back`."""
        found: Floats = self._queries[layer]
        return found

    def scores(self, bounds: Ints, looked: Floats) -> Floats:
        """Scores (tokens,) of the tokens of units with these bounds, float32, after all layers and `turn_back`; on the
        device they are only queued. `looked`: (tokens,), the most that any asking token looks at each.
        """
        xp, parts = array_module(self.document), [side.flat() for side in self._sides]
        flat = parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=1)
        units = Units.of(bounds, self.document)
        worth = space_worth(self.document, flat @ self._weights.asking, units)
        return space_scores(units, *worth, looked, POOL, (1, 1, ATTENTION))


LONGEST = 64  # tokens of a sentence, at most, that is compared as one
ATTENTION = 0.25  # how much attention counts, of three parts with the same spread; see ``experiments/scoring_head``
POOL = 13  # tokens over which attention is averaged
LOOKED_AT = Reduction("queries,heads,pool", "max", "max", pool=1)  # by any; averaged later
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
        space, fold = Space(model, head, request.positions, rows), Fold(LOOKED_AT)
        queued: list[Floats] = []

        def show(layer: int, q: Floats, cache: Cache) -> None:
            if layer not in head.query and layer not in head.key:
                return
            at = replace(cache.stored(layer), tokens=n)
            space.add(layer, q[-rows:], at)
            if layer == last and start:
                space.turn_back()
                keys = unrotated_keys(at, space.positions[:start], model, layer)  # which lie where the model is
                fold.add_layer(space.unrotated(layer), keys, causal=False)
            if layer == head.depth - 1 and start:  # sentences are found, and all is queued, while the device reads
                queued.append(space.scores(units_of(request, start), fold.running[0]))

        # Of several cards the first reads alone: what a head needs is loaded and allocated where its layers begin, when
        # cards already wait for each other (`FIRST_STEPS` of `sp.parallel.nccl_card`), and they might wait for ever.
        read_on(replace(request, cards=None), Hooks(show), attend=attend, rows=rows, depth=head.depth)
        scores = np.zeros(n, np.float32)
        if start:
            [found] = looked_at(queued)
            scores[:start] = found - found.min()
        return Importance(
            scores, by_layer=chunk_means(scores[None], HEATMAP_CHUNK), densities=densities(attend), fineness=FINENESS
        )


def units_of(request: ScoreRequest, tokens: int) -> Ints:
    """Bounds (units + 1,) of sentences in the first so many tokens; of chunks where the text is not known."""
    if request.spans is None:
        return chunk_bounds(tokens, FINENESS)
    return sentence_bounds(request.text, request.spans[:tokens], LONGEST)


def first_asking(request: ScoreRequest) -> int:
    """The first token that asks: the question's, with the blank line before it; without one, of the last tokens.

    >>> none, ids = np.zeros(9, bool), np.arange(9)
    >>> [first_asking(ScoreRequest(None, ids, ids, question, none)) for question in (ids >= 6, none)]
    [4, 0]
    """
    if not request.question.any():
        return max(0, len(request.ids) - LAST_QUERIES)
    return max(0, int(request.question.argmax()) - LEAD)
