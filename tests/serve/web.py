"""Requests by one client for all tests: to make one reads the machine's certificates, which takes 20 ms."""

from __future__ import annotations

import httpx

_client = httpx.Client(verify=False, timeout=60)
get, post, options, request, stream = _client.get, _client.post, _client.options, _client.request, _client.stream
