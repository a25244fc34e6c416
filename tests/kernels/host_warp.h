// The warp of a device on the host, for test_decode_products.py: 32 lanes as coroutines that meet wherever lanes exchange
// registers, and what else a source needs of CUDA. Tensor core products are sums in double precision or in integers.
// HOST_LANES may be those of several warps, which are one block: they take turns, so all of them must meet equally often.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "host_switch.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __expf expf

struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, gridDim;
using std::max;
using std::min;

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class To, class From>
To bits_as(From from) { To to; static_assert(sizeof to == sizeof from); memcpy(&to, &from, sizeof to); return to; }
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline unsigned long long __float2ull_rn(float v) { return (unsigned long long)(std::nearbyint(double(v))); }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __float2int_rn(float v) { return int(std::nearbyint(v)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline unsigned permuted_bytes(unsigned a, unsigned b, unsigned selector) {
    unsigned char bytes[8];
    memcpy(bytes, &a, 4), memcpy(bytes + 4, &b, 4);
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> (4 * i) & 15, byte = bytes[nibble & 7];
        result |= (nibble & 8 ? byte & 128 ? 255u : 0u : byte) << (8 * i);
    }
    return result;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) { return permuted_bytes(a, b, selector & 0x7777); }

// Lanes.
#ifndef HOST_LANES
#define HOST_LANES 32
#endif
static StackPlace lanes[HOST_LANES], caller;
static int lane_now, lanes_done, meetings[HOST_LANES];
static bool done[HOST_LANES];
static uint32_t mail[2][HOST_LANES / 32][32][8];
typedef uint32_t Letters[32][8];
typedef void (*Work)(int lane, void* job);
static Work work;
static void* job_of_lanes;

inline void to_next_lane() {
    const int from = lane_now;
    const Dim3 mine = threadIdx;
    do lane_now = (lane_now + 1) % HOST_LANES;
    while (done[lane_now] && lane_now != from);
    if (lane_now != from) go(lanes[from], lanes[lane_now]);
    threadIdx = mine;
}
// What all lanes of a warp hand in, up to eight words each.
inline Letters& meet(const uint32_t* words, int count) {
    Letters& box = mail[meetings[lane_now]++ % 2][lane_now / 32];
    memcpy(box[lane_now % 32], words, 4 * count);
    to_next_lane();
    return box;
}
inline void lane_main() {
    work(lane_now, job_of_lanes);
    done[lane_now] = true;
    if (++lanes_done == HOST_LANES) go(lanes[lane_now], caller);
    to_next_lane();
}
inline void run_warp(Work todo, void* job) {
    constexpr int STACK = 1 << 18;
    static std::vector<char> stacks(HOST_LANES * STACK);
    work = todo, job_of_lanes = job, lane_now = lanes_done = 0;
    for (int i = 0; i < HOST_LANES; ++i) {
        begin_at(lanes[i], stacks.data() + i * STACK, STACK, lane_main);
        meetings[i] = 0, done[i] = false;
    }
    go(caller, lanes[0]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
    memcpy(&value, meet(words, sizeof(T) / 4)[lane_now % 32 ^ mask], sizeof(T));
    return value;
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
    const uint32_t word = bits_as<uint32_t>(value);
    return bits_as<T>(meet(&word, 1)[from % 32][0]);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned step) {
    const uint32_t word = bits_as<uint32_t>(value);
    const unsigned from = lane_now % 32 + step;
    Letters& all = meet(&word, 1);
    return from < 32 ? bits_as<T>(all[from][0]) : value;
}
inline void sincospif(float turns, float* sine, float* cosine) {
    *sine = float(std::sin(M_PI * turns)), *cosine = float(std::cos(M_PI * turns));
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    Letters& all = meet(&value, 1);
    unsigned most = 0;
    for (auto& words : all) most = max(most, words[0]);
    return most;
}
inline int __reduce_add_sync(unsigned, int value) {
    const uint32_t word = value;
    int sum = 0;
    for (auto& words : meet(&word, 1)) sum += int(words[0]);
    return sum;
}
inline unsigned __ballot_sync(unsigned, bool value) {
    const uint32_t word = value;
    Letters& all = meet(&word, 1);
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) bits |= all[i][0] << i;
    return bits;
}
inline void __syncwarp() { const uint32_t nothing = 0; meet(&nothing, 1); }
inline void __syncthreads() { __syncwarp(); }  // of all lanes, since they take turns
template <class T>
T __ldcg(const T* from) { return *from; }
