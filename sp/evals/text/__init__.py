"""Generated text that tasks are set in."""
