"""Tasks with known answers, one file for each family."""
