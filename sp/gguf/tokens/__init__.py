"""What a tokenizer is made of: special tokens found, text cut and merged, tokens turned back to bytes."""
