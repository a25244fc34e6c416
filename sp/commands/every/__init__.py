"""What every command has: plugins, and options in groups."""
