"""The commands of `sp bench`."""
