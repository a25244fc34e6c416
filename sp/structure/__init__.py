"""What text is made of, in bytes: lines and the blocks round them, JSON values, prose. All linear in its size."""

from sp.structure.blocks import line_starts, nested_blocks
from sp.structure.json_values import JsonValue, json_values
from sp.structure.prose import is_prose
from sp.structure.quoted import Unquoted, unquote

__all__ = ["JsonValue", "Unquoted", "is_prose", "json_values", "line_starts", "nested_blocks", "unquote"]
