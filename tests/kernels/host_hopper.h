// What a Hopper card has beyond a block of threads, for `hosted` of host_code.py: barriers, copies of boxes into swizzled
// shared memory and products of a warpgroup, each as the PTX ISA describes it; copies and products are done when they are
// started.
#include "host_block.h"

// ---- numbers
inline double from_e4m3(unsigned byte) {
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    const double size = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
    return byte & 128 ? -size : size;
}
inline unsigned to_e4m3(float value) {
    unsigned best = 0;
    const double size = std::fabs(value);
    for (unsigned byte = 1; byte < 127; ++byte) {
        const double nearer = std::fabs(from_e4m3(byte) - size), before = std::fabs(from_e4m3(best) - size);
        if (nearer < before || (nearer == before && !(byte & 1))) best = byte;
    }
    return best | (std::signbit(value) ? 128 : 0);
}
inline unsigned half_bits(float value) { return bits_as<uint16_t>(_Float16(value)); }
inline unsigned bf16_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline uint16_t f16_from(float value) { return half_bits(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned pack_f16(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
inline unsigned pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
inline unsigned pack_e4m3(float low, float high) { return to_e4m3(low) | to_e4m3(high) << 8; }
inline float exp2_fast(float x) { return std::exp2(x); }
inline float saturated_fma(float x, float slope, float shift) {
    const float value = std::fma(x, slope, shift);
    return value > 0 ? std::fmin(value, 1.0f) : 0.0f;  // NaN is not greater
}
inline unsigned bytes_of_shares(unsigned shares) {
    const auto one = [](unsigned bits) { return unsigned(bits_as<uint16_t>(_Float16(double(half(bits)) * 128 + 1024))); };
    return one(shares & 65535) | one(shares >> 16) << 16;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const auto byte = [&](unsigned at) { return (at & 4 ? b : a) >> 8 * (at & 3) & 255; };
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= byte(selector >> 4 * i & 7) << 8 * i;
    return result;
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline unsigned long long __float2ull_rn(float v) { return (unsigned long long)std::nearbyint(double(v)); }
inline int __reduce_add_sync(unsigned, int value) {
    const Letters& all = meet(warp_place(), 32, {uint64_t(int64_t(value))});
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += int(int64_t(all[i][0]));
    return sum;
}
inline unsigned long long __shfl_xor_sync(unsigned, unsigned long long value, int mask) {
    return meet(warp_place(), 32, {value})[now % 32 ^ mask][0];
}

// ---- barriers and copies
inline void cp_async_16(unsigned target, const void* source, bool valid = true) {
    if (target % 16 || (valid && reinterpret_cast<uintptr_t>(source) % 16)) abort();
    valid ? memcpy(memory + target, source, 16) : memset(memory + target, 0, 16);
}
inline void prefetch_l2(const void*) {}
inline void cp_async_commit() {}
template <int>
void cp_async_wait() {}
struct Mbarrier { int arrivals, pending, bytes; unsigned phase; };
static std::map<const void*, Mbarrier> mbarriers;
inline void settle(Mbarrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) barrier.pending = barrier.arrivals, barrier.phase ^= 1;
}
inline void barrier_init(unsigned long long* at, unsigned arrivals) { mbarriers[at] = {int(arrivals), int(arrivals), 0, 0}; }
inline void barrier_arrive(unsigned long long* at) {
    Mbarrier& barrier = mbarriers.at(at);
    if (--barrier.pending < 0) abort();
    settle(barrier);
}
inline void barrier_expect(unsigned long long* at, unsigned bytes) {
    mbarriers.at(at).bytes += int(bytes);
    barrier_arrive(at);
}
inline bool barrier_try_wait(unsigned long long* at, unsigned phase) {
    patiently([&] { return mbarriers.at(at).phase != phase; });
    return true;
}
inline void barrier_init_fence() {}
inline void fence_async_proxy() {}
template <int>
void registers_raise() {}
template <int>
void registers_lower() {}

// A map as this test writes it: address, bytes of an element, four extents, three strides in bytes, four extents of a box.
struct Map {
    unsigned long long address, each, dims[4], strides[3], box[4];
};
template <class TensorMap>
void copy_box(void* target, const TensorMap* given, unsigned long long* barrier, std::vector<int> at) {
    const Map& map = *reinterpret_cast<const Map*>(given);
    at.resize(4);
    const unsigned start = __cvta_generic_to_shared(target);
    if (start % 1024) abort();
    unsigned offset = 0, inner = unsigned(map.box[0] * map.each);
    if (inner != 128 && inner != 64) abort();  // the swizzle is as wide as a row
    for (unsigned w = 0; w < map.box[3]; ++w)
        for (unsigned z = 0; z < map.box[2]; ++z)
            for (unsigned y = 0; y < map.box[1]; ++y, offset += inner) {
                const unsigned long long place[4] = {unsigned(at[0]), at[1] + y, at[2] + z, at[3] + w};
                const bool inside = place[1] < map.dims[1] && place[2] < map.dims[2] && place[3] < map.dims[3];
                const char* row = reinterpret_cast<const char*>(map.address) + place[0] * map.each;
                for (int i = 0; i < 3; ++i) row += place[i + 1] * map.strides[i];
                for (unsigned i = 0; i < inner; i += 16) {
                    const unsigned to = start + offset + i, swizzled = to ^ (to >> 3 & (inner - 16));
                    inside ? memcpy(memory + swizzled, row + i, 16) : memset(memory + swizzled, 0, 16);
                }
            }
    mbarriers.at(barrier).bytes -= int(offset);
    settle(mbarriers.at(barrier));
}
template <class M>
void tensor_load(void* target, const M* map, unsigned long long* barrier, int x, int y) { copy_box(target, map, barrier, {x, y}); }
template <class M>
void tensor_load(void* target, const M* map, unsigned long long* barrier, int x, int y, int z) {
    copy_box(target, map, barrier, {x, y, z});
}
template <class M>
void tensor_load(void* target, const M* map, unsigned long long* barrier, int x, int y, int z, int w) {
    copy_box(target, map, barrier, {x, y, z, w});
}

// ---- products of a warp: fragments as in mma.cuh
inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
    if (address % 16) abort();
    const Letters& all = meet(warp_place(), 32, {address});
    for (int i = 0, lane = now % 32; i < 4; ++i) memcpy(r + i, memory + all[8 * i + lane / 4][0] + 4 * (lane % 4), 4);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
    if (address % 16) abort();
    const Letters& all = meet(warp_place(), 32, {address});
    for (int i = 0, lane = now % 32; i < 4; ++i)
        for (int half = 0; half < 2; ++half)
            memcpy(reinterpret_cast<char*>(r + i) + 2 * half, memory + all[8 * i + lane % 4 * 2 + half][0] + 2 * (lane / 4), 2);
}
inline void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const uint64_t words[3] = {a[0] | uint64_t(a[1]) << 32, a[2] | uint64_t(a[3]) << 32, b0 | uint64_t(b1) << 32};
    const Letters& all = meet(warp_place(), 32, {words[0], words[1], words[2]});
    const int lane = now % 32;
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * (lane % 4) + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; ++k) {
            const int at = 16 * (k % 2), from = k / 2 % 4, later = k / 8;
            const uint64_t left = all[lane / 4 * 4 + from][later] >> (32 * (i / 2) + at);
            sum += double(half(unsigned(left & 65535))) * half(unsigned(all[column * 4 + from][2] >> (32 * later + at) & 65535));
        }
        d[i] = float(sum);
    }
}
inline void mma_s8(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const uint64_t words[3] = {a[0] | uint64_t(a[1]) << 32, a[2] | uint64_t(a[3]) << 32, b0 | uint64_t(b1) << 32};
    const Letters& all = meet(warp_place(), 32, {words[0], words[1], words[2]});
    const int lane = now % 32;
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 32; ++k) {
            const int from = k / 4 % 4, later = k / 16, at = 8 * (k % 4);
            const uint64_t left = all[lane / 4 * 4 + from][later] >> (32 * (i / 2) + at);
            d[i] += int(int8_t(left)) * int8_t(all[column * 4 + from][2] >> (32 * later + at));
        }
    }
}

