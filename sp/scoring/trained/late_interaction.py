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
from sp.models.cache.transfer import copy_over
from sp.models.file.safetensors_file import SafetensorsFile
from sp.models.run.hooks import counts_on_host
from sp.ops.array_module import array_module
from sp.ops.attention.attention_heads import unrotate
from sp.ops.attention.importance import chunk_means
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.space import Units, padded_rank, space_rows, space_scores, space_worth
from sp.ops.rope import Rope
from sp.prompt.spans import chunk_bounds, sentence_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, Fold, Reduction, read_prompt, unrotated_keys
from sp.scoring.attention.heads import LAST_QUERIES
from sp.scoring.base import HEATMAP_CHUNK, Importance, ReadingScorer, ScoreRequest, densities, register_scorer
from sp.trace import write_atomic
from sp.values import preview

SCHEMA = "sp-scoring-head/1"
MOST_BYTES = 16 << 20  # largest file; a head for a drafter of 8B would have about 6 million bytes
SHIPPED = Path(str(files("sp") / "assets" / "scoring_heads"))  # folder of the heads that come with sp
NAME = re.compile(r"(query|key|gate)\.(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, eq=False)
class ScoringHead:
    """Weights of scorer `late_interaction`, by attention layer.

    Attributes
    ----------
    drafter : str
        sha256 of the GGUF file that they were trained on.
    query : mapping of int to float32 (heads x head_dim, rank)
        Projections of queries.
    key : mapping of int to float32 (2 x kv_heads x head_dim, rank)
        Projections of keys, and then of values.
    gate : mapping of int to float32 (heads x head_dim,)
        Gates of query tokens, for the layers of `query`.
    """

    drafter: str
    query: Mapping[int, Floats]
    key: Mapping[int, Floats]
    gate: Mapping[int, Floats]

    @property
    def rank(self) -> int:
        """Number of dimensions of the space."""
        return int(next(iter(self.key.values())).shape[1])

    @property
    def depth(self) -> int:
        """Number of layers to run."""
        return max((*self.query, *self.key)) + 1

    def check(self, config: ModelConfig, where: str) -> None:
        """Raise ConfigError, which begins with `where`, unless layers and shapes are those of a model."""
        for name in ("query", "key", "gate"):
            for layer, array in getattr(self, name).items():
                sizes = config.heads_of(min(layer, config.layers - 1))
                wide, deep = sizes.heads * sizes.head_dim, 2 * sizes.kv_heads * sizes.head_dim
                shape = {"query": (wide, self.rank), "key": (deep, self.rank), "gate": (wide,)}[name]
                if layer not in config.attention_layers or array.shape != shape:
                    raise ConfigError(
                        f"{where}: of another drafter: {name} of layer {layer} has shape {array.shape}, but this "
                        f"{config.architecture} needs {shape} for layers among {preview(config.attention_layers)}"
                    )

    def save(self, path: Path, provenance: Mapping[str, str]) -> None:
        """Write the file atomically, in float16; `provenance` says how the head was trained, for people."""
        from safetensors.numpy import save

        parts = {"query": self.query, "key": self.key, "gate": self.gate}
        arrays = {f"{name}.{layer}": a.astype(np.float16) for name, part in parts.items() for layer, a in part.items()}
        write_atomic(path, save(arrays, {"schema": SCHEMA, "drafter": self.drafter, **provenance}))

    @classmethod
    def load(cls, path: Path) -> ScoringHead:
        """Read a file that `save` wrote; ConfigError if missing, too large, damaged, or of another version."""
        from safetensors import SafetensorError, safe_open

        try:
            if (size := path.stat().st_size) > MOST_BYTES:
                raise ConfigError(f"{path}: {size:,} bytes are too many for a scoring head; pass a file of one")
            if not path.is_file():
                raise ConfigError(f"{path}: not a file; pass a file of a scoring head with scorer.weights")
            with safe_open(path, framework="numpy") as opened:
                header = opened.metadata() or {}
            if header.get("schema") != SCHEMA:
                problem = f"schema {preview(header['schema'])}" if "schema" in header else "no schema"
                raise ConfigError(
                    f"{path}: no scoring head ({problem}, not {SCHEMA!r}); name another with scorer.weights"
                )
            stored = SafetensorsFile.open(path)
            parts: dict[str, dict[int, Floats]] = {"query": {}, "key": {}, "gate": {}}
            for name in sorted(stored.tensors):
                part = NAME.fullmatch(name)
                if part is None:
                    raise ConfigError(f"{path}: no scoring head: it has an array named {plain(name, 40)}")
                array = np.ascontiguousarray(stored.weight(name).dense(), np.float32)
                if not np.isfinite(array).all():
                    raise ConfigError(f"{path}: {plain(name, 40)} has weights that are not finite; get the file again")
                parts[part[1]][int(part[2])] = array
            head = cls(header["drafter"], parts["query"], parts["key"], parts["gate"])
            ranks = {a.shape[1] for part in (head.query, head.key) for a in part.values()}
            if not head.key or not head.query or set(head.query) != set(head.gate) or len(ranks) != 1 or 0 in ranks:
                raise ConfigError(f"{path}: no scoring head: its layers or ranks are inconsistent; get the file again")
            return head
        except OSError as error:
            reason = error.strerror or "cannot be read"
            raise ConfigError(f"{path}: {reason}; name a file with scorer.weights") from None
        except (SafetensorError, ModelError, LookupError, ValueError) as error:
            raise ConfigError(f"{path}: no scoring head ({type(error).__name__}); get the file again") from None


@cache
def _loaded(path: Path, mtime: int) -> ScoringHead:
    return ScoringHead.load(path)


def load_head(path: Path) -> ScoringHead:
    """Load a head, cached as long as its file does not change."""
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):  # no such file, or a name that no file can have
        return ScoringHead.load(path)  # raises an error with the reason


