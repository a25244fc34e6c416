// Pairs of f16 in a word, and what host_code.py puts in place of statements of PTX that reach shared memory, which begins at
// SHARED_MEMORY: the same for host_warp.h and host_block.h.
#pragma once
template <class Made>
unsigned each_f16(Made made) {
    const auto one = [&](int at) { return unsigned(bits_as<uint16_t>(_Float16(made(at)))); };
    return one(0) | one(16) << 16;
}
inline double f16_of(unsigned word, int at) { return double(bits_as<_Float16>(uint16_t(word >> at))); }
inline unsigned h2_add(unsigned a, unsigned b) { return each_f16([&](int at) { return f16_of(a, at) + f16_of(b, at); }); }
inline unsigned h2_sub(unsigned a, unsigned b) { return each_f16([&](int at) { return f16_of(a, at) - f16_of(b, at); }); }
inline unsigned h2_mul(unsigned a, unsigned b) { return each_f16([&](int at) { return f16_of(a, at) * f16_of(b, at); }); }
inline unsigned h2_fma(unsigned a, unsigned b, unsigned c) {
    return each_f16([&](int at) { return f16_of(a, at) * f16_of(b, at) + f16_of(c, at); });
}
inline unsigned masked(unsigned w, unsigned mask, unsigned bits) { return (w & mask) | bits; }
inline unsigned half_twice(unsigned word, int half) { return (half ? word >> 16 : word & 0xffffu) * 0x00010001u; }

inline void on_words(unsigned at, unsigned bytes) {
    if (at % bytes) abort();
}
inline unsigned word_at(unsigned at) {
    unsigned found;
    on_words(at, 4), memcpy(&found, SHARED_MEMORY + at, 4);
    return found;
}
inline void words_at(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned at) {
    on_words(at, 16), a = word_at(at), b = word_at(at + 4), c = word_at(at + 8), d = word_at(at + 12);
}
inline void put_words(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned words[4] = {a, b, c, d};
    on_words(at, 16), memcpy(SHARED_MEMORY + at, words, 16);
}
inline void copy_some(unsigned target, const void* source, unsigned bytes, unsigned valid) {
    if (target % bytes || (valid && reinterpret_cast<uintptr_t>(source) % bytes) || valid > bytes) abort();
    memset(SHARED_MEMORY + target, 0, bytes), memcpy(SHARED_MEMORY + target, source, valid);
}
