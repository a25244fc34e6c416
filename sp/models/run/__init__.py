"""Executors: the order in which tokens pass the steps of layers, on which GPUs, recorded or not."""
