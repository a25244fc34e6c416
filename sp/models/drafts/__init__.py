"""DFlash drafts: block-diffusion draft models for speculative decoding with a target."""
