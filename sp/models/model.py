"""Model: embed, layer and head."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ModelError, PromptError
from sp.kernels import import_cupy, is_device
from sp.models.arithmetic import Arithmetic
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.models.layers.block import Tap
from sp.models.layers.cold_experts import ColdExperts
from sp.models.trunk import Trunk
from sp.ops.embedding import embedding
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready
from sp.quant.repack import Repacked

Device = Literal["cpu", "cuda"]
Found = TypeVar("Found")


class Model:
    """A language model ready to run; `load_model` makes one.

    On the device, arrays go in and come out as CuPy arrays, and the residual stream given to `layer` is
    overwritten by the one it returns.

    Attributes
    ----------
    config : ModelConfig
    trunk : Trunk
        Another one where weights are put elsewhere.
    device : {"cpu", "cuda"}
    nbytes : int
        Bytes of all weights as they are held: on the CPU float32 where decoded and packed (a view of the file)
        where not, on the device packed; without experts that wait in host memory, but with the room they come to.
    repacked : tuple of Repacked
        Weights that the device holds in another format than their file.
    cold : ColdExperts or None
        What layers share whose experts wait in host memory.
    arithmetic : Arithmetic
        What products of a prompt are made in.
    captures : bool
        Whether work on the device may become CUDA graphs.
    agreed : callable or None
        See `ShardModel.agreed`; None of a model that nobody else has a share of.
    sharers : int
        Cards that have a share of it.
    in_parts : callable or None
        Of a model that cards share: takes many tokens (n, hidden), their positions, a cache, and how many behind
        `sp.models.shards.in_parts.middle` count, through all layers but the last, on the device; counts of the cache
        are moved in all layers there.
    """

    captures = True
    sharers = 1
    agreed: Callable[[bool], bool] | None = None
    in_parts: Callable[[Floats, Ints, Cache, Ints], Floats] | None = None

    def __init__(
        self,
        config: ModelConfig,
        trunk: Trunk,
        device: Device,
        nbytes: int,
        repacked: tuple[Repacked, ...] = (),
        cold: ColdExperts | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.config = config
        self._found: dict[Any, Any] = {}
        self.trunk = trunk
        self.device: Device = device
        self.nbytes = nbytes
        self.repacked = repacked
        self.cold = cold
        self.arithmetic = arithmetic or Arithmetic()

    def __repr__(self) -> str:
        of = self.config
        return f"Model({of.architecture}: {of.layers} layers of {of.hidden:,}, context {of.context:,}, {self.device})"

    @property
    def trunk(self) -> Trunk:
        """See `Model`."""
        return self._trunk

    @trunk.setter
    def trunk(self, trunk: Trunk) -> None:
        self._trunk, self._found = trunk, {}

    def of_trunk(self, find: Callable[[Trunk], Found]) -> Found:
        """What is found in the weights, looked for once as long as they lie where they lie."""
        if find not in self._found:
            self._found[find] = find(self._trunk)
        found: Found = self._found[find]
        return found

    @property
    def depth(self) -> int:
        """Layers that are loaded, the first ones."""
        return len(self._trunk.blocks)

    def check_loaded(self, depth: int | None = None) -> None:
        """ModelError unless so many layers are loaded; by default all of them and the head."""
        headless = depth is None and self._trunk.output is None
        if headless or self.depth < (self.config.layers if depth is None else depth):
            wanted = f"all {self.config.layers} and the head are" if depth is None else f"{depth} are"
            raise ModelError(f"only the first {self.depth} layers of the model are loaded, and {wanted} needed")

    def new_cache(self, tokens: int, kv: str = "f16", *, rotate: bool = False, layers: int | None = None) -> Cache:
        """An empty cache for `tokens` tokens; see `Cache` for the options."""
        math = self.arithmetic.attention
        return Cache(self.config, tokens, kv, rotate=rotate, layers=layers, device=self.device, math=math)

    def embed(self, ids: Ints) -> Floats:
        """Token ids (n,) -> the residual stream (n, hidden) that enters layer 0.

        Raises
        ------
        PromptError
            For an id outside the vocabulary; ids that are on the device already are not looked at.
        """
        if not is_device(ids):
            self.check_ids(ids)
        return embedding(self.place(ids, np.int32), self.trunk.embed)

    def place(self, values: Ints, kind: type[np.integer[Any]] = np.int64) -> Ints:
        """Positions, or as int32 ids, as an array where the model is; on the CPU as they are."""
        if self.device == "cpu" or is_device(values):
            return values
        placed: Ints = import_cupy().asarray(values, kind)
        return placed

    def check_ids(self, ids: Ints) -> None:
        """PromptError for an id outside the vocabulary."""
        outside = ids[(ids < 0) | (ids >= self.config.vocab)]
        if outside.size:
            raise PromptError(
                f"token id {outside[0]} is outside the vocabulary of {self.config.vocab}; was another tokenizer used?"
            )

    def layer(
        self,
        index: int,
        x: Floats,
        positions: Ints,
        cache: Cache,
        *,
        rows: int | None = None,
        tap: Tap | None = None,
    ) -> Floats:
        """Run one layer over the next tokens of a sequence.

        Parameters
        ----------
        index : int
        x : float32 (n, hidden)
            What the layer before returned for these tokens.
        positions : int64 (n,)
            Where RoPE puts them; gaps allowed. Who sees whom follows the order in the cache.
        cache : Cache
            Takes the keys and values, or the new state, of all n tokens.
        rows : int, optional
            Compute the output only for the last `rows` tokens (0 to n); all by default. Keys, values and states
            are computed for all n in any case.
        tap : callable, optional
            Called as ``tap(index, q, k, positions)`` in attention layers; see `Tap`.

        Returns
        -------
        float32 (rows, hidden)
        """
        n = len(x)
        if len(positions) != n:
            raise PromptError(f"{len(positions)} positions for {n} tokens; give one position a token")
        rows = n if rows is None else rows
        assert 0 <= rows <= n, f"rows {rows} of {n}"
        return self.trunk.blocks[index](x, self.place(positions), cache, rows, tap)

    def whole(self, x: Floats) -> Floats:
        """The residual stream as features take it, of one as layers hand it on: the same, but where cards share it."""
        return x

    def arrived(self, event: Any) -> None:
        """Wait until an event of the device has happened."""
        event.synchronize()

    def queueing(self) -> AbstractContextManager[None]:
        """Around a pass of many tokens; where cards share the model, they queue it side by side."""
        return nullcontext()

    def turn(self) -> AbstractContextManager[Any]:
        """Around what is queued at once, and nothing waits for; where cards share the model, one after the other."""
        return nullcontext()

    def done_before(self, known: bool) -> None:
        """Say whether what is queued next was done before, as after a graph that was replayed; see `Card`."""

    def settled(self) -> None:
        """Wait until what was queued is done, where cards share the model: one that hangs is found out."""

    @property
    def norms(self) -> tuple[Norm, ...]:
        """Norms of the residual stream before each layer and, the last one, before the head."""
        return (
            *((block.attn_norm, block.eps) for block in self.trunk.blocks),
            (self.trunk.output_norm, self.config.eps),
        )

    def head(self, x: Floats, norm: Norm | Ready | None = None) -> Floats:
        """Residual stream after the last layer (n, hidden) -> logits (n, vocab).

        `norm`: the last of `norms` if the product before has begun it, see `project_add_before`.
        """
        norm = (self.trunk.output_norm, self.config.eps) if norm is None else norm
        assert self.trunk.output is not None, "the model was loaded without its head"
        (logits,) = project(x, (self.trunk.output,), norm, f32=(True,))
        return logits
