"""A model whose heads and columns several cards share."""
