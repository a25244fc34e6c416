"""Models on the device: loading, packing, upload, parts that leave and come back."""
