// Which keys a split of a long cache takes; attention_split.cu and attention_combine.cu must agree.
#pragma once
#include "types.cuh"

constexpr int SPLIT_KEYS = 64;  // a split takes whole tiles of that many, or of half as many

struct SplitRange {
    i32 first, span, tokens;  // first key any query sees, down to a whole tile; keys of a split; end of the last one

    // Of the last n of `tokens` tokens; no window if 0; `reach` as attention_split.cu has it.
    SP_DEVICE SplitRange(i32 tokens, i32 n, i32 window, const i32* reach, i32 splits) : tokens(tokens) {
        const i32 nearest = reach ? __ldcg(reach) : window ? max(0, tokens - n - window + 1) : 0;
        first = nearest / SPLIT_KEYS * SPLIT_KEYS;
        span = ((tokens - first + splits - 1) / splits + SPLIT_KEYS - 1) / SPLIT_KEYS * SPLIT_KEYS;
    }
    SP_DEVICE i32 begin(i32 split) const { return first + split * span; }
    SP_DEVICE i32 end(i32 split) const { return min(begin(split) + span, tokens); }
    SP_DEVICE i32 used() const { return (tokens - first + span - 1) / span; }  // splits that have keys
};
