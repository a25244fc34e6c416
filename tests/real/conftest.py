"""Real weights for the tests of this folder, which are skipped where nobody has fetched them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp.hub import KNOWN, fetched
from sp.session import Loaded, load


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of SmolLM2-135M-Instruct in Q4_1, which `sp get smollm2-135m` brings."""
    path = fetched(KNOWN["smollm2-135m"])
    if path is None:
        pytest.skip("SmolLM2 is not here; sp get smollm2-135m")
    return path


@pytest.fixture(scope="session")
def loaded_smollm2(smollm2: Path) -> Loaded:
    """The same, loaded on the CPU."""
    return load(smollm2, device="cpu")
