"""Drafts that came after DFlash and share its name: told apart by keys and tensors, and refused in one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sp.errors import ModelError
from sp.models.file.metadata_keys import Keys
from sp.models.file.refusals import refuse_changed

LATER: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "DFlash2": (
        ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
        ("attn_conv_", "ffn_conv_", "selector_"),
    ),
    "DSpark": (("markov_rank", "has_confidence_head"), ("markov_", "conf_proj", "d2t")),
}
"""Keys that such files have, and how parts of their tensors' names begin.

Source: llama.cpp, ``src/models/dflash.cpp`` and ``src/models/dspark.cpp``, August to October 2026.
"""
READ = ("logit_scale", "embedding_scale", "attention.sliding_window", "attention.causal")
"""Keys of `sp.models.file.refusals.NEUTRAL` that drafts honour."""


def refuse_later(keys: Keys, names: Iterable[str]) -> None:
    """Refuse what only looks like a DFlash draft, or has keys that no part of one computes.

    Parameters
    ----------
    keys : Keys
    names : iterable of str
        Of the file's tensors.

    Raises
    ------
    ModelError
        The message says what the file is, by which key or tensor that was told, and what to do.

    Examples
    --------
    >>> refuse_later(Keys("dflash", {}, "d.gguf"), ["blk.0.attn_conv_base"])
    Traceback (most recent call last):
    sp.errors.ModelError: d.gguf: is a DFlash2 draft (tensor blk.0.attn_conv_base), and sp runs drafts of the first \
DFlash; use such a draft of this target, or leave --draft and --decode out
    """
    listed = list(names)
    for kind, (wanted, parts) in LATER.items():
        found = [f"key {key}" for key in wanted if keys.told(key)]
        found += [f"tensor {name}" for name in listed if any(part.startswith(parts) for part in name.split("."))]
        if found:
            raise ModelError(
                f"{keys.path}: is a {kind} draft ({found[0]}), and sp runs drafts of the first DFlash; "
                "use such a draft of this target, or leave --draft and --decode out"
            )
    refuse_changed(keys, READ)
