// Blocks of a device on the host: a block's threads as coroutines, blocks one after the other, shared memory as static arrays,
// and threads that meet wherever those of a warp, of a warpgroup or of the block wait for each other.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "host_switch.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, gridDim;
using std::max;
using std::min;
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class To, class From>
To bits_as(From from) { To to; static_assert(sizeof to == sizeof from); memcpy(&to, &from, sizeof to); return to; }
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline int __float2int_rn(float v) { return int(std::nearbyint(v)); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
template <class T>
T __ldcs(const T* from) { return *from; }
template <class T>
T __ldcg(const T* from) { return *from; }
inline float __expf(float x) { return std::exp(x); }
inline void pdl_launch_dependents() {}
inline void pdl_wait() {}

// ---- threads of a block: who waits lets the others go on
constexpr int MOST = 1024, STACK = 1 << 16;
static StackPlace contexts[MOST], caller;
static int threads, now, ended;
static bool done[MOST];
static std::function<void()> kernel;

inline void to_next_thread() {
    const int from = now;
    do now = (now + 1) % threads;
    while (done[now] && now != from);
    threadIdx.x = unsigned(now);
    if (now != from) go(contexts[from], contexts[now]);
    threadIdx.x = unsigned(now);
}
inline void thread_main() {
    kernel();
    done[now] = true;
    if (++ended == threads) go(contexts[now], caller);
    to_next_thread();
}
inline void run_block(int count, std::function<void()> todo) {
    static char* stacks = static_cast<char*>(malloc(MOST * size_t(STACK)));
    kernel = todo, threads = count, ended = now = 0, threadIdx.x = 0;
    for (int i = 0; i < count; ++i) {
        begin_at(contexts[i], stacks + size_t(i) * STACK, STACK, thread_main);
        done[i] = false;
    }
    go(caller, contexts[0]);
}
inline void run_blocks(int blocks, int count, std::function<void()> todo) {
    for (int block = 0; block < blocks; ++block) blockIdx.x = unsigned(block), run_block(count, todo);
}
inline void patiently(const std::function<bool()>& ready) {
    for (int tries = 0; !ready(); ++tries) {
        if (tries > 1000000) abort();  // nobody will come
        to_next_thread();
    }
}

// ---- meetings: `place` is that of a group's threads, each hands in up to four words; what the last does, it does for all
struct Meeting {
    int came = 0, times = 0;
    uint64_t mail[2][MOST][4];
};
static std::map<int, Meeting> meetings;
typedef uint64_t Letters[MOST][4];
inline Letters& meet(int place, int size, std::vector<uint64_t> words = {}, std::function<void(Letters&)> last = {}) {
    Meeting& here = meetings[place];
    const int turn = here.times;
    Letters& box = here.mail[turn % 2];
    std::copy(words.begin(), words.end(), box[now % size]);
    if (++here.came == size) {
        if (last) last(box);
        here.came = 0, ++here.times;
    } else {
        patiently([&] { return here.times != turn; });
    }
    return box;
}
inline int warp_place() { return 100 + now / 32; }
inline int group_place() { return 200 + now / 128; }
template <class T>
T exchanged(T value, int from) { return bits_as<T>(uint32_t(meet(warp_place(), 32, {bits_as<uint32_t>(value)})[from][0])); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) { return exchanged(value, now % 32 ^ mask); }
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
    const int lane = now % 32;
    return exchanged(value, lane >= int(step) ? lane - int(step) : lane);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned step) {
    const int lane = now % 32;
    return exchanged(value, lane + int(step) < 32 ? lane + int(step) : lane);
}
template <class T>
T __shfl_sync(unsigned, T value, int from) { return exchanged(value, from % 32); }
inline bool __any_sync(unsigned, bool value) {
    const Letters& all = meet(warp_place(), 32, {value});
    return std::any_of(all, all + 32, [](const uint64_t (&words)[4]) { return words[0]; });
}
inline bool __all_sync(unsigned, bool value) { return !__any_sync(~0u, !value); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __ballot_sync(unsigned, bool value) {
    const Letters& all = meet(warp_place(), 32, {value});
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) bits |= unsigned(all[i][0]) << i;
    return bits;
}
inline void __syncwarp() { meet(warp_place(), 32); }
inline void __syncthreads() { meet(0, threads); }
inline void named_barrier(unsigned index, unsigned count) {
    if (count != 128) abort();
    meet(int(index), 128);
}
template <class T>
T atomicAdd(T* at, T value) { const T before = *at; *at += value; return before; }
inline void atomicMax(unsigned* at, unsigned value) { *at = max(*at, value); }
inline float half(unsigned bits) { return bits_as<_Float16>(uint16_t(bits)); }
inline float f32_from_f16(uint16_t bits) { return half(bits); }
alignas(1024) static unsigned char memory[228 * 1024];  // what a launch gives a block
inline unsigned __cvta_generic_to_shared(const void* pointer) { return unsigned(static_cast<const unsigned char*>(pointer) - memory); }
#define SHARED_MEMORY memory
#include "host_pairs.h"
