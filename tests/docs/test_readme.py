"""The first screen: a picture, the two commands, real weights before speed, and a caveat next to the speed."""

from __future__ import annotations

import json
import re

from pages import ROOT

from sp.studies.tables.page import PARTS

README = (ROOT / "README.md").read_text()
SAMPLE = ROOT / "results" / "intel-r-xeon-r-processor-2core" / "sample_ttft.jsonl"


def test_it_is_a_screen_and_not_a_book() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.encode()) <= 7 * 1024


def test_it_begins_with_a_picture_and_shows_real_weights_before_speed() -> None:
    assert README.splitlines()[2].startswith("![")
    parts = ["python3 -m venv", "| scorer | hard", "<!-- result:", "## What runs", "## Where next"]
    places = [README.index(part) for part in parts]
    assert places == sorted(places)


def test_it_has_two_commands_and_a_picture() -> None:
    assert len(re.findall(r"^python3 -m venv .*", README, re.M)) == 2
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 1
    assert (ROOT / pictures[0]).read_bytes().startswith(b"\x89PNG")


def test_the_caveat_follows_the_result() -> None:
    part = next(part for part in PARTS if part.begin in README)
    below = README.split(part.end)[1].strip().split("\n\n")[0]
    for word in ("Speed only", "random weights", "our own full prefill", "density"):
        assert word in below, word


def test_the_quickstart_shows_the_newest_run_of_its_document() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    records = [json.loads(line) for line in SAMPLE.read_text().splitlines()][-9:]
    full = records[0]["metrics"]["ttft_s"]
    for record in records:
        config, metrics = record["config"], record["metrics"]
        assert (
            f"| {config['scorer'] or 'none: full prefill'} "
            f"| {metrics['kept_tokens']:,} of {config['prompt_tokens']:,} "
            f"| {metrics['ttft_s']:.2f} | {full / metrics['ttft_s']:.1f}x "
            f"| {100 * metrics['needle_recall']:.0f} % | {'right' if metrics['right_answer'] else 'wrong'} |\n"
        ) in page
