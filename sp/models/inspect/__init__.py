"""What is in a model file, what sp makes of it, and which cards hold it."""

from sp.models.inspect.file import inspect_file

__all__ = ["inspect_file"]
