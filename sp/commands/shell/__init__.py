"""Parser and help of the command line, and input and output of the terminal, for all commands."""
