"""Tasks with known answers, one file a family."""
