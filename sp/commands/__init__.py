"""The commands of the command line, by subject; `sp.cli` lists the module of each."""
