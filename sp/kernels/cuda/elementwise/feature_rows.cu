// Copies outputs of a model's layers for a speculator that reads them.
//
//   store_features  features[t, column + j] = x[t, j], rounded to bf16
//   pick_features   for i < kept: y[i] = features[path[i]] and y_positions[i] = positions[path[i]]; 0 for the other rows
//
// Layouts: x f32 (tokens, hidden); features bf16 (tokens or nodes, width); y bf16 (rows, width); positions i64 (nodes,);
//   path i32 (rows or more,), the first *kept of them below nodes; kept i32 (1,); y_positions i64 (rows,).
//   hidden, width and column are multiples of 8.
// Launch: grid (ceil(hidden or width / 8 / 128), rows), 128 threads, 8 values each. sm_80 and newer. Bound by memory.
#include "pdl.cuh"
#include "mma.cuh"

extern "C" __global__ void __launch_bounds__(128)
    store_features(const f32* x, u16* features, i32 hidden, i32 width, i32 column) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 at = (blockIdx.x * 128 + threadIdx.x) * 8;
    if (at >= hidden) return;
    const float4* const from = reinterpret_cast<const float4*>(x + i64(blockIdx.y) * hidden + at);
    const float4 low = from[0], high = from[1];
    *reinterpret_cast<uint4*>(features + i64(blockIdx.y) * width + column + at) =
        make_uint4(pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y), pack_bf16(high.z, high.w));
}

extern "C" __global__ void __launch_bounds__(128)
    pick_features(const u16* features, const i64* positions, const i32* path, const i32* kept, u16* y, i64* y_positions,
                  i32 width) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 row = blockIdx.y, at = (blockIdx.x * 128 + threadIdx.x) * 8;
    const bool real = row < *kept;
    const i32 node = real ? path[row] : 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) y_positions[row] = real ? positions[node] : 0;
    if (at >= width) return;
    const uint4 value = real ? *reinterpret_cast<const uint4*>(features + i64(node) * width + at) : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(y + i64(row) * width + at) = value;
}
