"""Passes of tokens through a model: prompts, single tokens, trees, by layer, sparse."""
