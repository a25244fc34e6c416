"""Plain numbers: a value a block."""
