"""Block formats, one file each."""
