"""Products with packed weights: the layout a device holds, one file a kernel, and which of them takes a product."""