@cache
def shipped() -> dict[str, Path]:
    """Return the files that ship with sp, by the sha256 of their drafters."""
    return {load_head(path).drafter: path for path in sorted(SHIPPED.glob("*.safetensors"))}


def head_for(config: ModelConfig, weights: str = "") -> ScoringHead:
    """Return the head in a file, or the head that ships for a drafter's file, checked against the drafter's shape.

    Parameters
    ----------
    config : ModelConfig
        Configuration of the drafter, whose `retrieval` has the sha256 of its file.
    weights : str
        Path of a head. The drafter may then be another file of the same shape, such as the same model in another
        format.

    Raises
    ------
    ConfigError
        There is no head, or it is of another drafter.
    """
    if weights:
        head, where = load_head(Path(weights)), weights
    else:
        sha256 = config.retrieval.sha256 if config.retrieval else ""
        if sha256 not in shipped():
            raise ConfigError(
                "scorer late_interaction has no trained head for this drafter; use --scorer calibrated, or pass the "
                "file of a head: scorer.weights=FILE"
            )
        head, where = load_head(shipped()[sha256]), shipped()[sha256].name
    head.check(config, where)
    return head


class HeadWeights(NamedTuple):
    """Weights of a head on the model's device; on a GPU in `padded_rank` dimensions."""

    asking: Any  # float32 (sum of heads x head_dim, rank + 1): queries of all layers; the last column is their gates
    key: dict[int, Any]  # (2 x kv_heads x head_dim, rank): by layer; on the device float16, as in files


def weights_of(head: ScoringHead, layers: tuple[int, ...], rank: int) -> HeadWeights:
    """Return the weights in `rank` dimensions, padded with zeros; those of queries for `layers` in this order."""
    gates = np.concatenate([head.gate[layer] for layer in layers])
    asking = np.zeros((len(gates), rank + 1), np.float32)
    asking[:, : head.rank], asking[:, -1] = np.concatenate([head.query[layer] for layer in layers]), gates
    return HeadWeights(asking, {layer: np.pad(a, ((0, 0), (0, rank - head.rank))) for layer, a in head.key.items()})


