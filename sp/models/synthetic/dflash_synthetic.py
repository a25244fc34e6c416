"""Synthetic drafts: random weights in a named shape, as a file or directly on the device, for timing and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sp.errors import unknown_name
from sp.gguf import Value
from sp.kernels import device_errors
from sp.kernels.device import require_device
from sp.models.config import LayerKind, ModelConfig
from sp.models.drafts.dflash import Draft, build_draft, load_draft
from sp.models.drafts.dflash_config import DraftConfig, DraftKeys, draft_config
from sp.models.file.file_type import file_type_id
from sp.models.file.weights import RecordingStore, TensorSpec
from sp.models.network.model import Model
from sp.models.network.weights import in_file_order
from sp.models.synthetic.random_store import RandomStore
from sp.models.synthetic.shapes import Plan, tensor_formats
from sp.models.synthetic.synthetic import write_random
from sp.ops.rope import Rope

BASE, EPS = 1e7, 1e-6
GGUF_NAMES = {"hidden_norm.weight": "enc.output_norm.weight"}


@dataclass(frozen=True)
class DraftShape:
    """Shape of a draft, without weights."""

    name: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    target_layers: tuple[int, ...]  # layers of the target whose outputs are read, counted from 0
    mask_id: int
    window: int  # tokens, of the layers with a sliding window
    sliding: tuple[bool, ...]  # by layer; sliding layers are causal
    block_size: int = 16

    @property
    def config(self) -> DraftConfig:
        """Configuration of the draft; vocabulary and context are those of its target, and 1 here."""
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

    def tensors(self) -> list[TensorSpec]:
        """List every tensor, in file order, under the names of llama.cpp's files."""
        config = self.config
        store = RecordingStore(config.model)
        specs = in_file_order(build_draft(store, config), store)
        return [replace(spec, name=GGUF_NAMES.get(spec.name, spec.name)) for spec in specs]

    def plan(self, file_type: str) -> Plan:
        """Return name, shape and format of every tensor; ConfigError for an unknown file type."""
        return tensor_formats(self.tensors(), file_type, len(self.sliding), tied=False)

    def metadata(self) -> dict[str, Value]:
        """Return the keys that a loader reads, as llama.cpp names them: target layers are counted by their input."""
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
    """List the names that `find_draft_shape` accepts."""
    return tuple(sorted(_SHAPES))


def find_draft_shape(name: str) -> DraftShape:
    """Return the shape called `name`, which is ``dflash-`` and the shape of its target; ConfigError if there is
    none."""
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
        DraftShape(  # sizes scaled down from the draft above, because no draft of that target was available
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


def write_synthetic_draft(
    path: str | Path, shape: str, file_type: str, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Path:
    """Write a GGUF file of a named draft shape with random weights; arguments and errors as for `write_synthetic`."""
    draft_shape = find_draft_shape(shape)
    metadata = draft_shape.metadata() | {
        "general.file_type": file_type_id(file_type),
        "general.quantization_version": 2,
    }
    return write_random(path, metadata, draft_shape.plan(file_type), seed, progress)


def synthetic_draft(shape: str, file_type: str, target: Model, seed: int = 0) -> Draft:
    """Create a draft of a named shape with random weights, on the device of its target; for the GPU no file is written.
    `shape`: one of `sp.models.synthetic.dflash_synthetic.list_draft_shapes`. `file_type`: one of
    `sp.models.file.file_type.FILE_TYPES`. ConfigError for an unknown shape or file type; ModelError if the shape
    belongs to another target; DeviceError without enough memory on the device."""
    draft_shape, name = find_draft_shape(shape), Path(f"{shape}-{file_type}.synthetic")
    config = draft_config(DraftKeys(draft_shape.metadata(), str(name), "dflash"), target.config)
    if target.device == "cpu":
        with TemporaryDirectory() as folder:
            file = write_synthetic_draft(Path(folder) / "draft.gguf", shape, file_type, seed)
            return replace(load_draft(file, target), path=name)
    require_device()
    with device_errors():
        store = RandomStore(config.model, draft_shape.plan(file_type), seed)
        return Draft(name, config, *build_draft(store, config), target.device, store.nbytes, store.repacked)
