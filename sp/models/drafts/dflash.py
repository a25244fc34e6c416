"""Draft: a DFlash block-diffusion model that predicts a whole block of the target's next tokens at once.

Outputs h of a few layers of the target, concatenated, pass a matrix and a norm: ``f = rms_norm(W_fc h, hidden_norm)``.
Every layer of the draft computes keys and values of f for the tokens that the target has read; the block (the last
known token, then masks) attends to them and to itself. Embedding and head are the target's. Source: z-lab, "DFlash:
Block Diffusion for Flash Speculative Decoding", 2026, https://arxiv.org/abs/2602.06036
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sp.arrays import Floats
from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models.device.to_device import repacked, to_device
from sp.models.drafts.dflash_config import DraftConfig, draft_config, gguf_keys, published_keys
from sp.models.file.metadata_keys import Keys
from sp.models.file.refusals import refuse_changed
from sp.models.file.safetensors_file import SafetensorsFile
from sp.models.file.weights import WeightSource, WeightStore
from sp.models.layer.block import Block
from sp.models.layer.spec import LayerSpec
from sp.models.network.model import Device, Model
from sp.ops.attention.kv_pages import checked_head_dim
from sp.quant import Weight
from sp.quant.repack import Repacked

LATER: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "DFlash2": (
        ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
        ("attn_conv_", "ffn_conv_", "selector_"),
    ),
    "DSpark": (("markov_rank", "has_confidence_head"), ("markov_", "conf_proj", "d2t")),
}
"""Keys of such files, and prefixes of components of their tensor names.

Source: llama.cpp, ``src/models/dflash.cpp`` and ``src/models/dspark.cpp``, August to October 2026.
"""
HONOURED = ("logit_scale", "embedding_scale", "attention.sliding_window", "attention.causal")
"""Keys of `sp.models.file.refusals.NEUTRAL` that drafts honour."""


def refuse_later(keys: Keys, names: Iterable[str]) -> None:
    """Refuse a file that only looks like a DFlash draft, or has keys that sp does not support. `names`: names of the
    file's tensors. The ModelError names the kind of file, the key or tensor that identifies it, and what to do."""
    names = list(names)
    for kind, (later_keys, prefixes) in LATER.items():
        evidence = [f"key {key}" for key in later_keys if keys.is_set(key)]
        evidence += [f"tensor {name}" for name in names if any(part.startswith(prefixes) for part in name.split("."))]
        if evidence:
            raise ModelError(
                f"{keys.path}: is a {kind} draft ({evidence[0]}), and sp runs drafts of the first DFlash; "
                "use such a draft of this target, or omit --speculator and --decode"
            )
    refuse_changed(keys, HONOURED)


ALIASES = {
    "fc.weight": ("fc.weight", "dflash.fc.weight", "dflash_fc.weight"),
    "hidden_norm.weight": (
        "hidden_norm.weight",
        "enc.output_norm.weight",
        "dflash.hidden_norm.weight",
        "dflash_hidden_norm.weight",
    ),
    "output_norm.weight": ("output_norm.weight", "norm.weight"),
}  # first our name, then those of GGUF dialects and of published checkpoints
PUBLISHED_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def names_of(name: str) -> tuple[str, ...]:
    """Return the names that files may use for a tensor; ours is the one of most GGUF files."""
    if name in ALIASES:
        return ALIASES[name]
    # ``blk.N.PART.weight``
    block, number, part, kind = name.split(".")
    names = [name]
    if part == "ffn_norm":
        names.append(f"{block}.{number}.post_attention_norm.{kind}")
    if part in PUBLISHED_PARTS:
        names.append(f"layers.{number}.{PUBLISHED_PARTS[part]}.{kind}")
    return tuple(names)


