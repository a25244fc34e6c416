"""Anthropic's Messages: requests, replies and routes."""
