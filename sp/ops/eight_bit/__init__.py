"""Products in eight bits: inputs rounded to int8 in groups, codes of weights as they are, sums in integers."""
