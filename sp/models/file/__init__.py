"""What a file says of a model: its keys, its tensors, and what is refused."""
