"""The commands of the command line, one file each, or for those of one idea; `sp.cli` says where each stands."""
