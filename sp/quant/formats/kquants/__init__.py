"""K-quants: 256 values in sub-blocks, whose scales are small integers under one fp16."""