// ---- products of a warpgroup: 64 rows, and 32 bytes of each
template <class Sums>
void sums_ready(Sums&) {}
template <class Sums>
void accumulators_ready(Sums&) {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int>
void wgmma_wait() {}
inline unsigned char at_descriptor(uint64_t descriptor, unsigned row, unsigned byte) {
    const unsigned start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    const unsigned width = descriptor >> 62 == 1 ? 128 : descriptor >> 62 == 2 ? 64 : 0;  // of a row and its swizzle
    if (!width) abort();
    const unsigned place = start + row / 8 * stride + row % 8 * width + byte;
    return memory[place ^ (place >> 3 & (width - 16))];
}
template <int Sums, class Sum, class Left, class Right>
void multiply(Letters& all, Left left, Right right, int depth = 32) {
    for (int thread = 0; thread < 128; ++thread) {
        Sum* d = reinterpret_cast<Sum*>(all[thread][0]);
        for (int i = 0; i < Sums; ++i) {
            const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            double sum = all[thread][3] ? double(d[i]) : 0;
            for (int k = 0; k < depth; ++k) sum += left(row, k) * right(all[thread][2], column, k);
            d[i] = Sum(sum);
        }
    }
}
inline double signed_byte(uint64_t descriptor, unsigned row, unsigned k) { return int8_t(at_descriptor(descriptor, row, k)); }
template <int Sums>
void wgmma_bytes(int (&d)[Sums], uint64_t a, uint64_t b, bool accumulate) {
    meet(group_place(), 128, {uint64_t(d), a, b, accumulate}, [](Letters& all) {
        multiply<Sums, int>(all, [&](int row, int k) { return signed_byte(all[0][1], row, k); }, signed_byte);
    });
}
inline double f16_at(uint64_t descriptor, unsigned row, unsigned k) {
    return half(at_descriptor(descriptor, row, 2 * k) | unsigned(at_descriptor(descriptor, row, 2 * k + 1)) << 8);
}
template <int Sums>
void wgmma_ss(float (&d)[Sums], uint64_t a, uint64_t b, bool accumulate) {
    meet(group_place(), 128, {uint64_t(d), a, b, accumulate}, [](Letters& all) {
        multiply<Sums, float>(all, [&](int row, int k) { return f16_at(all[0][1], row, k); }, f16_at, 16);
    });
}
// A in registers, fragments of 16 rows a warp; rows of B are those of the sum, in panels of 64 columns.
template <int Sums>
void wgmma_rs(float (&d)[Sums], const unsigned* a, uint64_t b) {
    meet(group_place(), 128, {uint64_t(d), uint64_t(a), b, true}, [](Letters& all) {
        const auto left = [&](int row, int k) {
            const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2, word = row % 16 / 8 + k / 8 * 2;
            return half(reinterpret_cast<const unsigned*>(all[thread][1])[word] >> 16 * (k % 2) & 65535);
        };
        const auto right = [](uint64_t from, int column, int k) {
            const unsigned start = (from & 0x3fff) << 4, leading = (from >> 16 & 0x3fff) << 4, stride = (from >> 32 & 0x3fff) << 4;
            const unsigned at = start + column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2;
            return half(*reinterpret_cast<const uint16_t*>(memory + (at ^ (at >> 3 & 0x70))));
        };
        multiply<Sums, float>(all, left, right, 16);
    });
}
template <int Sums>
void wgmma_e4m3(float (&d)[Sums], const unsigned* a, uint64_t b) {
    meet(group_place(), 128, {uint64_t(d), uint64_t(a), b, true}, [](Letters& all) {
        const auto left = [&](int row, int k) {
            const int thread = row / 16 * 32 + row % 8 * 4 + k % 16 / 4, word = row % 16 / 8 + k / 16 * 2;
            return from_e4m3(reinterpret_cast<const unsigned*>(all[thread][1])[word] >> 8 * (k % 4) & 255);
        };
        multiply<Sums, float>(all, left, [](uint64_t from, int row, int k) { return from_e4m3(at_descriptor(from, row, k)); });
    });
}
