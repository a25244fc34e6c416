"""KVType: how a cache stores keys, and how values, as options and records name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from sp.errors import ConfigError, known_names, short
from sp.ops.attention.kv_pages import DEVICE_PAGES, rotated_block
from sp.quant import BlockFormat, format_by_name
from sp.quant.cached import K5, V4

FORMATS: dict[str, BlockFormat] = {
    **{name: format_by_name(name) for name in ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_0")},
    "k5": K5,
    "v4": V4,
}
PAIRS: Mapping[str, tuple[str, str]] = {"5bit": ("k5", "v4")}
"""Names of two formats that belong together: of keys and of values."""
NAMES = ("f32", "f16", "q8_0", "q5_1", "q5_0", "5bit", "q4_0")
ONE_SIDED = {"k5": "keys", "v4": "values"}
KVDevice = Literal["cpu", "cuda"]


class KVType(str):
    """Formats of cached keys and values: one name for both, or one for each, as in ``k=q8_0,v=q4_0``.

    >>> kv = KVType.parse("v=q4_0,k=q8_0", "--kv")
    >>> kv, kv.k.name, kv.v.name, KVType("5bit").k.name
    ('k=q8_0,v=q4_0', 'Q8_0', 'Q4_0', 'K5')
    """

    sides: tuple[str, str]  # names of the formats of keys and of values
    k: BlockFormat  # how a row of keys is packed
    v: BlockFormat  # how a row of values is
    packed: bool  # whether keys or values are stored in blocks

    def __new__(cls, text: str) -> KVType:
        """Of a text as `parse` leaves it."""
        made = super().__new__(cls, text)
        k, _, v = text.partition(",")
        made.sides = (k[2:], v[2:]) if v else PAIRS.get(text, (text, text))
        made.k, made.v = (FORMATS[name] for name in made.sides)
        made.packed = max(made.k.block_size, made.v.block_size) > 1
        return made

    def __reduce__(self) -> tuple[type[KVType], tuple[str]]:
        """Pickled as its text: formats are the process's own."""
        return KVType, (str(self),)

    @classmethod
    def parse(cls, text: str, where: str) -> KVType:
        """Read a name, or names by side; ConfigError, with what was asked for by that name, for anything else."""
        if "=" not in text:
            if text not in NAMES:
                side = ONE_SIDED.get(text)
                if side is not None:
                    raise ConfigError(f"{where}: {text} is for {side} alone; write 5bit, or a format for each side")
                raise ConfigError(f"{where} is {short(repr(text))}{known_names(text, NAMES)}")
            return cls(text)
        sides: dict[str, str] = {}
        for part in text.split(","):
            side, _, name = part.partition("=")
            if side not in ("k", "v") or side in sides:
                raise ConfigError(
                    f"{where} takes a format, or one for each as in k=q8_0,v=q4_0, not {short(repr(text))}"
                )
            wrong = ONE_SIDED.get(name, "")
            if name not in FORMATS or (wrong and wrong[0] != side):
                known = [name for name in FORMATS if ONE_SIDED.get(name, side)[0] == side]
                told = f"{where}: format of {'keys' if side == 'k' else 'values'} is {short(repr(name))}"
                raise ConfigError(told + known_names(name, known))
            sides[side] = name
        if len(sides) < 2:
            raise ConfigError(f"{where}: {text} names one side; give both, as in k=q8_0,v=q4_0")
        found = sides["k"], sides["v"]
        pair = next((name for name, both in PAIRS.items() if both == found), None)
        return cls(pair or (found[0] if found[0] == found[1] else f"k={found[0]},v={found[1]}"))

    @property
    def bits_per_value(self) -> float:
        """Bits a value, mean of keys and values, scales included.

        >>> KVType("5bit").bits_per_value, KVType("f16").bits_per_value
        (5.0, 16.0)
        """
        return (self.k.bits_per_value + self.v.bits_per_value) / 2

    @property
    def on_device(self) -> bool:
        """Whether the GPU has kernels for it."""
        return self.k in DEVICE_PAGES and self.v in DEVICE_PAGES

    def takes(self, widths: Iterable[int]) -> bool:
        """Whether heads of such sizes are whole blocks."""
        return not any(width % fmt.block_size for width in widths for fmt in (self.k, self.v))


USUAL = KVType("f16")
"""What caches are if nothing is said."""
DEVICE_KV = tuple(kv for kv in map(KVType, NAMES) if kv.on_device)
"""Those of one name that the GPU has, from the exact one to the one that rounds most."""


def known_kv(kv: str) -> KVType:
    """A type that was read already, or one by its name; ConfigError if there is none.

    >>> known_kv("k=k5,v=v4")
    '5bit'
    """
    return kv if isinstance(kv, KVType) else KVType.parse(kv, "kv")


def checked_kv(kv: str, head_dim: int, rotate: bool, device: KVDevice) -> KVType:
    """A type for heads of a size; ConfigError if it cannot pack them, rotate them, or is not for the device.

    >>> checked_kv("q4_0", 128, True, "cuda").v.name
    'Q4_0'
    """
    found = kv if isinstance(kv, KVType) else known_kv(kv)
    if device == "cuda" and not found.on_device:
        raise ConfigError(f"the GPU caches keys and values as {', '.join(DEVICE_KV[:-1])} or {DEVICE_KV[-1]}, not {kv}")
    if head_dim % found.k.block_size or head_dim % found.v.block_size:
        block = max(found.k.block_size, found.v.block_size)
        raise ConfigError(
            f"KV format {found} packs {block} values a block, which does not divide the head size {head_dim}; use f16 "
            "or f32"
        )
    if rotate and rotated_block(head_dim) == 1:
        raise ConfigError(f"heads of {head_dim} values cannot be rotated, for their size is odd; leave --rotate out")
    return found


def rotates(kv: str, rotate: bool | None) -> bool:
    """Whether a cache of that name rotates keys and values: as it was said, and by default where they are quantised.
    What a format quantises it packs in blocks whose size is a power of two, so that all its heads can be rotated.
    ConfigError: there is none of that name, or it is of a format that is made for rotated rows, and shall not rotate.
    """
    known = kv if isinstance(kv, KVType) else known_kv(kv)
    if rotate is False and {"k5", "v4"} & set(known.sides):
        raise ConfigError(f"KV format {kv} is made for rotated keys and values; leave the rotation on")
    return known.packed if rotate is None else rotate


def cache_name(kv: str, rotate: bool | None) -> str:
    """A cache as records name it.

    >>> cache_name("q4_0", None), cache_name("f16", None)
    ('q4_0 rotated', 'f16')
    """
    return f"{kv} rotated" if rotates(kv, rotate) else str(kv)
