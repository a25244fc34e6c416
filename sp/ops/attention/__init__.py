"""Attention over paged keys and values, dense and masked, with its prologue and epilogue."""
