"""Hostile and damaged files, by the point of the loader's checklist each one breaks, and what must be said of it.

The classes are those of the CVEs of other GGUF parsers: counts and lengths that wrap, offsets past the end or around
2^64, recursion, divisions by zero, unbounded allocations.
"""

from __future__ import annotations

import struct

from raw_gguf import ARRAY, BOOL, F32, STRING, U8, U32, U64, array, build, key, string, tensor, text, u32

ARCH = string("general.architecture", "qwen3")
HUGE = (1 << 64) - 1
ZEROS = bytes(256)

HOSTILE: dict[str, tuple[bytes, str]] = {
    # 1 size, magic, version, byte order
    "empty": (b"", "empty"),
    "magic only": (b"GGUF", "truncated"),
    "23 bytes": (build()[:23], "truncated"),
    "other magic": (build(magic=b"GGJT"), "not a GGUF file"),
    "zip": (b"PK\x03\x04" + ZEROS, "not a GGUF file"),
    "version 0": (build(version=0), "version 0"),
    "version 1": (build(version=1), "version 1"),
    "version 4": (build(version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    # 2 counts
    "2^64-1 keys": (build(n_keys=HUGE), "key count"),
    "2^64-1 tensors": (build(n_tensors=HUGE), "tensor count"),
    "65537 keys": (build([ARCH], n_keys=65537, data=bytes(1 << 21)), "key count"),
    "more keys than bytes": (build([ARCH], n_keys=60), "key count"),
    "more tensors than bytes": (build([ARCH], n_tensors=9), "tensor count|truncated"),
    "negative count": (build(n_tensors=1 << 63), "tensor count"),
    # 3 strings
    "key of 2^64-1 bytes": (build([struct.pack("<Q", HUGE) + ZEROS]), "claims"),
    "key of 2^63 bytes": (build([struct.pack("<Q", 1 << 63) + ZEROS]), "claims"),
    "key past the end": (build([struct.pack("<Q", 5000) + ZEROS]), "truncated"),
    "value of 2^62 bytes": (build([key("a", STRING, struct.pack("<Q", 1 << 62) + ZEROS)]), "claims"),
    "value past the end": (build([key("a", STRING, struct.pack("<Q", 5000) + ZEROS)]), "truncated"),
    "empty key": (build([u32("", 1)]), "empty or contains"),
    "key with NUL": (build([u32("a\0b", 1)]), "empty or contains"),
    "key with escape": (build([u32("a\x1b[2Jb", 1)]), "empty or contains"),
    "key not UTF-8": (build([u32(b"\xff\xfe", 1)]), "not UTF-8"),
    "value not UTF-8": (build([string("a", b"\xc3\x28")]), "not UTF-8"),
    "key twice": (build([u32("a", 1), u32("a", 2)]), "twice"),
    "unknown value type": (build([key("a", 13, ZEROS)]), "unknown value type 13"),
    "unknown value type 2^32-1": (build([key("a", 0xFFFFFFFF, ZEROS)]), "unknown value type"),
    "bool of 2": (build([key("a", BOOL, b"\x02")]), "bool"),
    # 4 arrays
    "array of 2^60 bytes": (build([array("a", U8, 1 << 60, ZEROS)]), "claims"),
    "array of 2^61 u64": (build([array("a", U64, 1 << 61, ZEROS)]), "claims"),
    "array of 2^64-1 strings": (build([array("a", STRING, HUGE, ZEROS)]), "claims"),
    "array of 3,000,000 strings": (build([array("a", STRING, 3_000_000, ZEROS)]), "claims"),
    "array of arrays": (build([array("a", ARRAY, 1, struct.pack("<IQ", U8, 1) + b"\0")]), "array of arrays"),
    "arrays 10,000 deep": (build([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 10_000)]), "array of arrays"),
    "array of unknown type": (build([array("a", 99, 1, ZEROS)]), "unknown element type 99"),
    "string of 2^63 in an array": (build([array("a", STRING, 2, text("x") + struct.pack("<Q", 1 << 63))]), "claims"),
    "string past the end in an array": (build([array("a", STRING, 2, text("x") + struct.pack("<Q", 77))]), "truncated"),
    "array ends with the file": (build([array("a", STRING, 3, text("x") * 2)]), "truncated|claims"),
    "2^22 empty strings": (build([array("a", STRING, 1 << 22, bytes(8 << 22))]), "claims"),
    "two arrays of 2^19+1 strings": (
        build([array(n, STRING, (1 << 19) + 1, bytes((8 << 19) + 8)) for n in ("a", "b")]),
        "claims",
    ),
    "header over 48 MiB": (build([array(n, U64, 1 << 22, bytes(8 << 22)) for n in ("a", "b")]), "longer than 48 MiB"),
    "5,000,000 bytes as one array": (build([array("a", U8, 5_000_000, bytes(5_000_000))]), "claims"),
    # 5 alignment
    "alignment 0": (build([u32("general.alignment", 0)]), "alignment 0"),
    "alignment 3": (build([u32("general.alignment", 3)]), "alignment 3"),
    "alignment 2^31": (build([u32("general.alignment", 1 << 31)]), "alignment"),
    "alignment u64": (build([key("general.alignment", U64, struct.pack("<Q", 32))]), "not a uint32"),
    "alignment f32": (build([key("general.alignment", F32, struct.pack("<f", 32))]), "not a uint32"),
    "alignment string": (build([string("general.alignment", "32")]), "not a uint32"),
    "alignment array": (build([array("general.alignment", U32, 1, struct.pack("<I", 32))]), "not a uint32"),
    # 6 dimensions and types
    "0 dimensions": (build([ARCH], [tensor("w", [], n_dims=0)], ZEROS), "0 dimensions"),
    "5 dimensions": (build([ARCH], [tensor("w", [1] * 5)], ZEROS), "5 dimensions"),
    "2^32-1 dimensions": (build([ARCH], [tensor("w", [1], n_dims=0xFFFFFFFF)], ZEROS), "dimensions"),
    "dimension 0": (build([ARCH], [tensor("w", [4, 0])], ZEROS), "impossible dimensions"),
    "dimension 2^31": (build([ARCH], [tensor("w", [1 << 31])], ZEROS), "impossible dimensions"),
    "dimension 2^64-1": (build([ARCH], [tensor("w", [HUGE])], ZEROS), "impossible dimensions"),
    "product wraps to 4": (build([ARCH], [tensor("w", [4, 1 << 31, 1 << 31, 1])], ZEROS), "impossible dimensions"),
    "product wraps to 0": (build([ARCH], [tensor("w", [1 << 30] * 4)], ZEROS), "impossible dimensions"),
    "bytes wrap": (build([ARCH], [tensor("w", [1 << 30, 1 << 10], 28)], ZEROS), "truncated"),
    "row not whole blocks": (build([ARCH], [tensor("w", [33], 8)], ZEROS), "not whole Q8_0 blocks"),
    "removed type Q4_2": (build([ARCH], [tensor("w", [32], 4)], ZEROS), "unknown type 4 in tensor 'w'"),
    "type 2^32-1": (build([ARCH], [tensor("w", [32], 0xFFFFFFFF)], ZEROS), "unknown type"),
    # 7 places
    "offset wraps 2^64": (build([ARCH], [tensor("w", [4], offset=HUGE - 31)], ZEROS), "truncated"),
    "offset 2^63": (build([ARCH], [tensor("w", [4], offset=1 << 63)], ZEROS), "truncated"),
    "offset past the end": (build([ARCH], [tensor("w", [4], offset=4096)], ZEROS), "truncated"),
    "offset not aligned": (build([ARCH], [tensor("w", [4], offset=4)], ZEROS), "not aligned"),
    "data cut short": (build([ARCH], [tensor("w", [65])], ZEROS), "truncated"),
    "no data": (build([ARCH], [tensor("w", [4])]), "truncated"),
    "overlap": (build([ARCH], [tensor("a", [16]), tensor("b", [4], offset=32)], ZEROS), "overlap"),
    "same place": (build([ARCH], [tensor("a", [4]), tensor("b", [4])], ZEROS), "overlap"),
    "tensor twice": (build([ARCH], [tensor("a", [4]), tensor("a", [4], offset=32)], ZEROS), "twice"),
    "tensor name with NUL": (build([ARCH], [tensor("a\0", [4])], ZEROS), "empty or contains"),
    "tensor name empty": (build([ARCH], [tensor("", [4])], ZEROS), "empty or contains"),
    "tensor name of 64 bytes": (build([ARCH], [tensor("x" * 64, [4])], ZEROS), "claims 64 bytes"),
    "tensor name not UTF-8": (build([ARCH], [tensor(b"\x80", [4])], ZEROS), "not UTF-8"),
}
