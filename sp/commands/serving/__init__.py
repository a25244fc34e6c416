"""`sp serve`: its options, and the server they come to."""
