"""What of a layer's weights its launches read, before attention and after it, and which layers are alike in that."""

from __future__ import annotations

from typing import Any, NamedTuple

from sp.kernels import debugging
from sp.kernels.repeats import watched
from sp.models.layers.attention import Attention
from sp.models.layers.block import Block
from sp.models.layers.feed_forward import SwiGLU
from sp.models.model import Model
from sp.models.trunk import Trunk
from sp.ops.matmul.packed import PackedWeight


class Part(NamedTuple):
    """What comes before attention in a layer, or what comes after it.

    Attributes
    ----------
    kind : tuple
        What parts have in common that can be repeated with each other's arrays; None of one that cannot.
    arrays : list of arrays
        Where its weights lie.
    """

    kind: Any
    arrays: list[Any]


class LayerParts(NamedTuple):
    """What a layer reads of its weights, before attention and after it."""

    enter: Part
    leave: Part


def parts_of(model: Model) -> list[LayerParts]:
    """All layers of a model; none where nothing can be repeated."""
    if model.device != "cuda" or model.cold is not None or debugging() or watched.get():
        return []
    return model.of_trunk(_parts_of)


def _parts_of(trunk: Trunk) -> list[LayerParts]:
    return [LayerParts(_part(_entered(block), "enter"), _part(_left(block), "leave")) for block in trunk.blocks]


def _entered(block: Block) -> list[Any] | None:
    """All that a layer reads before attention, and nothing else; None where it is not known."""
    mixer = block.mixer
    if not (type(block) is Block and type(mixer) is Attention):
        return None
    return _known([mixer.q, mixer.k, mixer.v], [block.attn_norm, *(mixer.biases or ()), mixer.norms.q, mixer.norms.k])


def _left(block: Block) -> list[Any] | None:
    """All that a layer reads after attention, and nothing else; None where it is not known."""
    mixer, ffn = block.mixer, block.ffn
    if not (type(block) is Block and type(mixer) is Attention and type(ffn) is SwiGLU):
        return None
    return _known([mixer.out, ffn.gate, ffn.up, ffn.down], [block.ffn_norm])


def _known(matrices: list[Any], vectors: list[Any]) -> list[Any] | None:
    """Both, without vectors that a model has not; None where a matrix is of a kind that is not known."""
    if not all(isinstance(one, PackedWeight) for one in matrices):
        return None
    return [*matrices, *(one for one in vectors if one is not None)]


def _part(weights: list[Any] | None, side: str) -> Part:
    """A part that reads these, on that side of attention."""
    kind = _kind(weights)
    return Part(kind and (side, *kind), _arrays(weights))


def _kind(weights: list[Any] | None) -> Any:
    """What parts have in common that can be repeated with each other's arrays."""
    if weights is None:
        return None
    found: list[Any] = []
    for one in weights:
        kept = getattr(one, "kept", None)
        made = (one.format.name, one.math) if isinstance(one, PackedWeight) else ()
        found.append((*made, one.shape, kept and (kept.first, kept.rows.codes.shape)))
    return tuple(found)


def _arrays(weights: list[Any] | None) -> list[Any]:
    """Where weights lie, and once each what several are kept in together."""
    if weights is None:
        return []
    found = [one.data if isinstance(one, PackedWeight) else one for one in weights]
    kept = {id(one.kept.rows): one.kept.rows for one in weights if isinstance(one, PackedWeight) and one.kept}
    return found + [part for rows in kept.values() for part in (rows.codes, rows.scales)]