class DraftStore(WeightStore):
    """A `WeightStore` that looks for a tensor under all its names."""

    def __contains__(self, name: str) -> bool:
        return any(alias in self.file.tensors for alias in names_of(name))

    def _take(self, name: str, shape: tuple[int, ...]) -> Weight:
        return super()._take(self._name_in_file(name), shape)

    def _name_in_file(self, name: str) -> str:
        """Return the name in the file; if the tensor is missing, the name that such a file would use."""
        names = (name,) if name in self.file.tensors else names_of(name)
        present = next((alias for alias in names if alias in self.file.tensors), None)
        if present is None:
            published = any(tensor.startswith("layers.") for tensor in self.file.tensors)
            return names[-1] if published else names[0]
        return present


@dataclass(frozen=True)
class Draft:
    """A draft ready to run on the device of its target; `load_draft` makes one.

    Attributes
    ----------
    fuse : Weight (hidden, target_layers * hidden)
        Projection of the concatenated target features.
    hidden_norm : float32 (hidden,)
        Norm of the projected features.
    blocks : tuple of Block
        Their mixers are `Attention`.
    output_norm : float32 (hidden,)
        Norm before the target's head, multiplied by the configuration's `logit_scale`.
    nbytes : int
        Bytes of all weights as stored; see `Model`.
    repacked : tuple of Repacked
        See `Model`.
    """

    path: Path
    config: DraftConfig
    fuse: Weight
    hidden_norm: Floats
    blocks: tuple[Block, ...]
    output_norm: Floats
    device: Device
    nbytes: int
    repacked: tuple[Repacked, ...] = ()

    def __repr__(self) -> str:
        return f"Draft({self.path.name!r}, {len(self.blocks)} layers, blocks of {self.block_size}, {self.device})"

    @property
    def block_size(self) -> int:
        """Tokens of a block: one known token and the predicted ones."""
        return self.config.block_size

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the target whose outputs feed the draft."""
        return self.config.target_layers

    def describe(self) -> dict[str, object]:
        """Return facts for the trace."""
        return {
            "file": self.path.name,
            "bytes": self.nbytes,
            "device": self.device,
            "layers": self.config.model.layers,
            "block_size": self.block_size,
            "target_layers": list(self.layers),
            "repacked": [asdict(change) for change in self.repacked],
        }


DraftWeights = tuple[Weight, Floats, tuple[Block, ...], Floats]
"""The weights of a draft: fuse, hidden_norm, blocks, output_norm."""


def build_draft(store: WeightSource, config: DraftConfig) -> DraftWeights:
    """Build the weights of a draft from a source of them."""
    c = config.model
    return (
        store.matrix("fc.weight", (c.hidden, len(config.target_layers) * c.hidden)),
        store.vector("hidden_norm.weight", c.hidden),
        tuple(Block.build(store, i, LayerSpec(window=window)) for i, window in enumerate(config.windows)),
        store.vector("output_norm.weight", c.hidden),
    )


def load_draft(path: str | Path, target: Model) -> Draft:
    """Open a draft for a target: a GGUF file, or a .safetensors file with its config.json next to it.

    Parameters
    ----------
    target : Model
        The draft is loaded on the same device.

    Raises
    ------
    GGUFError, ModelError
        The file is damaged, no complete draft, of a later kind, or for another target.
    ConfigError
        The GPU's kernels do not support its head size.
    DeviceError
        There is too little memory on the GPU.
    """
    path, c, on_device = Path(path), target.config, target.device == "cuda"
    file: SafetensorsFile | GGUFFile
    if path.suffix == ".safetensors":
        keys, file = published_keys(path.with_name("config.json")), SafetensorsFile.open(path)
    else:
        file = GGUFFile.open(path)
        keys = gguf_keys(file)
    refuse_later(keys, file.tensors)
    config = draft_config(keys, c)
    if on_device:
        checked_head_dim(config.model.head_dim)
    store = DraftStore(file, config.model)
    parts, nbytes = build_draft(store, config), store.nbytes
    store.finish()
    # folding the factor into the norm saves a product per block
    parts = (*parts[:-1], parts[-1] * np.float32(config.logit_scale))
    if not on_device:
        return Draft(path, config, *parts, target.device, nbytes)
    # Taken before the upload, which replaces the file's formats.
    changed = repacked(parts, ())
    parts, _, nbytes = to_device(parts, (), file)
    return Draft(path, config, *parts, target.device, nbytes, changed)
