"""Parts of a tokenizer: text is normalized, split and merged to tokens, and tokens are decoded to bytes."""
