"""Conversations that outlive the process: their file format, and the folder of these files."""
