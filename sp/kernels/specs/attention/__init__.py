"""Specs of attention, its prologue and its epilogue."""
