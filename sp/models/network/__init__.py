"""A model as a whole: its weights, the precision and the cost of its products, and embedding, layers and head."""
