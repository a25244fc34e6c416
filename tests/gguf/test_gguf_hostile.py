"""No file, however damaged or hostile, brings anything but a GGUFError, fast and in little memory."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from edits import EDGES, edited, refusal
from hostile_files import HOSTILE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_gguf import STRING, U32, array, build, key, string, tensor, text, u32

from sp.errors import GGUFError
from sp.gguf import GGUFFile, Tokenizer, chat_template, render_chat
from sp.planning.inspect import inspect_file

VALID = build(
    [
        string("general.architecture", "qwen3"),
        u32("general.alignment", 32),
        u32("qwen3.block_count", 1),
        array("qwen3.attention.head_count_kv", U32, 2, struct.pack("<2I", 1, 2)),
        key("tokenizer.ggml.add_bos_token", 7, b"\0"),
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", "qwen2"),
        array("tokenizer.ggml.tokens", STRING, 5, b"".join(map(text, ("a", "b", "ab", "Ġ", "<|im_end|>")))),
        array("tokenizer.ggml.token_type", 5, 5, struct.pack("<5i", 1, 1, 1, 1, 3)),
        array("tokenizer.ggml.merges", STRING, 1, text("a b")),
        u32("tokenizer.ggml.eos_token_id", 4),
        string("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}"),
    ],
    [tensor("token_embd.weight", [32, 5]), tensor("q", [32, 2], 8, 640), tensor("odd", [256], 41, 736)],
    bytes(736 + 36),
)
HEADER_BYTES = VALID.index(b"odd") + 3 + 4 + 8 + 4 + 8


def read_all(path: Path) -> None:
    """Use everything a file offers."""
    with GGUFFile.open(path) as file:
        for name in file.metadata:
            assert file.metadata[name] is not None
        for info in file.tensors.values():
            assert 0 <= info.offset <= info.offset + info.nbytes <= file.nbytes
            refused = refusal(lambda name=info.name: file.weight(name))
            assert refused is None or "unsupported type" in refused
            if refused is None:
                assert file.weight(info.name).data.nbytes == info.nbytes
        refusal(lambda: Tokenizer.from_gguf(file).encode("ab"))
        template = chat_template(file)
        if template is not None:
            render_chat(template, [{"role": "user", "content": "hi"}])


def refuse_or_read(path: Path, content: bytes) -> bool:
    """Return True if `content` is refused; if not, it must be usable."""
    path.write_bytes(content)
    message = refusal(lambda: read_all(path))
    assert message is None or "\n" not in message
    return message is not None


def test_the_valid_file_is_read(tmp_path: Path) -> None:
    assert not refuse_or_read(tmp_path / "m.gguf", VALID)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_say_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message) as caught:
        read_all(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert line.isprintable(), line
    assert len(line) < len(str(path)) + 400
    assert re.search(r"; .*(download|give|convert|newer)", line), "no advice"


def test_hostile_files_cost_less_than_a_second_and_256_mb(tmp_path: Path) -> None:
    for index, (content, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{index:03d}.gguf").write_bytes(content)
    worst = tmp_path / "999.gguf"  # sound, and as large as the limits let a header be
    worst.write_bytes(build([array("tokens", STRING, 1 << 20, text("x" * 36) * (1 << 20))]))
    code = """
import json, resource, sys, time
from pathlib import Path
from sp.errors import GGUFError
from sp.gguf import GGUFFile
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
times = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    start = time.process_time()
    try:
        with GGUFFile.open(path) as file:
            list(file.metadata.values())
        outcome = "read"
    except GGUFError:
        outcome = "refused"
    times[path.name] = (outcome, time.process_time() - start)
print(json.dumps(times))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == len(HOSTILE) + 1
    assert outcomes.pop(worst.name)[0] == "read"
    assert {outcome for outcome, _ in outcomes.values()} == {"refused"}
    slowest = max(outcomes.values(), key=lambda pair: pair[1])
    assert slowest[1] < 1.0, outcomes


def test_truncation_at_every_byte_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for size in range(HEADER_BYTES):
        assert refuse_or_read(path, VALID[:size]), size


def test_every_byte_of_the_header_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    refused = 0
    for at in range(HEADER_BYTES):
        for value in {0xFF, VALID[at] ^ 1} - {VALID[at]}:
            refused += refuse_or_read(path, VALID[:at] + bytes([value]) + VALID[at + 1 :])
    assert refused > HEADER_BYTES / 2  # most of them matter


edits = st.one_of(
    st.tuples(st.just("u64"), st.integers(0, HEADER_BYTES - 8), st.sampled_from(EDGES)),
    st.tuples(st.just("u32"), st.integers(0, HEADER_BYTES - 4), st.sampled_from([e for e in EDGES if e < 1 << 32])),
    st.tuples(st.just("bit"), st.integers(0, 8 * HEADER_BYTES - 1), st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, len(VALID)), st.integers(1, 64)),
    st.tuples(st.just("copy"), st.integers(0, HEADER_BYTES), st.integers(0, HEADER_BYTES)),
    st.tuples(st.just("noise"), st.integers(0, HEADER_BYTES), st.binary(min_size=1, max_size=24)),
)


@settings(max_examples=240, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(edits, min_size=1, max_size=4))
def test_mutations(tmp_path: Path, changes: list[tuple[str, int, int | bytes]]) -> None:
    content = VALID
    for change in changes:
        content = edited(content, change)
    refuse_or_read(tmp_path / "m.gguf", content)


@settings(max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(edits, min_size=1, max_size=2))
def test_mutations_inspected(tmp_path: Path, changes: list[tuple[str, int, int | bytes]]) -> None:
    content = VALID
    for change in changes:
        content = edited(content, change)
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try:
        info = inspect_file(path)
    except GGUFError:
        return
    assert json.loads(json.dumps(info, allow_nan=False)) == info


@settings(max_examples=90, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_noise_after_a_sound_preamble(tmp_path: Path, noise: bytes) -> None:
    refuse_or_read(tmp_path / "m.gguf", build(n_keys=2, n_tensors=1) + noise)


def test_names_are_not_paths(tmp_path: Path) -> None:
    """A name like a path is only a name: it is listed, and nothing is opened or written because of it."""
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [tensor("../../etc/passwd", [4])], bytes(32)))
    with GGUFFile.open(path) as file:
        assert file.weight("../../etc/passwd").shape == (4,)
    assert list(tmp_path.iterdir()) == [path]


def test_paths_that_are_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="is a directory; give"):
        GGUFFile.open(tmp_path)
    with pytest.raises(GGUFError, match=r"no such file; check"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match=r"cannot be opened"):
        GGUFFile.open(tmp_path / "with\0nul.gguf")
    with pytest.raises(GGUFError, match=r"cannot be opened"):
        GGUFFile.open(tmp_path / ("x" * 300 + ".gguf"))
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFFile.open("/dev/zero")


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root, which may run the tests, reads whatever its mode
    with pytest.raises(GGUFError, match=r"cannot be opened \(Permission denied\)"):
        GGUFFile.open(tmp_path / "m.gguf")


def test_file_that_shrinks_while_its_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(VALID)
    monkeypatch.setattr(os, "pread", lambda fd, n, at: VALID[at : min(at + n, 100)])
    with pytest.raises(GGUFError, match="shrank to 100 bytes"):
        GGUFFile.open(path)
