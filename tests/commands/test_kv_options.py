"""`--kv` and `--keys` take the names of all formats, wherever they are options, and refuse others in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import commands, invoke

from sp import cli
from sp.commands.shell.parser import Command
from sp.errors import ConfigError
from sp.models.cache.kv_type import NAMES, KVType
from sp.session import ConversationOptions, RunOptions
from sp.session.loaded import embedded
from sp.studies.sweep.sweep import Sweep, config_hash, load_sweep

PEER = "bench llama-cpp"  # whose --kv is as llama.cpp names types
TAKING = {
    " ".join(words): command
    for words, command in commands().items()
    if any(entry.kind is KVType for entry in command.options)
}
PAIRS = ("k=q8_0,v=q4_0", "k=k5,v=v4", "k=k4,v=v4", "k=f16,v=v4")
GIVEN = {"eval file": ["questions.jsonl"]}  # what commands cannot do without
WRONG = {
    "q4": "is 'q4'; did you mean 'q4_0'? Known: 4bit, 5bit, f16, f32, q4_0, q5_0, q5_1, q8_0",
    "v4": ": v4 stores values only; pass 5bit, or a format for each side",
    "k=q8_0": ": k=q8_0 names one side; pass both, as in k=q8_0,v=q4_0",
    "k=q8_0,v=k5": ": the format of values is 'k5'",
}


def flags(command: Command) -> list[str]:
    """All that a format of a cache is asked for by."""
    return [flag for entry in command.options if entry.kind is KVType for flag in entry.flags]


def test_commands_that_cache_take_it() -> None:
    evals = {f"eval {name}" for name in ("tasks", "file", "turns", "natural", "needle", "ruler", "ppl")}
    benches = {"bench model", "bench decode", "bench ttft", "bench turn"}
    assert set(TAKING) == {"run", "chat", "serve"} | evals | benches
    told = {words for words, command in TAKING.items() if "--keys" in flags(command)}
    assert told == {"chat", "serve", "bench turn"}
    assert set(TAKING) | {PEER} == {
        " ".join(words) for words, command in commands().items() if any("--kv" in one.flags for one in command.options)
    }


@pytest.mark.parametrize("words", TAKING)
def test_each_reads_every_name_and_tells_of_them(words: str) -> None:
    command = TAKING[words]
    for flag in flags(command):
        for name in (*NAMES, *PAIRS):
            found = [
                one for one in command.parse([*GIVEN.get(words, ()), flag, name]).values() if isinstance(one, KVType)
            ]
            assert KVType.parse(name, "") in found
    for entry in command.options:
        if entry.kind is KVType and entry.name == "kv":
            assert all(
                name in entry.help for name in ("q8_0", "5bit", "4bit", "q4_0", "k=q8_0,v=q4_0", "[default: f16]")
            )


@pytest.mark.parametrize("words", TAKING)
@pytest.mark.parametrize("wrong", WRONG)
def test_each_refuses_others_in_one_line_and_ends_with_2(
    words: str, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in flags(TAKING[words]):
        monkeypatch.setattr("sys.argv", ["sp", *words.split(), *GIVEN.get(words, ()), flag, wrong])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("sp: error: --")
        assert WRONG[wrong] in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("kv", ["q8_0", "5bit", "4bit", "k=q8_0,v=q4_0"])
def test_a_model_is_timed_with_it_and_the_row_says_so(kv: str) -> None:
    drafter = embedded("drafter")
    done = invoke("bench", "model", drafter, "-p", 40, "-n", 2, "-r", 1, "--kv", kv, "--device", "cpu", "--json")
    assert done.exit_code == 0, done
    rows = json.loads(done.stdout)
    assert {row["kv"] for row in (rows["tests"] if isinstance(rows, dict) and "tests" in rows else rows["rows"])} == {
        kv
    }


def test_options_of_python_and_of_requests_take_text() -> None:
    for kv in (*NAMES, *PAIRS):
        assert RunOptions(kv=kv).kv == ConversationOptions(keys=kv).keys == KVType.parse(kv, "")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="designed for rotated keys and values"):
        RunOptions(kv=KVType("5bit"), rotate=False)


def swept(tmp_path: Path, cell: str) -> Sweep:
    file = tmp_path / "sweep.yaml"
    task = "tasks: [{task: niah_single_1, tokens: 512, examples: 1}]"
    file.write_text(f"name: small\n{task}\ncells:\n  - {cell}\n")
    return load_sweep(file)


def hash_of(sweep: Sweep) -> str:
    (run,) = sweep.runs
    return config_hash(run.config({}))


def test_sweeps_take_it_and_a_hash_is_that_of_its_text(tmp_path: Path) -> None:
    for kv in (*NAMES, "'k=q8_0,v=q4_0'"):
        (run,) = swept(tmp_path, f"{{kv: {kv}}}").runs
        (cell,) = run.cells
        assert cell.config["kv"] == kv.strip("'")
        config = run.config({})
        assert config_hash(config) == config_hash(json.loads(json.dumps(config)))
    assert len({hash_of(swept(tmp_path, f"{{kv: {kv}}}")) for kv in NAMES}) == len(NAMES)
    for longer, name in (("k=q4_0,v=q4_0", "q4_0"), ("v=v4,k=k5", "5bit"), ("v=v4,k=k4", "4bit")):
        assert hash_of(swept(tmp_path, f"kv: {longer}")) == hash_of(swept(tmp_path, f"kv: {name}"))


@pytest.mark.parametrize(
    ("kv", "told"),
    [("q4", "kv is 'q4'; did you mean"), ("k5", "k5 stores keys only"), ("k4", "k4 stores keys only; pass 4bit")],
)
def test_sweeps_refuse_others_with_their_line(tmp_path: Path, kv: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        swept(tmp_path, f"{{kv: {kv}}}")
    assert "\n" not in str(refused.value)
    assert "sweep.yaml, line 4: " in str(refused.value)
