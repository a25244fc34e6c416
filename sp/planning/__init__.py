"""Estimate where a model runs, in how much memory and how fast, by file headers and data sheets; nothing is loaded."""
