// The formats that a kernel is built for: the bits of its define FORMATS, by ggml type id; 64 of them.
#pragma once
#include "fragment.cuh"

template <int F>
constexpr bool has = u64(FORMATS) >> F & 1;

// Of the formats, as the slots S<F> hold them: whether there are some of 256 inputs, others, super-blocks with minima or with a
// scale for 16 inputs, any of 256 inputs with a scale for 32 whose bytes do not count from 0; bytes of the largest slot.
struct FormatSet {
    bool super, other, minima, halves, middles;
    int bytes;
};

template <template <int> class S>
constexpr FormatSet format_set() {
    FormatSet all = {};
#define SP_DO(F)                                                                            \
    if (has<F>) {                                                                           \
        using P = Packing<F>;                                                               \
        constexpr bool whole = S<F>::tiles > 1;                                             \
        all.super |= whole, all.other |= !whole;                                            \
        all.minima |= P::super && P::minima, all.halves |= P::group == 16;                  \
        all.middles |= whole && P::group == 32 && (P::minima || P::counted);                \
        all.bytes = S<F>::bytes > all.bytes ? S<F>::bytes : all.bytes;                      \
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
