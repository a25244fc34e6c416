"""Generated text for tasks."""
