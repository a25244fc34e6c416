// What the functions do on the host that are made of PTX; test_decode_products.py puts them in their place.
inline double from_bf16(u32 bits) { return __uint_as_float(bits << 16); }
inline double from_f16(u32 bits) { return double(bits_as<_Float16>(u16(bits))); }
inline u32 to_f16(double value) { return bits_as<u16>(_Float16(value)); }
inline u32 to_bf16(double value) {
    const u32 down = __float_as_uint(float(value)) & 0xffff0000u, up = down + 0x10000u;
    const double below = std::fabs(value - __uint_as_float(down)), above = std::fabs(__uint_as_float(up) - value);
    return (below < above || (below == above && !(down >> 16 & 1)) ? down : up) >> 16;
}
inline u16 bf16_from(f32 value) { return to_bf16(value); }
inline u32 pack_bf16(f32 low, f32 high) { return to_bf16(low) | to_bf16(high) << 16; }
inline f32 f32_from_f16(u16 bits) { return from_f16(bits); }
inline u32 pack_f16(f32 low, f32 high) { return to_f16(low) | to_f16(high) << 16; }
inline u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    const auto one = [&](int at) { return to_bf16(from_bf16(a >> at & 65535) * from_bf16(b >> at & 65535) + from_bf16(c >> at & 65535)); };
    return one(0) | one(16) << 16;
}
inline u32 fma_f16x2(u32 a, u32 b, u32 c) {
    const auto one = [&](int at) { return to_f16(from_f16(a >> at) * from_f16(b >> at) + from_f16(c >> at)); };
    return one(0) | one(16) << 16;
}
inline u32 mul_f16x2(u32 a, u32 b) { return fma_f16x2(a, b, 0x80008000u); }
inline u32 masked_or(u32 x, u32 mask, u32 bits) { return (x & mask) | bits; }
inline u32 product_plus(u32 a, u32 b, u32 c) { return a * b + c; }
inline u16 f16_from(f32 value) { return to_f16(value); }
inline void pdl_launch_dependents() {}
inline void pdl_wait() {}
inline u32 permute(u32 a, u32 b, u32 selector) { return permuted_bytes(a, b, selector); }

extern u8 shared[];
#define SHARED_MEMORY shared
#include "host_pairs.h"
inline u32 shared_address(const void* pointer) { return u32(static_cast<const u8*>(pointer) - shared); }
inline void cp_async_16(u32 target, const void* source, bool valid = true) {
    if (target % 16 || (valid && reinterpret_cast<uintptr_t>(source) % 16)) abort();
    valid ? memcpy(shared + target, source, 16) : memset(shared + target, 0, 16);
}
inline void cp_async_commit() {}
template <int Pending>
void cp_async_wait() {}
inline f32 exp2_fast(f32 x) { return std::exp2(x); }
inline void ldmatrix_x4(u32 (&r)[4], u32 address) {
    if (address % 16) abort();
    const int lane = lane_now % 32;
    Letters& all = meet(&address, 1);
    for (int i = 0; i < 4; ++i) memcpy(r + i, shared + all[8 * i + lane / 4][0] + 4 * (lane % 4), 4);
}
inline void input_fragments(u32 (&b)[4], u32 address) { ldmatrix_x4(b, address); }
template <int T>
uint4 input_pair(u32 address, bool held) {
    uint4 v = {0x7fc07fc0u, 0x7fc07fc0u, 0x7fc07fc0u, 0x7fc07fc0u};
    if (held) memcpy(&v, shared + address, 16);
    return v;
}

// d += a b, with `Bytes` of a value; fragments as in mma.cuh.
template <int Bytes, class D, class Value>
void multiply_fragments(D (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Value value) {
    constexpr int each = 4 / Bytes;
    const int lane = lane_now % 32;
    const u32 words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    Letters& all = meet(words, 6);
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * (lane % 4) + i % 2;
        double sum = d[i];
        for (int k = 0; k < 8 * each; ++k) {
            const int c = k / each % 4, half = k / (4 * each), at = 8 * Bytes * (k % each);
            sum += value(all[lane / 4 * 4 + c][i / 2 + 2 * half] >> at, 0) * value(all[column * 4 + c][4 + half] >> at, 1);
        }
        d[i] = D(sum);
    }
}
inline void multiply_add(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_fragments<2>(d, a, b0, b1, [](u32 bits, int) { return from_bf16(bits & 65535); });
}
inline void mma_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_fragments<2>(d, a, b0, b1, [](u32 bits, int) { return from_f16(bits); });
}
template <bool Signed>
void multiply_bytes(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_fragments<1>(d, a, b0, b1, [](u32 bits, int b) { return Signed || b ? double(i8(bits)) : double(u8(bits)); });
}
