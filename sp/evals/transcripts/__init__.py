"""Transcripts of agents: tool results of known content, and after each a question; the task `turns` makes them."""
