"""A model whose heads and columns are sharded over several GPUs."""
