"""Conversations that outlive the process: how they lie in files, and the folder of these."""
