// Selects outlier channels by the peaks that a product has computed: see find_loud.cuh.
//
//   peaks u32 (COLS), count u32, channels u32 (64), mask u16 (COLS / 16) as there
// Grid (1), 1024 threads. Define: COLS. Arches: 80+.
#include "find_loud.cuh"
#include "pdl.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    loud_channels(u32* peaks, u32* count, u32* channels, u16* mask) {
    pdl_launch_dependents();
    pdl_wait();
    find_loud(peaks, count, channels, mask);
}
