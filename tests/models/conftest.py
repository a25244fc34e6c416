"""Fixtures for the tests of models."""

from __future__ import annotations

from retriever_models import retrievers

__all__ = ["retrievers"]
