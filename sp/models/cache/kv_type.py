"""KVType: the storage formats of keys and of values, named as in options and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from sp.errors import ConfigError, known_names, short
from sp.ops.attention.kv_pages import DEVICE_PAGES, rotated_block
from sp.quant import BlockFormat, format_by_name
from sp.quant.cached import K4, K5, V4

FORMATS: dict[str, BlockFormat] = {
    **{name: format_by_name(name) for name in ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_0")},
    "k5": K5,
    "k4": K4,
    "v4": V4,
}
PAIRS: Mapping[str, tuple[str, str]] = {"5bit": ("k5", "v4"), "4bit": ("k4", "v4")}
"""Names for a pair of formats, of keys and of values, that are used together."""
NAMES = ("f32", "f16", "q8_0", "q5_1", "q5_0", "5bit", "4bit", "q4_0")
ONE_SIDED = {"k5": "keys", "k4": "keys", "v4": "values"}
KVDevice = Literal["cpu", "cuda"]


class KVType(str):
    """Formats of cached keys and values: one name for both, or one for each, as in ``k=q8_0,v=q4_0``.

    >>> kv = KVType.parse("v=q4_0,k=q8_0", "--kv")
    >>> kv, kv.k.name, kv.v.name, KVType("5bit").k.name
    ('k=q8_0,v=q4_0', 'Q8_0', 'Q4_0', 'K5')
    """

    sides: tuple[str, str]  # names of the formats of keys and of values
    k: BlockFormat  # block format of a row of keys
    v: BlockFormat  # block format of a row of values
    packed: bool  # True if keys or values are stored in blocks of several values
    keeps_recent: bool  # True if a cache has exact rows of its newest tokens too, see `RecentRows`

    def __new__(cls, text: str) -> KVType:
        """Build from a text that `parse` has normalised."""
        kv_type = super().__new__(cls, text)
        k, _, v = text.partition(",")
        kv_type.sides = (k[2:], v[2:]) if v else PAIRS.get(text, (text, text))
        kv_type.k, kv_type.v = (FORMATS[name] for name in kv_type.sides)
        kv_type.packed = max(kv_type.k.block_size, kv_type.v.block_size) > 1
        kv_type.keeps_recent = kv_type.k is K4
        return kv_type

    def __reduce__(self) -> tuple[type[KVType], tuple[str]]:
        """Pickle as text, because formats are objects of the process."""
        return KVType, (str(self),)

    @classmethod
    def parse(cls, text: str, where: str) -> KVType:
        """Parse a name, or one name per side; ConfigError for anything else. `where`: the option or key to name in the
        message."""
        if "=" not in text:
            if text not in NAMES:
                side = ONE_SIDED.get(text)
                if side is not None:
                    name, (k, v) = next((pair, both) for pair, both in PAIRS.items() if text in both)
                    raise ConfigError(
                        f"{where}: {text} stores {side} only; pass {name}, or a format for each side, as in k={k},v={v}"
                    )
                raise ConfigError(f"{where} is {short(repr(text))}{known_names(text, NAMES)}")
            return cls(text)
        sides: dict[str, str] = {}
        for part in text.split(","):
            side, _, name = part.partition("=")
            if side not in ("k", "v") or side in sides:
                raise ConfigError(
                    f"{where} takes one format, or one for each side as in k=q8_0,v=q4_0; got {short(repr(text))}"
                )
            # ONE_SIDED says "keys" or "values"; their initials are the names of the sides.
            wrong = ONE_SIDED.get(name, "")
            if name not in FORMATS or (wrong and wrong[0] != side):
                known = [name for name in FORMATS if ONE_SIDED.get(name, side)[0] == side]
                message = f"{where}: the format of {'keys' if side == 'k' else 'values'} is {short(repr(name))}"
                raise ConfigError(message + known_names(name, known))
            sides[side] = name
        if len(sides) < 2:
            raise ConfigError(f"{where}: {text} names one side; pass both, as in k=q8_0,v=q4_0")
        names = sides["k"], sides["v"]
        # One spelling per combination: records and caches compare types as text.
        pair = next((name for name, both in PAIRS.items() if both == names), None)
        return cls(pair or (names[0] if names[0] == names[1] else f"k={names[0]},v={names[1]}"))

    @property
    def bits_per_value(self) -> float:
        """Bits per value, as the mean of keys and values, scales included; without the exact rows of the newest tokens
        that `k4` keeps as well, which take the same room for any length.

        >>> KVType("5bit").bits_per_value, KVType("4bit").bits_per_value, KVType("f16").bits_per_value
        (5.0, 4.5, 16.0)
        """
        return (self.k.bits_per_value + self.v.bits_per_value) / 2

    @property
    def on_device(self) -> bool:
        """True if the GPU has kernels for both formats."""
        return self.k in DEVICE_PAGES and self.v in DEVICE_PAGES

    def takes(self, widths: Iterable[int]) -> bool:
        """Return True if heads of these sizes are whole blocks of both formats."""
        return not any(width % fmt.block_size for width in widths for fmt in (self.k, self.v))


USUAL = KVType("f16")
"""Default type of a cache."""
DEVICE_KV = tuple(kv for kv in map(KVType, NAMES) if kv.on_device)
"""Types with a single name that the GPU supports, from the most exact to the coarsest."""


def known_kv(kv: str) -> KVType:
    """Return a type that is already parsed, or the one of that name; ConfigError if there is none.

    >>> known_kv("k=k5,v=v4")
    '5bit'
    """
    return kv if isinstance(kv, KVType) else KVType.parse(kv, "kv")


def checked_kv(kv: str, head_dim: int, rotate: bool, device: KVDevice) -> KVType:
    """Return the type for heads of this size; ConfigError if it cannot pack or rotate them, or is not for the device.

    >>> checked_kv("q4_0", 128, True, "cuda").v.name
    'Q4_0'
    """
    kv_type = kv if isinstance(kv, KVType) else known_kv(kv)
    if device == "cuda" and not kv_type.on_device:
        raise ConfigError(f"KV format {kv} is for the CPU; the GPU has {', '.join(DEVICE_KV[:-1])} and {DEVICE_KV[-1]}")
    if head_dim % kv_type.k.block_size or head_dim % kv_type.v.block_size:
        block = max(kv_type.k.block_size, kv_type.v.block_size)
        raise ConfigError(
            f"KV format {kv_type} packs {block} values per block, which does not divide the head size {head_dim}; use "
            "f16 or f32"
        )
    if rotate and rotated_block(head_dim) == 1:
        raise ConfigError(f"heads of {head_dim} values cannot be rotated, because their size is odd; omit --rotate")
    return kv_type


def rotates(kv: str, rotate: bool | None) -> bool:
    """Return True if a cache of that type rotates keys and values: as requested, and by default if they are
    quantised. Quantised formats pack blocks whose size is a power of two, so that all heads they accept can be
    rotated. ConfigError if there is no such type, or if rotation is switched off for a format that is designed for
    rotated rows."""
    known = kv if isinstance(kv, KVType) else known_kv(kv)
    if rotate is False and {"k5", "k4", "v4"} & set(known.sides):
        raise ConfigError(f"KV format {kv} is designed for rotated keys and values; do not switch rotation off")
    return known.packed if rotate is None else rotate


def cache_name(kv: str, rotate: bool | None) -> str:
    """Return the name of a cache in records.

    >>> cache_name("q4_0", None), cache_name("f16", None)
    ('q4_0 rotated', 'f16')
    """
    return f"{kv} rotated" if rotates(kv, rotate) else str(kv)
