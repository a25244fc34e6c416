// Which keys a split of a long cache takes; attention_decode.cu, attention_split.cu and attention_combine.cu must agree.
#pragma once
#include "types.cuh"

constexpr int SPLIT_KEYS = 64;  // a split takes whole tiles of that many, or of half as many

#ifndef RECENT
#define RECENT 0
#endif

// With RECENT: first of the stored tokens that each of the last n sees exactly, in a ring of 128 of them.
SP_DEVICE i32 near_of(i32 stored, i32 n) { return max(0, stored - n - 64); }

struct SplitRange {
    i32 first, span, tokens;  // first key any query sees, down to a whole tile; keys of a split; end of the last one

    // Of the last n of `stored` tokens; no window if 0; `reach` as attention_split.cu has it. With RECENT keys end before
    // near_of(stored, n), if there are any.
    SP_DEVICE SplitRange(i32 stored, i32 n, i32 window, const i32* reach, i32 splits)
        : tokens(RECENT ? near_of(stored, n) : stored) {
        const i32 nearest = reach ? __ldcg(reach) : window ? max(0, stored - n - window + 1) : 0;
        first = nearest / SPLIT_KEYS * SPLIT_KEYS;
        const i32 keys = RECENT ? max(tokens - first, 1) : tokens - first;
        span = ((keys + splits - 1) / splits + SPLIT_KEYS - 1) / SPLIT_KEYS * SPLIT_KEYS;
    }
    SP_DEVICE i32 begin(i32 split) const { return first + split * span; }
    SP_DEVICE i32 end(i32 split) const { return min(begin(split) + span, tokens); }
    SP_DEVICE i32 used() const {  // splits that have keys
        const i32 splits = (tokens - first + span - 1) / span;
        return RECENT ? max(splits, 0) : splits;
    }
};
