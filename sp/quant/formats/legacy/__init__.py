"""ggml's first formats, still called legacy quants: 32 codes, an fp16 scale and at most a minimum."""
