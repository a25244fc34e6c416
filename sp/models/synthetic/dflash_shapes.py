"""Named shapes of DFlash drafts: the published one for Qwen3.6-27B, and one that a test can run.

Source of the published sizes: config.json of z-lab/Qwen3.6-27B-DFlash, https://huggingface.co/z-lab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sp.errors import unknown_name
from sp.gguf import Value
from sp.models.config import LayerKind, ModelConfig
from sp.models.drafts.dflash import take_draft
from sp.models.drafts.dflash_config import DraftConfig
from sp.models.file.recording import RecordingStore, Tensor
from sp.models.network.trunk import in_order
from sp.models.synthetic.shapes import Plan, tensor_formats
from sp.ops.rope import Rope

BASE, EPS = 1e7, 1e-6
GGUF_NAMES = {"hidden_norm.weight": "enc.output_norm.weight"}


@dataclass(frozen=True)
class DraftShape:
    """A draft without its weights.

    Attributes
    ----------
    name : str
    hidden, ffn, heads, kv_heads, head_dim : int
    target_layers : tuple of int
        Layers of the target whose outputs are read, from 0.
    mask_id : int
    window : int
        Of the layers that slide.
    sliding : tuple of bool
        Layer by layer; those that slide are causal.
    block_size : int
    """

    name: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    target_layers: tuple[int, ...]
    mask_id: int
    window: int
    sliding: tuple[bool, ...]
    block_size: int = 16

    @property
    def config(self) -> DraftConfig:
        """Its numbers; vocabulary and context are its target's, and 1 here."""
        layers = len(self.sliding)
        kinds: list[LayerKind] = ["attention"] * layers
        model = ModelConfig(
            architecture="dflash",
            hidden=self.hidden,
            vocab=1,
            context=1,
            ffn=(self.ffn,) * layers,
            kinds=tuple(kinds),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rope=Rope(BASE, self.head_dim),
            eps=EPS,
        )
        windows = tuple(self.window if slides else None for slides in self.sliding)
        return DraftConfig(model, self.block_size, self.mask_id, self.target_layers, windows, self.sliding)

    def tensors(self) -> list[Tensor]:
        """Every tensor, in file order, under the names that llama.cpp's files have."""
        config = self.config
        store = RecordingStore(config.model)
        found = in_order(take_draft(store, config), store)
        return [replace(one, name=GGUF_NAMES.get(one.name, one.name)) for one in found]

    def plan(self, file_type: str) -> Plan:
        """Name, shape and format of every tensor; ConfigError for an unknown file type."""
        return tensor_formats(self.tensors(), file_type, len(self.sliding), tied=False)

    def metadata(self) -> dict[str, Value]:
        """The keys a loader reads, as llama.cpp names them: target layers are counted by their input."""
        keys: dict[str, Value] = {
            "block_count": len(self.sliding),
            "embedding_length": self.hidden,
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": EPS,
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": np.array(self.sliding),
            "rope.freq_base": BASE,
            "block_size": self.block_size,
            "target_layers": np.array(self.target_layers, np.int32) + 1,
        }
        named: dict[str, Value] = {
            "general.architecture": "dflash",
            "general.name": f"{self.name} (synthetic)",
            "tokenizer.ggml.mask_token_id": self.mask_id,
        }
        return named | {f"dflash.{key}": value for key, value in keys.items()}


def list_draft_shapes() -> tuple[str, ...]:
    """Names `find_draft_shape` knows.

    >>> list_draft_shapes()
    ('dflash-qwen3.6-27b', 'dflash-qwen3.6-35b-a3b', 'dflash-tiny-qwen35')
    """
    return tuple(sorted(_SHAPES))


def find_draft_shape(name: str) -> DraftShape:
    """The shape called `name`, which is that of its target behind ``dflash-``; ConfigError when there is none.

    Examples
    --------
    >>> plan = find_draft_shape("dflash-qwen3.6-27b").plan("bf16")
    >>> len(plan), sum(fmt.nbytes(size) for _, size, fmt in plan)
    (58, 3460551680)
    """
    if name not in _SHAPES:
        raise unknown_name("draft shape", name, _SHAPES)
    return _SHAPES[name]


_SHAPES: Mapping[str, DraftShape] = {
    shape.name: shape
    for shape in (
        DraftShape(
            "dflash-qwen3.6-27b",
            *(5120, 17408, 32, 8, 128),
            target_layers=(1, 16, 31, 46, 61),
            mask_id=248070,
            window=2048,
            sliding=(True, True, True, True, False),
        ),
        DraftShape(  # sizes of our own choice, in proportion to the draft above: none of that target was at hand
            "dflash-qwen3.6-35b-a3b",
            *(2048, 6144, 16, 4, 128),
            target_layers=(1, 10, 19, 28, 37),
            mask_id=248070,
            window=2048,
            sliding=(True, True, True, True, False),
        ),
        DraftShape(
            "dflash-tiny-qwen35",
            *(256, 768, 8, 2, 128),
            target_layers=(1, 3),
            mask_id=2001,
            window=100,
            sliding=(True, True, False),
        ),
    )
}
