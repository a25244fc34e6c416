"""`sp train`: what learns."""
