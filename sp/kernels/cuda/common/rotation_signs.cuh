// Random signs of values before a Hadamard rotation: without them it would gather what all values share in one. The twin is
// `sp.ops.byte_rows.rows.signs`.
#pragma once
#include "types.cuh"

// Bit i: the sign of value 32 word + i, of 1,024.
SP_DEVICE u32 sign_word(u32 word) {
    u32 hash = (word + 1) * 0x9E3779B1u;
    hash = (hash ^ hash >> 15) * 0x85EBCA77u;
    hash = (hash ^ hash >> 13) * 0xC2B2AE3Du;
    return hash ^ hash >> 16;
}
