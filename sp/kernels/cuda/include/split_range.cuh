// Which keys a split of a long cache takes; the kernel that attends and the one that combines must agree.
#pragma once
#include "types.cuh"

constexpr int SPLIT_KEYS = 64;      // a split takes whole tiles of that many
constexpr int SPLIT_SHORTEST = 256;  // and at least this many keys, as long as there are any

struct SplitRange {
    i32 begin, end;
};

SP_DEVICE i32 split_span(i32 tokens, i32 splits) {
    const i32 span = max((tokens + splits - 1) / splits, SPLIT_SHORTEST);
    return (span + SPLIT_KEYS - 1) / SPLIT_KEYS * SPLIT_KEYS;
}

SP_DEVICE SplitRange split_range(i32 tokens, i32 split, i32 splits) {
    const i32 span = split_span(tokens, splits);
    return {split * span, min(split * span + span, tokens)};
}
