// A block of a Hopper card on the host, for test_byte_attention_layout.py: its threads as coroutines, barriers, copies of boxes
// into swizzled shared memory and products of a warpgroup, each as the PTX ISA describes it; copies and products are done when
// they are started.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, gridDim;
using std::max;
using std::min;

template <class To, class From>
To bits_as(From from) { To to; static_assert(sizeof to == sizeof from); memcpy(&to, &from, sizeof to); return to; }
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline int __float2int_rn(float v) { return int(std::nearbyint(v)); }
inline float __fdiv_rn(float a, float b) { return a / b; }

// ---- threads of a block: who waits lets the others go on
static ucontext_t contexts[384], caller;
static int threads, now, ended;
static bool done[384];
static std::function<void()> kernel;

inline void to_next_thread() {
    const int from = now;
    do now = (now + 1) % threads;
    while (done[now] && now != from);
    threadIdx.x = unsigned(now);
    if (now != from) swapcontext(contexts + from, contexts + now);
    threadIdx.x = unsigned(now);
}
inline void thread_main() {
    kernel();
    done[now] = true;
    if (++ended == threads) setcontext(&caller);
    to_next_thread();
}
inline void run_block(int count, std::function<void()> todo) {
    constexpr int STACK = 1 << 16;
    static std::vector<char> stacks(384 * STACK);
    kernel = todo, threads = count, ended = now = 0, threadIdx.x = 0;
    for (int i = 0; i < count; ++i) {
        getcontext(contexts + i);
        contexts[i].uc_stack = {stacks.data() + i * STACK, 0, STACK}, contexts[i].uc_link = nullptr;
        makecontext(contexts + i, thread_main, 0);
        done[i] = false;
    }
    swapcontext(&caller, contexts);
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
    uint64_t mail[2][384][4];
};
static std::map<int, Meeting> meetings;
typedef uint64_t Letters[384][4];
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
T __shfl_sync(unsigned, T value, int from) { return exchanged(value, from % 32); }
inline bool __any_sync(unsigned, bool value) {
    const Letters& all = meet(warp_place(), 32, {value});
    return std::any_of(all, all + 32, [](const uint64_t (&words)[4]) { return words[0]; });
}
inline bool __all_sync(unsigned, bool value) { return !__any_sync(~0u, !value); }
inline void __syncwarp() { meet(warp_place(), 32); }
inline void __syncthreads() { meet(0, threads); }
inline void named_barrier(unsigned index, unsigned count) {
    if (count != 128) abort();
    meet(int(index), 128);
}
template <class T>
T atomicAdd(T* at, T value) { const T before = *at; *at += value; return before; }
inline void atomicMax(unsigned* at, unsigned value) { *at = max(*at, value); }

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
inline float half(unsigned bits) { return bits_as<_Float16>(uint16_t(bits)); }
inline unsigned half_bits(float value) { return bits_as<uint16_t>(_Float16(value)); }
inline unsigned bf16_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float f32_from_f16(uint16_t bits) { return half(bits); }
inline unsigned pack_f16(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
inline unsigned pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
inline unsigned pack_e4m3(float low, float high) { return to_e4m3(low) | to_e4m3(high) << 8; }
inline float exp2_fast(float x) { return std::exp2(x); }

// ---- shared memory, barriers and copies
alignas(1024) static unsigned char memory[228 * 1024];
inline unsigned __cvta_generic_to_shared(const void* pointer) { return unsigned(static_cast<const unsigned char*>(pointer) - memory); }
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
    if (inner != 128) abort();
    for (unsigned w = 0; w < map.box[3]; ++w)
        for (unsigned z = 0; z < map.box[2]; ++z)
            for (unsigned y = 0; y < map.box[1]; ++y, offset += inner) {
                const unsigned long long place[4] = {unsigned(at[0]), at[1] + y, at[2] + z, at[3] + w};
                const bool inside = place[1] < map.dims[1] && place[2] < map.dims[2] && place[3] < map.dims[3];
                const char* row = reinterpret_cast<const char*>(map.address) + place[0] * map.each;
                for (int i = 0; i < 3; ++i) row += place[i + 1] * map.strides[i];
                for (unsigned i = 0; i < inner; i += 16) {
                    const unsigned to = start + offset + i, swizzled = to ^ (to >> 3 & 0x70);
                    inside ? memcpy(memory + swizzled, row + i, 16) : memset(memory + swizzled, 0, 16);
                }
            }
    mbarriers.at(barrier).bytes -= int(offset);
    settle(mbarriers.at(barrier));
}
template <class M>
void tensor_load(void* target, const M* map, unsigned long long* barrier, int x, int y) { copy_box(target, map, barrier, {x, y}); }
template <class M>
void tensor_load(void* target, const M* map, unsigned long long* barrier, int x, int y, int z, int w) {
    copy_box(target, map, barrier, {x, y, z, w});
}

// ---- products of a warpgroup: 64 x 128 of 32 bytes each
template <class Sums>
void sums_ready(Sums&) {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int>
void wgmma_wait() {}
inline unsigned char at_descriptor(uint64_t descriptor, unsigned row, unsigned byte) {
    const unsigned start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1) abort();  // swizzle of 128 bytes
    const unsigned place = start + row / 8 * stride + row % 8 * 128 + byte;
    return memory[place ^ (place >> 3 & 0x70)];
}
template <class Sum, class Left, class Right>
void multiply(Letters& all, Left left, Right right) {
    for (int thread = 0; thread < 128; ++thread) {
        Sum* d = reinterpret_cast<Sum*>(all[thread][0]);
        for (int i = 0; i < 64; ++i) {
            const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            double sum = all[thread][3] ? double(d[i]) : 0;
            for (int k = 0; k < 32; ++k) sum += left(row, k) * right(all[thread][2], column, k);
            d[i] = Sum(sum);
        }
    }
}
inline double signed_byte(uint64_t descriptor, unsigned row, unsigned k) { return int8_t(at_descriptor(descriptor, row, k)); }
inline void wgmma_bytes(int (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
    meet(group_place(), 128, {uint64_t(d), a, b, accumulate}, [](Letters& all) {
        multiply<int>(all, [&](int row, int k) { return signed_byte(all[0][1], row, k); }, signed_byte);
    });
}
inline void wgmma_e4m3(float (&d)[64], const unsigned* a, uint64_t b, bool accumulate) {
    meet(group_place(), 128, {uint64_t(d), uint64_t(a), b, accumulate}, [](Letters& all) {
        const auto left = [&](int row, int k) {
            const int thread = row / 16 * 32 + row % 8 * 4 + k % 16 / 4, word = row % 16 / 8 + k / 16 * 2;
            return from_e4m3(reinterpret_cast<const unsigned*>(all[thread][1])[word] >> 8 * (k % 4) & 255);
        };
        multiply<float>(all, left, [](uint64_t from, int row, int k) { return from_e4m3(at_descriptor(from, row, k)); });
    });
}
