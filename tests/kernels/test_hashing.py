"""The hash of a record follows what is compiled and how it is launched, and neither prose nor places."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sp
from sp.kernels import flatten, hashing, host_code
from sp.kernels.hashing import all_sources, bare, kernel_hash

PACKAGE = Path(sp.__file__).parent


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the package, and hashes of sources in it as it is."""
    package = tmp_path_factory.mktemp("house") / "sp"
    for room in ("kernels", "ops"):
        shutil.copytree(PACKAGE / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    return package, {}


@pytest.fixture
def copied(house: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch):
    """Edits a copy of the package, ``edit(name, old, new)``, and returns the hash of a source before and after."""
    package, unedited = house
    monkeypatch.setattr(flatten, "CUDA", package / "kernels" / "cuda")
    monkeypatch.setattr(hashing, "host_digest", lambda source: host_code.host_digest(source, package))

    def fresh() -> None:
        flatten.flatten.cache_clear()
        host_code.forget_host_code()

    def edit(source: str, name: str, old: str, new: str) -> tuple[str, str]:
        fresh()
        if source not in unedited:
            unedited[source] = kernel_hash([source])
            fresh()
        path = sorted(package.rglob(name))[-1]  # of two, the operation rather than its declaration
        text = path.read_text()
        assert old in text, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new, 1))
        try:
            return unedited[source], kernel_hash([source])
        finally:
            path.write_text(text)

    yield edit
    fresh()


FIRST = "from __future__ import annotations\n"


@pytest.mark.parametrize(
    ("source", "name", "old", "new"),
    [
        ("rms_norm.cu", "elementwise.py", "threads=", "early=True, threads="),  # the declaration
        ("rms_norm.cu", "norms.py", FIRST, FIRST + "MORE = 1\n"),  # the operation that launches it
        ("gemv.cu", "packed.py", FIRST, FIRST + "MORE = 1\n"),  # what that imports
        ("gemv.cu", "dispatch.py", FIRST, FIRST + "MORE = 1\n"),  # what chooses it
        ("gemv.cu", "dispatch_table.json", "gemv 1", "gemv 3"),
        ("gemv.cu", "launch.py", FIRST, FIRST + "MORE = 1\n"),
        ("rms_norm.cu", "rms_norm.cu", "__global__", "static int more;\n__global__"),
        ("gemv.cu", "types.cuh", "#pragma once\n", "#pragma once\n#define MORE 1\n"),
    ],
)
def test_an_edit_of_the_plan_or_the_kernel_changes_the_hash(copied, source, name, old, new):
    before, after = copied(source, name, old, new)
    assert before != after


@pytest.mark.parametrize(
    ("source", "name", "old", "new"),
    [
        ("rms_norm.cu", "norms.py", FIRST, FIRST + "# a comment\n"),
        ("rms_norm.cu", "norms.py", '"""', '"""More: '),
        ("rms_norm.cu", "norms.py", FIRST, FIRST + "import json\n"),
        ("rms_norm.cu", "dispatch.py", FIRST, FIRST + "MORE = 1\n"),  # plans other kernels
        ("gemv.cu", "dispatch_table.json", '"date": "', '"date": "1'),
        ("rms_norm.cu", "rms_norm.cu", 'extern "C"', '// a comment\n\n/* and\nanother */ extern "C"'),
        ("gemv.cu", "gemm_sm90.cu", "__global__", "static int more;\n__global__"),
    ],
)
def test_prose_and_other_kernels_leave_the_hash_alone(copied, source, name, old, new):
    before, after = copied(source, name, old, new)
    assert before == after


def test_code_may_move_to_another_file(tmp_path):
    package = tmp_path / "sp"
    (package / "kernels" / "specs").mkdir(parents=True)
    (package / "ops").mkdir()
    for name in host_code.RUNTIME:
        (package / name).write_text("x = 1\n")
    spec, op = package / "kernels" / "specs" / "a.py", package / "ops" / "a.py"
    spec.write_text('KERNEL = "a.cu"\n')
    op.write_text("from sp.kernels.specs.a import KERNEL\ndef run():\n    KERNEL.launch(1)\n")
    before = host_code.host_digest("a.cu", package)
    spec.rename(spec.with_name("b.py"))
    op.unlink()
    (package / "ops" / "c.py").write_text("from sp.kernels.specs.b import KERNEL\ndef run():\n    KERNEL.launch(1)\n")
    host_code.forget_host_code()
    assert host_code.host_digest("a.cu", package) == before
    (package / "ops" / "c.py").write_text("from sp.kernels.specs.b import KERNEL\nfrom sp.ops.d import M\nKERNEL = M\n")
    (package / "ops" / "d.py").write_text("M = 1\nN = 2\n")
    host_code.forget_host_code()
    apart = host_code.host_digest("a.cu", package)
    (package / "ops" / "c.py").write_text("from sp.kernels.specs.b import KERNEL\nN = 2\nM = 1\nKERNEL = M\n")
    (package / "ops" / "d.py").unlink()
    host_code.forget_host_code()
    assert host_code.host_digest("a.cu", package) == apart != before  # two files joined


def test_every_kernel_has_its_declaration_and_who_launches_it():
    for source in all_sources():
        rooms = {path.relative_to(PACKAGE).parts[0:2] for path in host_code.host_modules(source)}
        assert ("kernels", "specs") in rooms, source
        if source not in ("selftest.cu", "selftest_sm90.cu", "sequence.cu"):  # launched by tools and by models
            assert any(parts[0] == "ops" for parts in rooms), source


def test_host_code_of_neighbours():
    names = {path.name for path in host_code.host_modules("attention_sm90.cu")}
    assert {"attention_sm90.py", "attention.py", "launch.py"} <= names
    assert not {"dispatch.py", "delta_mixer.py", "sample.py"} & names
    assert host_code.host_modules("nothing.cu") == ()


def test_texts_that_look_like_comments_stay():
    assert bare('char a = \'"\'; // x\nauto b = "/* y */"; /* z */\n') == 'char a = \'"\';\nauto b = "/* y */";'
    assert bare("#if A\n  int  a;\n\n#endif\n") == "#if A\nint a;\n#endif"
    assert bare("a /* b\nc */ d") == "a d"
