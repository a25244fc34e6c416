"""One server for all tests of this folder that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import serving as tool

from sp.pipeline import Pipeline


@pytest.fixture(scope="session")
def pair() -> Pipeline:
    return tool.load()


@pytest.fixture(scope="session")
def server(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(pair) as running:
        yield running
