"""Products with packed weights: the layout on the device, one file per kernel, and the dispatch between them."""