@kept.cache
def placed_weights(head: ScoringHead, layers: tuple[int, ...], device: int) -> HeadWeights:
    """Return the weights on a device, cached because loaded heads are cached too."""
    weights, place = weights_of(head, layers, padded_rank(head.rank)), import_cupy().asarray
    return HeadWeights(place(weights.asking), {layer: place(a.astype(np.float16)) for layer, a in weights.key.items()})


class Side(NamedTuple):
    """Layers of equal heads and rotary embedding, and their queries (layers, rows, heads, d) of the last tokens."""

    rotary: Rope
    layers: tuple[int, ...]
    queries: Any

    def turn_back(self, positions: Ints) -> None:
        """Remove the rotary embedding from all queries, in place; `positions` int64 (layers x rows or more,)."""
        count, rows, heads, d = self.queries.shape
        flat = self.queries.reshape(-1, heads, d)
        bare = unrotate(flat, positions[: count * rows], self.rotary)
        if bare is not flat:  # on the CPU `unrotate` returns a copy
            flat[...] = bare

    def flat(self) -> Floats:
        """Return the heads of all layers concatenated, float32 (rows, layers x heads x d); on the device one launch."""
        _, rows, heads, d = self.queries.shape
        by_row = self.queries.reshape(-1, rows, heads * d).transpose(1, 0, 2)
        flat: Floats = by_row.astype(np.float32, order="C").reshape(rows, -1)
        return flat


class HeadSpace:
    """Tokens of a prompt in the space of a head, summed layer by layer, so that no keys and values are stored.

    `positions` are those of all tokens, of which the last `rows` are queries. All arrays are copied to the device here,
    before the drafter runs, because a copy between launches would make the host wait.
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

    def add(self, layer: int, q: Floats, cache: PagedKV) -> None:
        """Add a layer: its queries (rows, heads, d) of the last tokens, with RoPE, and all its keys and values."""
        if layer in self._queries:
            copy_over(q, self._queries[layer])
        if layer in self._weights.key:
            rotary, weights = self._config.rope_of(layer), self._weights.key[layer]
            self.document = space_rows(cache, self.positions, rotary, weights, self.document)

    def turn_back(self) -> None:
        """Remove the rotary embedding from all queries, after the last layer was added."""
        for side in self._sides:
            side.turn_back(self._asking_at)

    def unrotated(self, layer: int) -> Floats:
        """Return a layer's queries (rows, heads, d) after `turn_back`."""
        queries: Floats = self._queries[layer]
        return queries

    def scores(self, bounds: Ints, attention: Floats) -> Floats:
        """Return the scores of tokens, float32 (tokens,), by units with these bounds, after `turn_back`.

        On the device they are only queued. `attention` (tokens,) is the largest weight of any query on each token.
        """
        xp, parts = array_module(self.document), [side.flat() for side in self._sides]
        flat = parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=1)
        units = Units.of(bounds, self.document)
        worth = space_worth(self.document, flat @ self._weights.asking, units)
        return space_scores(units, *worth, attention, POOL, (1, 1, ATTENTION))


LONGEST = 64  # longest sentence, in tokens, that is one unit
ATTENTION = 0.25  # weight of attention among three parts of equal variance; see ``experiments/scoring_head``
POOL = 13  # tokens over which attention is averaged
LARGEST = Reduction("queries,heads,pool", "max", "max", pool=1)  # the largest weight of any query and head
FINENESS = 16  # resolution of the scores in tokens
LEAD = 2  # tokens of the blank line before the question, which are queries too, as in the training of the heads


