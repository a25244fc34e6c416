"""DFlash draft models, each for a target of its own."""
