"""Draft: a DFlash block-diffusion model that guesses a whole block of the target's next tokens at once.

Outputs h of a few layers of the target, side by side, pass a matrix and a norm: ``f = rms_norm(W_fc h, hidden_norm)``.
Every layer of the draft makes keys and values of f for what the target has read; the block (the last known token,
then masks) attends to them and to itself. Embedding and head are the target's.

References
----------
z-lab, "DFlash: Block Diffusion for Flash Speculative Decoding", 2026, https://arxiv.org/abs/2602.06036
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sp.arrays import Floats
from sp.gguf import GGUFFile
from sp.models.device.to_device import repacked, to_device
from sp.models.drafts.dflash_config import DraftConfig, draft_config, gguf_keys, published_keys
from sp.models.drafts.dflash_refusals import refuse_later
from sp.models.drafts.dflash_store import DraftStore
from sp.models.file.safetensors_file import SafetensorsFile
from sp.models.file.weights import Store
from sp.models.layer.block import Block
from sp.models.layer.spec import LayerSpec
from sp.models.network.model import Device, Model
from sp.ops.attention.head_norm_rope import checked_head_dim
from sp.quant import Weight
from sp.quant.repack import Repacked


@dataclass(frozen=True)
class Draft:
    """A draft ready to run where its target is; `load_draft` makes one.

    Attributes
    ----------
    path : Path
    config : DraftConfig
    fuse : Weight (hidden, target_layers * hidden)
    hidden_norm : float32 (hidden,)
    blocks : tuple of Block
        Their mixers are `Attention`.
    output_norm : float32 (hidden,)
        Before the target's head; the configuration's `logit_scale` is in it.
    device : {"cpu", "cuda"}
    nbytes : int
        Bytes of all weights as they are held; see `Model`.
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
        """Tokens of a block: one known and the rest guessed."""
        return self.config.block_size

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the target whose outputs feed the draft."""
        return self.config.target_layers

    def describe(self) -> dict[str, object]:
        """Facts for the trace."""
        return {
            "file": self.path.name,
            "bytes": self.nbytes,
            "device": self.device,
            "layers": self.config.model.layers,
            "block_size": self.block_size,
            "target_layers": list(self.layers),
            "repacked": [asdict(each) for each in self.repacked],
        }


Parts = tuple[Weight, Floats, tuple[Block, ...], Floats]
"""The weights of a draft: fuse, hidden_norm, blocks, output_norm."""


def take_draft(store: Store, config: DraftConfig) -> Parts:
    """Build the weights of a draft from a store of them."""
    c = config.model
    return (
        store.matrix("fc.weight", (c.hidden, len(config.target_layers) * c.hidden)),
        store.vector("hidden_norm.weight", c.hidden),
        tuple(Block.take(store, i, LayerSpec(window=window)) for i, window in enumerate(config.windows)),
        store.vector("output_norm.weight", c.hidden),
    )


def load_draft(path: str | Path, target: Model, *, decode_budget: int = 1 << 30) -> Draft:
    """Open a draft for a target: a GGUF file, or a .safetensors file with its config.json beside it.

    Parameters
    ----------
    path : path
    target : Model
        The draft goes where this is.
    decode_budget : int
        See `load_model`.

    Raises
    ------
    GGUFError, ModelError
        The file is damaged, no complete draft, one of a later kind, or one for another target.
    ConfigError
        Its heads have a size that the GPU's kernels do not take.
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
    store = DraftStore(file, config.model, 0 if on_device else decode_budget)
    parts, nbytes = take_draft(store, config), store.nbytes
    store.finish()
    parts = (*parts[:-1], parts[-1] * np.float32(config.logit_scale))
    if not on_device:
        return Draft(path, config, *parts, target.device, nbytes)
    changed = repacked(parts, ())
    parts, _, nbytes = to_device(parts, (), file)
    return Draft(path, config, *parts, target.device, nbytes, changed)
