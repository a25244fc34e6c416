"""Pages in one self-contained file: escaped markup, a frame for light, dark and narrow screens, plots, heat maps."""
