"""What a turn of a long chat costs, by policy."""
