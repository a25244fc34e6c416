"""A target that cards share, in runs: each card answers, and all of them the same."""