@register_scorer("late_interaction")
@dataclass(frozen=True)
class LateInteractionScorer(ReadingScorer):
    """Similarity of the question's tokens to a text's, in a space that was trained for one drafter, and its attention.

    The row ``x`` of a token has its un-rotated keys and values in the drafter's layers; the row ``q`` of a query token
    has its un-rotated queries. With `key` B, `query` A and `gate` g of a `ScoringHead`, the similarity of a unit u is

        ``sum_i softmax_i(q_i g) max_(j in u) cos(q_i A, x_j B)``

    over query tokens i: those of the question, of the blank line before it and of the markup after it, and only the
    last 64 of them; where a prompt names no question, its last 32 tokens. The importance of a token is

        ``z(its sentence) + z(the best window of 64 tokens that has it) + 0.25 z(a)``

    where z subtracts the mean over the tokens before the question and divides by their standard deviation, and a is the
    largest un-rotated attention of any query token and head in the last layer of `query`, averaged over 13 tokens.
    Sentences separate single facts; windows find what several sentences say. Query tokens have the lowest importance.
    Layers after the head's last are not run.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    weights : str
        File of a head; if empty, the head that ships for the drafter's file.

    Notes
    -----
    The sum of maxima is that of ColBERT (arXiv 2004.12832); how the head was trained: ``experiments/scoring_head``.
    """

    retrieves: ClassVar[bool] = True
    keeps: ClassVar[bool] = True
    calibrate: ClassVar[str] = "never"  # a head is looked up by the file's hash; a measurement would not make one

    weights: str = ""

    def head(self, config: ModelConfig) -> ScoringHead:
        """Return the head, checked against the model; ConfigError if there is none for it."""
        return head_for(config, self.weights)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Return the number of layers up to the head's last."""
        return self.head(config).depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter's first layers once and compare tokens; ConfigError if there is no head for the drafter."""
        model, n = request.model, len(request.ids)
        head, attend = self.head(model.config), self.attend(request)
        start = first_asking(request)
        rows, last = min(n - start, MOST_QUESTION_TOKENS), max(head.query)
        space, fold = HeadSpace(model, head, request.positions, rows), Fold(LARGEST)
        queued: list[Floats] = []

        def on_attention(layer: int, q: Floats, cache: Cache) -> None:
            if layer not in head.query and layer not in head.key:
                return
            layer_cache = replace(cache.stored(layer), tokens=n)
            space.add(layer, q[-rows:], layer_cache)
            if layer == last and start:
                space.turn_back()
                keys = unrotated_keys(layer_cache, space.positions[:start], model, layer)
                fold.add_layer(space.unrotated(layer), keys, causal=False)
            if layer == head.depth - 1 and start:  # the host finds sentences while the device runs the layers
                queued.append(space.scores(units_of(request, start), fold.running[0]))

        # Only the first of several GPUs runs: the head's kernels and memory are first needed inside of its layers, when
        # GPUs already wait for each other (`FIRST_STEPS` of `sp.parallel.nccl_rank`), which could deadlock.
        read_prompt(replace(request, gpus=None), Hooks(on_attention), attend=attend, rows=rows, depth=head.depth)
        scores = np.zeros(n, np.float32)
        if start:
            [similarities] = counts_on_host(queued)
            scores[:start] = similarities - similarities.min()
        return Importance(
            scores, by_layer=chunk_means(scores[None], HEATMAP_CHUNK), densities=densities(attend), fineness=FINENESS
        )


def units_of(request: ScoreRequest, tokens: int) -> Ints:
    """Return the bounds (units + 1,) of sentences in the first `tokens` tokens; of chunks if the text is not known."""
    if request.spans is None:
        return chunk_bounds(tokens, FINENESS)
    return sentence_bounds(request.text, request.spans[:tokens], LONGEST)


def first_asking(request: ScoreRequest) -> int:
    """Return the index of the first query token: of the blank line before the question, or of the last 32 tokens.

    >>> none, ids = np.zeros(9, bool), np.arange(9)
    >>> [first_asking(ScoreRequest(None, ids, ids, question, none)) for question in (ids >= 6, none)]
    [4, 0]
    """
    if not request.question.any():
        return max(0, len(request.ids) - LAST_QUERIES)
    return max(0, int(request.question.argmax()) - LEAD)
