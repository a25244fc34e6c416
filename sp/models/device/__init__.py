"""Models on the device: loading, packing, upload, and parts that are offloaded and onloaded."""
