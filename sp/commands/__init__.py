"""Commands of the command line that are not about one run; `sp.cli` gathers them."""
