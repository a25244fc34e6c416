// Adds up the sums of an item of gemm_small_m_sm90.cu that several workers share: each stores its piece, one block adds
// them.
#pragma once
#include "few_sm90_products.cuh"

typedef f32 Sums[SUMS];  // of one weight of an item
constexpr int PIECE = 32 * SETS * SUMS;  // sums of a warp

// Sums lie there with all their bits turned round: 0, as every word is between launches, stands for a NaN that no
// instruction makes. So pieces need neither fences nor counters: the warp that adds them up reads them until they have
// arrived, and puts the zeros back.
SP_DEVICE void store_words(f32* to, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

SP_DEVICE uint4 load_words(const f32* from) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

SP_DEVICE bool has_come(uint4 v) { return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0; }

SP_DEVICE u32 turned(f32 v) { return ~__float_as_uint(v); }
SP_DEVICE f32 turned_back(u32 v) { return __uint_as_float(~v); }

SP_DEVICE void store_sums(f32* to, const Sums& acc, int lane) {
#pragma unroll
    for (int i = 0; i < SUMS; i += 4)
        store_words(to + i * 32 + 4 * lane,
                    make_uint4(turned(acc[i]), turned(acc[i + 1]), turned(acc[i + 2]), turned(acc[i + 3])));
}

// Which piece worker v's of item t is, for strip `strip` of 16 rows.
SP_DEVICE u32 piece_of(const Division& work, int slice, int t, int v, int strip) {
    return (slice * (work.items + work.workers) + t + v) * STRIPS + strip;
}

// The results of 16 rows and 8 tokens: a task adds them up. sum[m][i]: row g + 8 (i / 2), token 2 c + i % 2.
typedef f32 Part[SETS][4];
constexpr int PARTS = TOKENS / 8;
constexpr int WIDE = !STREAMED ? 1 : EPILOGUE == EPILOGUE_STORE ? PARTS : 2;  // parts of a task; the last one may have fewer
constexpr int STRIP_TASKS = (PARTS + WIDE - 1) / WIDE;
constexpr int WORDS = WIDE * SETS;  // of a lane, in a piece

// Adds up WIDE parts of a strip of item t from `part` on, slice by slice and in the order of the workers.
SP_DEVICE void gather(Part (&sum)[WIDE], const Division& work, const Item& item, int t, int supers, f32* partials, int strip,
                      int part, int lane) {
    // Lane i finds the workers that have the first and the last stage of the item in slice i.
    const int slices = gridDim.y, stages = lane < slices ? supers * (lane + 1) / slices - supers * lane / slices : 1;
    const int who = work.worker_of(item, 0, stages), until = work.worker_of(item, stages - 1, stages);
#pragma unroll
    for (int j = 0; j < WORDS; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j / SETS][j % SETS][i] = 0;
    constexpr int BATCH = 12 / WORDS;  // pieces under way at a time
    constexpr u32 NONE = 0xffffffffu;
    const auto from = [&](u32 place, int j) { return partials + i64(place + j % SETS * (SUMS * 8) + j / SETS * 32) * 4; };
    int slice = 0, v = __shfl_sync(0xffffffffu, who, 0), last = __shfl_sync(0xffffffffu, until, 0);
    while (slice < slices) {
        u32 place[BATCH];  // of the part in the pieces, in units of 16 bytes
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            place[b] = slice < slices ? piece_of(work, slice, t, v, strip) * (PIECE / 4) + part * 32 + lane : NONE;
            if (++v <= last) continue;
            ++slice;
            v = __shfl_sync(0xffffffffu, who, slice), last = __shfl_sync(0xffffffffu, until, slice);
        }
        uint4 word[BATCH][WORDS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int j = 0; j < WORDS; ++j) {
                word[b][j] = make_uint4(~0u, ~0u, ~0u, ~0u);
                if (place[b] != NONE && part + j / SETS < PARTS) word[b][j] = load_words(from(place[b], j));
            }
        for (bool come = false; !come;) {
            come = true;
#pragma unroll
            for (int b = 0; b < BATCH; ++b)
#pragma unroll
                for (int j = 0; j < WORDS; ++j)
                    if (!has_come(word[b][j])) {
                        come = false;
                        word[b][j] = load_words(from(place[b], j));
                    }
        }
        __syncwarp();
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (place[b] == NONE) continue;
#pragma unroll
            for (int j = 0; j < WORDS; ++j) {
                if (part + j / SETS >= PARTS) continue;
                f32(&into)[4] = sum[j / SETS][j % SETS];
                into[0] += turned_back(word[b][j].x), into[1] += turned_back(word[b][j].y);
                into[2] += turned_back(word[b][j].z), into[3] += turned_back(word[b][j].w);
                store_words(from(place[b], j), make_uint4(0, 0, 0, 0));
            }
        }
    }
}
