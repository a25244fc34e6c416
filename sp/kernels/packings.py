"""The header ``packings.cuh``: weight formats for kernels, generated from the packings of `sp.quant`.

It is no file: `sp.kernels.flatten` inserts it in place of an ``#include``, so that the text that is compiled, cached
and hashed contains it, and Python and CUDA cannot disagree about a size."""

from __future__ import annotations

from collections.abc import Mapping

from sp.quant import FORMATS, BlockFormat, Packing, Plane, Scales, kernel_formats
from sp.quant.packing import STAGE_ROWS, TILE, UNIT_ROWS, Vectors
from sp.quant.pieces import MOST_PIECES, PIECED, ROWS, STEPS, pieces

NAME = "packings.cuh"
THREADS = 128  # threads that share a tile
HEAD = """\
// Memory layout of weights by ggml type id, generated from the packings in sp/quant/formats; see sp/quant/packing.py.
//
//   block            values per block of block_bytes; `super`: a super-block, with scales of several groups (K-quants)
//   low_*, high_*    planes of a code's lower and upper bits: their offset in a block of the file, and their bytes in a
//                    tile of TILE_ROWS x TILE_K (0: no such plane); a thread loads low_parts words of low_word bytes
//   scale_*, delta_* offset of scales in a block of the file; bytes of a block on the device, and of TILE_ROWS rows of
//                    a span; `steps`: one signed byte per group, computed from those of the file (raw_blocks.cuh)
//   group            values per scale
//   middle, zero     the middle of the codes' range, and the code of 0 where there are no `minima`
//   flip             the mask that makes codes of the file unsigned, by XOR
//   values           the numbers of the codes; `lookup`: unevenly spaced, of 7 bits and a sign; else first + stride *
//                    code, `centre` for the middle code. As bytes, looked-up numbers have the offset `raised`;
//                    `counted`: bytes have an offset. `vectors`: codes of the file index vectors, SP_GRID_<format>
//   span, tiles      inputs whose scales are stored together, and their tiles
//
// `piece_of<bits>`: piece i of codes of step s, rows g (r = 0) or g + 8, see sp/quant/pieces.py; no bits past the last
"""


def packings_header() -> str:
    """Return the text of the header.

    >>> "static constexpr int block = 256, block_bytes = 210;" in packings_header()
    True
    """
    gathered = [fmt for fmt in FORMATS.values() if fmt.packing and not fmt.packing.tiled]
    tiled = kernel_formats()
    supers = [f"DO({fmt.name})" for fmt in tiled if _packing(fmt).super]
    known = [*gathered, *tiled]
    ids = ", ".join(f"{fmt.name} = {fmt.ggml_type}" for fmt in known)
    return "\n".join(
        [
            HEAD + "#pragma once",
            f"enum FormatId {{ {ids} }};",
            f"enum TileSize {{ TILE_ROWS = {TILE}, TILE_K = {TILE}, TILE_THREADS = {THREADS} }};",
            f"enum SlotRows {{ STAGE_ROWS = {STAGE_ROWS}, UNIT_ROWS = {UNIT_ROWS} }};",
            "",
            "// `DO` applied to every format and to every K-quant; true if `DO` is true of some K-quant.",
            f"#define SP_FOR_FORMAT(DO) {' '.join(f'DO({fmt.name})' for fmt in tiled)}",
            f"#define SP_FOR_SUPER(DO) {' '.join(supers)}",
            f"#define SP_ANY_SUPER(DO) ({' || '.join(supers)})",
            "",
            "// `Packing<F>`; still a template, so that unused formats leave nothing in a kernel.",
            "template <int F, int = 0>",
            "struct Packing;",
            *(_struct(fmt.name, _packing(fmt)) for fmt in known),
            "",
            "struct Piece {",
            "    int word, at, bits, to;",
            "};",
            "template <int Bits>",
            "constexpr Piece piece_of(int s, int r, int i) { return {}; }",
            *map(_pieces, PIECED),
            *(_grid(fmt.name, vectors) for fmt in known if (vectors := _packing(fmt).vectors)),
        ]
    )


def _packing(fmt: BlockFormat) -> Packing:
    assert fmt.packing is not None, fmt.name
    return fmt.packing


def _struct(name: str, p: Packing) -> str:
    none, nothing = Plane(0, 0), Scales(0, 0)
    high, scales, delta = p.high or none, p.scales or nothing, p.delta or nothing
    parts = max(1, p.low_bytes // (16 * THREADS))
    numbers = (
        {"block": p.block, "block_bytes": p.block_bytes},
        {"low_bits": p.low.bits, "low_at": p.low.at, "low_run": p.low.run, "low_bytes": p.low_bytes},
        {"high_bits": high.bits, "high_at": high.at, "high_run": high.run, "high_bytes": p.high_bytes},
        {"low_parts": parts, "low_word": p.low_bytes // (parts * THREADS), "span": p.span, "tiles": p.tiles},
        {"scale_at": scales.at, "scale_bytes": scales.held, "scales_bytes": p.scales_bytes},
        {"delta_at": delta.at, "delta_bytes": delta.nbytes, "deltas_bytes": p.deltas_bytes},
        {"group": p.group, "middle": p.middle, "zero": p.zero, "flip": p.flip},
        {"stride": p.stride, "first": p.first, "centre": p.centre, "raised": p.raised},
    )
    flags = {"super": p.super, "minima": p.minima, "plain": p.plain, "lookup": p.lookup, "counted": p.counted}
    flags |= {"steps": scales.steps is not None, "vectors": p.vectors is not None}
    lines = [f"    static constexpr int {_listed(group)};" for group in numbers]
    lines.append(f"    static constexpr bool {_listed(flags)};")
    if p.values:
        lines.append(f"    static constexpr i8 values[] = {{{', '.join(map(str, p.held_values))}}};")
    return "\n".join(["template <int N>", f"struct Packing<{name}, N> {{", *lines, "};"])


def _pieces(bits: int) -> str:
    places = [pieces(bits, step, row) for step in range(STEPS) for row in range(ROWS)]
    # Every place gets MOST_PIECES entries, so that the table can be indexed; missing ones have no bits.
    every = [piece for place in places for piece in (*place, *[(0, 0, 0, 0)] * (MOST_PIECES - len(place)))]
    table = ", ".join(f"{{{', '.join(map(str, piece))}}}" for piece in every)
    body = f"constexpr Piece all[] = {{{table}}}; return all[(s * {ROWS} + r) * {MOST_PIECES} + i];"
    return f"template <>\nconstexpr Piece piece_of<{bits}>(int s, int r, int i) {{ {body} }}"


def _grid(name: str, vectors: Vectors) -> str:
    return f"#define SP_GRID_{name} {', '.join(f'{int(word):#010x}u' for word in vectors.grid())}"


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in values.items())
