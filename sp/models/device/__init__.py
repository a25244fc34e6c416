"""Models on the device: packing, upload, parts that leave and come back."""
