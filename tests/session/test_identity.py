"""The hash by which files of conversations are matched does not depend on what classes are called."""

from __future__ import annotations

import pytest

from sp.session.options import ConversationOptions, RunOptions
from sp.session.store import identity

FIRST = {  # hashes of the first version that wrote such files
    ("top_chunks", "auto"): "0fb56e29a45f2317f079fd70511bcf93",
    ("json", "tail"): "fe9a9284ba9eb76fb6de139f1e19470b",
    ("lines", "tail"): "d87c808f25ba073cd052f6b0d3b18ab6",
    ("segments", "auto"): "6533fcd55d85d1787ed3986279ecb2dd",
    ("sentence", "calibrated"): "6b053f78326f81dbf888e2a2e1a6685c",
}


@pytest.mark.parametrize(("selector", "scorer"), FIRST)
def test_files_of_the_first_version_are_matched(selector: str, scorer: str) -> None:
    options = RunOptions(selector=selector, scorer=scorer)
    assert identity("pair", options, ConversationOptions()) == FIRST[selector, scorer]
