// The formats that a kernel is built for: the bits of its define FORMATS, by ggml type id; 64 of them.
#pragma once
#include "fragment.cuh"

template <int F>
constexpr bool has = u64(FORMATS) >> F & 1;

// Of the formats: whether there are K-quants, others, K-quants with minima or with a scale for 16 inputs; bytes of ROWS rows of
// a span of the largest.
struct FormatSet {
    bool super, other, minima, halves;
    int bytes;
};

template <int ROWS>
constexpr FormatSet format_set() {
    FormatSet all = {};
#define SP_DO(F)                                                                            \
    if (has<F>) {                                                                           \
        all.super |= Packing<F>::super, all.other |= !Packing<F>::super;                    \
        all.minima |= Packing<F>::minima, all.halves |= Packing<F>::group == 16;            \
        all.bytes = Slot<F, ROWS>::bytes > all.bytes ? Slot<F, ROWS>::bytes : all.bytes;    \
    }
    SP_FOR_FORMAT(SP_DO)
#undef SP_DO
    return all;
}

// Whether the format `kind`, a number known at run time, is one with a scale for 16 inputs.
SP_DEVICE bool is_halved(int kind) {
#define SP_DO(F) (has<F> && Packing<F>::group == 16 && kind == F)
    return SP_ANY_SUPER(SP_DO);
#undef SP_DO
}
