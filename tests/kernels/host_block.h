// Blocks of a device on the host, for test_expert_kernels.py: a thread of the host for each of a block, blocks one after the
// other, shared memory as static arrays, and lanes that exchange registers through a mailbox of their warp.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
struct Place { unsigned x, y, z; };
static thread_local Place threadIdx, blockIdx;
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
inline float __int_as_float(unsigned v) { return __uint_as_float(v); }
inline float f32_from_f16(unsigned short bits) { _Float16 v; memcpy(&v, &bits, 2); return v; }
inline unsigned __cvta_generic_to_shared(const void*) { return 0; }

struct Warp {
    std::barrier<> meeting{32};
    unsigned mail[32];
};
static std::unique_ptr<std::barrier<>> block_meeting;
static std::unique_ptr<Warp[]> warps;
inline void __syncthreads() { block_meeting->arrive_and_wait(); }
template <class T>
T exchange(T value, unsigned from) {
    Warp& warp = warps[threadIdx.x / 32];
    memcpy(warp.mail + threadIdx.x % 32, &value, 4);
    warp.meeting.arrive_and_wait();
    memcpy(&value, warp.mail + from, 4);
    warp.meeting.arrive_and_wait();
    return value;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int step) { return exchange(value, threadIdx.x % 32 ^ step); }
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
    const unsigned lane = threadIdx.x % 32;
    return exchange(value, lane >= step ? lane - step : lane);
}
inline int atomicAdd(int* at, int value) { return std::atomic_ref<int>(*at).fetch_add(value); }

inline void run_blocks(int blocks, int threads, const std::function<void()>& kernel) {
    for (int block = 0; block < blocks; ++block) {
        block_meeting = std::make_unique<std::barrier<>>(threads);
        warps = std::make_unique<Warp[]>(threads / 32);
        std::vector<std::thread> all;
        for (int i = 0; i < threads; ++i)
            all.emplace_back([=, &kernel] {
                threadIdx = {unsigned(i), 0, 0}, blockIdx = {unsigned(block), 0, 0};
                kernel();
            });
        for (auto& one : all) one.join();
    }
}
