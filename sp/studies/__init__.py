"""What is shown and kept of runs: tables, pictures, result files."""
