"""A model as a whole: its weights, what its products are made in, what it costs, and embed, layer and head."""
