"""Make the pictures of `docs/pictures` anew: `PYTHONPATH=tests python tests/browser/pictures.py docs/pictures`.

On a quiet machine, for the pages show times.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import serving
from PIL import Image
from test_browser import shortened_chat

from sp.session import RunOptions
from sp.studies.pages.study_page import Section, study_page
from sp.studies.sample import sample
from sp.studies.sweep.comparable import comparable, provenance
from sp.studies.sweep.store import read_results

HERE = Path(__file__).parent
RECORDS = HERE.parents[1] / "results" / "nvidia-h200" / "study"
PICTURES = {
    "run-desk-light": "run", "run-phone-dark": "run-phone", "tokens-desk-dark": "tokens", "report-desk-light": "report",
    "serve-desk-light": "serve", "front-desk-light": "front", "front-phone-dark": "front-phone",
}  # fmt: skip
COLOURS = 160


def asked(folder: Path, server: str) -> list[dict[str, Any]]:
    """Pages, and what is pressed in them before a picture is taken."""
    run = folder / "run" / "report.html"
    subprocess.run([sys.executable, "-m", "sp", "run", "--out", str(run.parent)], check=True)
    results = read_results(sorted(RECORDS.glob("*.jsonl.gz"))).checked()
    title, group = list(comparable(results).items())[1]
    report = folder / "report.html"
    report.write_text(study_page("Report", [Section(title, group.rows)], provenance(results)))
    document, example = sample()
    ask = [
        {"do": "click", "at": "#only"},
        {"do": "fill", "at": "#document", "text": document},
        {"do": "fill", "at": "#question", "text": example.question},
        {"do": "click", "at": "#ask"},
        {"do": "wait", "at": ".times", "seconds": 300},
    ]
    jump = [{"do": "click", "at": "a[href='#needle-1']"}]
    front = folder / "front.html"
    front.write_text(shortened_chat())
    return [
        {"name": "run", "url": run.as_uri(), "looks": ["desk light", "phone dark"]},
        {"name": "tokens", "url": run.as_uri(), "looks": ["desk dark"], "steps": jump},
        {"name": "report", "url": report.as_uri(), "looks": ["desk light"]},
        {"name": "serve", "url": f"{server}/", "looks": ["desk light"], "steps": ask},
        {"name": "front", "url": front.as_uri(), "looks": ["desk light", "phone dark"]},
    ]


def main(out: Path) -> None:
    """Write the pictures into a folder, in so few colours that none has 150 KB."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made, serving.serving(
        serving.load(), limits=None, options=RunOptions(keep_ratio=0.1, max_new_tokens=24)
    ) as server:  # fmt: skip
        folder = Path(made)
        told = {"chromium": shutil.which("chromium"), "pictures": made, "pages": asked(folder, server.url)}
        (folder / "asked.json").write_text(json.dumps(told))
        subprocess.run(
            ["node", str(HERE / "look.mjs"), str(folder / "asked.json")], check=True, stdout=subprocess.DEVNULL
        )
        for name, called in PICTURES.items():
            with Image.open(folder / f"{name}.png") as picture:
                few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            few.save(out / f"{called}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
