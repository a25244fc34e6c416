// The order of the strips that a group of warps of gemv.cu multiplies, and the copies that run ahead of the products.
#pragma once
#include "gemv_layout.cuh"


SP_DEVICE int strips_of(const Weight& w) { return (w.rows + 15) / 16; }

// Where the sums of a strip meet: warps that have come, and how many strips were finished in this buffer.
struct Meeting {
    int arrived, over;
};

// A group's way through its strips: every GRID * GROUPS-th unit (a strip, or the strips of gate and up), stage by
// stage.
struct Walk {
    int unit, step, total;  // step: units between two of this group
    int which, strip, stages, index;  // the weight and its strip; `index`: the warp's next stage

    SP_DEVICE bool valid() const { return unit < total; }

    SP_DEVICE void locate(const Weights& weights, int count) {
        which = EPILOGUE == EPILOGUE_SWIGLU ? which : 0, strip = unit;
        if constexpr (EPILOGUE == EPILOGUE_STORE) {
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const int here = strips_of(weights.list[i]);
                if (which == i && i + 1 < count && strip >= here) strip -= here, which = i + 1;
            }
        }
        int kind = weights.list[0].kind;
#pragma unroll
        for (int i = 1; i < 4; ++i) kind = which == i ? weights.list[i].kind : kind;
        bool whole = false;
#define SP_DO(F) whole |= has<F> && WHOLE<F> && kind == F;
        SP_FOR_FORMAT(SP_DO)
#undef SP_DO
        stages = whole ? K / 256 : K / 64;
    }

    SP_DEVICE void start(const Weights& weights, int count, int first, int stride, int warp) {
        unit = first, step = stride, index = warp, which = 0;
        total = strips_of(weights.list[0]);
        if constexpr (EPILOGUE == EPILOGUE_STORE) {
#pragma unroll
            for (int i = 1; i < 4; ++i) total += i < count ? strips_of(weights.list[i]) : 0;
        }
        if (valid()) locate(weights, count);
    }

    // Past the end of this strip: what is left of `index` counts from the next one.
    SP_DEVICE void next_strip(const Weights& weights, int count) {
        index -= stages;
        if (EPILOGUE == EPILOGUE_SWIGLU && which == 0) {
            which = 1;
        } else {
            which = 0;
            unit += step;
        }
        if (valid()) locate(weights, count);
    }
};

// The copies of a warp: STAGES - 1 stages ahead of its products.
struct Fetch {
    Walk at;
    int kind;
    Planes planes;

    SP_DEVICE void enter(const Weights& weights, int lane) {
        const Weight w = pick(weights, at.which);
        kind = w.kind;
        const i64 row_tiles = (w.rows + 63) / 64;
#define SP_DO(F)                                                                                              \
    if constexpr (has<F>)                                                                                     \
        if (kind == F)                                                                                        \
            planes = strip_of<Stage<F>>(planes_of<F>(w.data, row_tiles, SPLIT * K / 64), at.strip, SPLIT * K / 64, lane);
        SP_FOR_FORMAT(SP_DO)
#undef SP_DO
    }

    // To the strip that this warp's next stage lies in.
    SP_DEVICE void settle(const Weights& weights, int count, int lane) {
        while (at.valid() && at.index >= at.stages) {
            at.next_strip(weights, count);
            if (at.valid()) enter(weights, lane);
        }
    }

    SP_DEVICE void next(const Weights& weights, int count, u32 slot, int lane) {
        if (at.valid()) {
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (kind == F) fetch_stage<Stage<F>>(slot, planes, half_of_pair() * (K / 256) + at.index, lane);
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
            at.index += WARPS;
            settle(weights, count, lane);
        }
        cp_async_commit();
    }
};
