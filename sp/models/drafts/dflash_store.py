"""DraftStore: the tensors of a DFlash draft under one set of names, whatever the file calls them."""

from __future__ import annotations

from sp.models.file.weights import WeightStore
from sp.quant import Weight

ALIASES = {
    "fc.weight": ("fc.weight", "dflash.fc.weight", "dflash_fc.weight"),
    "hidden_norm.weight": (
        "hidden_norm.weight",
        "enc.output_norm.weight",
        "dflash.hidden_norm.weight",
        "dflash_hidden_norm.weight",
    ),
    "output_norm.weight": ("output_norm.weight", "norm.weight"),
}
"""First our name, then those of GGUF dialects and of published checkpoints."""
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
    """What files may call a tensor, which we call by the name it has in most GGUF files.

    Examples
    --------
    >>> names_of("blk.3.ffn_norm.weight")
    ('blk.3.ffn_norm.weight', 'blk.3.post_attention_norm.weight', 'layers.3.post_attention_layernorm.weight')
    """
    if name in ALIASES:
        return ALIASES[name]
    block, number, part, kind = name.split(".")
    names = [name]
    if part == "ffn_norm":
        names.append(f"{block}.{number}.post_attention_norm.{kind}")
    if part in PUBLISHED_PARTS:
        names.append(f"layers.{number}.{PUBLISHED_PARTS[part]}.{kind}")
    return tuple(names)


class DraftStore(WeightStore):
    """See `WeightStore`; a tensor is looked for under all its names."""

    def __contains__(self, name: str) -> bool:
        return any(one in self.file.tensors for one in names_of(name))

    def _take(self, name: str, shape: tuple[int, ...]) -> Weight:
        return super()._take(self._found(name), shape)

    def _found(self, name: str) -> str:
        """The name in the file; if it is in there under none, the one that such a file would have."""
        names = (name,) if name in self.file.tensors else names_of(name)
        found = next((one for one in names if one in self.file.tensors), None)
        if found is None:
            published = any(one.startswith("layers.") for one in self.file.tensors)
            found = names[-1] if published else names[0]
        return found
