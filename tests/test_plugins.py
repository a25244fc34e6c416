"""Components from outside: a file named by --plugin, by a sweep or by an installed package; the README's works so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from retriever_files import text_task

from sp import cli, plugins
from sp.errors import ConfigError
from sp.evals import TASKS
from sp.plugins import find_plugin, load_plugin, loaded_plugins, source_of
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.studies.sweep.conduct import make_plan
from sp.studies.sweep.sweep import load_sweep

ROOT = Path(__file__).parents[1]
FREE = """
from dataclasses import dataclass
import numpy as np
from sp import Importance, ModelFreeScorer, register_scorer
@register_scorer("outside")
@dataclass(frozen=True)
class Outside(ModelFreeScorer):
    gain: float = 1.0
    def score(self, request):
        return Importance(self.gain * np.arange(len(request.ids), dtype=np.float32))
"""


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registries, modules and paths are as before afterwards."""
    for registry in (SCORERS, SELECTORS, TASKS):
        monkeypatch.setattr(registry, "_classes", dict(registry._known()))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(plugins.PREFIX) or name == "outside_module":
            del sys.modules[name]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def printed() -> str:
    """The ten lines of a scorer in the README, or on the page that has them now."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
            if '@register_scorer("recent")' in block:
                return str(block)
    raise AssertionError("no page shows a scorer in ten lines")


@pytest.fixture
def recent(tmp_path: Path) -> Path:
    path = tmp_path / "recent.py"
    path.write_text(printed())
    return path


def test_a_file_runs_once_under_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text(f"{FREE}\nimport json\nassert hasattr(json, 'loads')\n")
    module = load_plugin(path)
    assert module is load_plugin(str(path)) is sys.modules["sp_plugin_json"]
    assert (SCORERS.class_of("outside"), source_of(SCORERS.class_of("outside"))) == (module.Outside, str(path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "json.py").write_text("VALUE = 1\n")
    other = load_plugin(tmp_path / "other" / "json.py")
    assert (other.VALUE, other.__name__ != module.__name__) == (1, True)
    assert {one.file for one in loaded_plugins()} == {str(path), str(tmp_path / "other" / "json.py")}


def test_a_file_that_failed_can_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text(f"{FREE}\n1 / 0\n")
    with pytest.raises(ConfigError):
        load_plugin(path)
    path.write_text(FREE)
    mended = load_plugin(path)
    assert SCORERS.class_of("outside") is mended.Outside


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "plugin {file}, line 1: ZeroDivisionError: division by zero"),
        ("import numpy\ndef f():\n    numpy.absent\nf()", "plugin {file}, line 3: AttributeError: module 'numpy' has"),
        ("def f(:", "plugin {file}, line 1: SyntaxError: invalid syntax"),
        ("import absent_module_x", "plugin {file}, line 1: ModuleNotFoundError: No module named 'absent_module_x'"),
        ("raise SystemExit(0)", "plugin {file}, line 1: SystemExit: 0"),
        (FREE.replace('"outside"', '"tail"'), "line 5: scorer 'tail' is registered twice, first by sp.scoring.atten"),
        ("raise ValueError('x\\n' * 9999)", "ValueError: x x x"),
        ("import sp\nraise sp.errors.PromptError('y' * 9999)", "line 2: y"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_one_line(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "doctor", "--plugin", "wrong.py", "--json") == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("sp: error: ")
    assert told.format(file="wrong.py") in said.err
    assert len(said.err) < 300


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("absent.py", "plugin absent.py: no such file; check the path"),
        ("absent_module_x", "plugin absent_module_x: no such module; pass a file such as mine.py"),
        ("not a module", "a plugin is a Python file such as mine.py, or the name of a module; got 'not a module'"),
        ("", "got ''"),
        ("x" * 5000 + ".py", "no such file; check the path"),
        ("\0.py", "no such file; check the path"),
    ],
)
def test_a_plugin_that_is_not_there(named: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugin(named)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 300


def test_modules_by_name_and_what_packages_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package of the kind that pip leaves behind offers a module that works and one that does not."""
    (tmp_path / "outside_module.py").write_text(FREE)
    (tmp_path / "outside-1.dist-info").mkdir()
    (tmp_path / "outside-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1\n")
    (tmp_path / "outside-1.dist-info" / "entry_points.txt").write_text(
        "[sp.plugins]\ngood = outside_module\nlost = absent_module_x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert call(monkeypatch, "list", "scorers", "--json") == 0
    said = capsys.readouterr()
    assert said.err == (
        "sp: skipped: plugin absent_module_x: no such module; pass a file such as mine.py, or install the module\n"
    )
    found = {one["name"]: one for one in json.loads(said.out)["scorers"]}
    assert found["outside"]["source"] == "outside_module"
    assert found["tail"]["source"] == "built in"
    assert find_plugin("outside_module").load() is sys.modules["outside_module"]


def test_the_printed_scorer_in_a_run(
    recent: Path, retriever_target: Path, retriever_drafter: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    task = text_task(600, needles=4, seed=3)
    (tmp_path / "text.txt").write_text(task.document)
    models = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu"]
    asked = ["--prompt-file", tmp_path / "text.txt", "--question", task.question, "--keep-ratio", 0.3, "--no-full"]
    cell = ["--scorer", "recent", "--compress", "always", "--max-new-tokens", 2, "--out", tmp_path / "out", "--json"]
    assert call(monkeypatch, "run", "--plugin", recent, *models, *asked, *cell) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["activated"]
    assert report["kept_tokens"] <= 0.3 * report["prompt_tokens"] + 40  # question and markup
    stages = {stage["name"] for stage in report["stages"]}
    assert ("tokenise for drafter" in stages) == ("ModelFreeScorer" not in printed()), (
        "charged for what it does not use"
    )
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())
    assert trace["options"]["scorer"] == "Recent()"


def test_the_printed_scorer_in_an_evaluation_and_a_sweep(
    recent: Path, retriever_target: Path, retriever_drafter: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The sweep names the file itself, and so does a worker in a process of its own."""
    models = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu"]
    cells = ["--scorer", "recent", "--no-controls", "-p", 400, "-n", 1, "--keep-ratio", 0.3, "--json"]
    assert call(monkeypatch, "eval", "needle", *models, *cells, "--plugin", recent) == 0
    assert [line["scorer"] for line in json.loads(capsys.readouterr().out)["results"]] == ["full", "recent"]
    sweep = tmp_path / "outside.yaml"
    sweep.write_text(
        f"device: cpu\nout: {tmp_path / 'rows'}\nplugins: [recent.py]\n"
        f"pairs: {{target: {retriever_target}, drafter: {retriever_drafter}}}\n"
        "tasks: {task: needle, tokens: 400, examples: 1}\ncells: {scorer: recent, keep_ratio: 0.3}\n"
    )
    asked = [sys.executable, "-m", "sp", "sweep", str(sweep), "--json", "--devices", "0"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed"] == []
    lines = [json.loads(line) for line in (tmp_path / "rows" / "rows.jsonl").read_text().splitlines()]
    assert [line["scorer"] for line in lines if line["kind"] == "row" and line["cell"] == 0] == ["recent"]
    plan = make_plan(load_sweep(sweep))
    assert not plan.remaining, "a sweep goes on where it was"
    recent.write_text(recent.read_text() + "\n# changed\n")
    assert not make_plan(load_sweep(sweep)).remaining, "a comment changes no scorer"
    recent.write_text(recent.read_text() + "\nCHANGED = True\n")
    assert len(make_plan(load_sweep(sweep)).remaining) == 1, "other code is another scorer"


def test_a_sweep_tells_the_line_of_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\nplugins: [absent.py]\ntasks: {task: needle}\ncells: {keep_ratio: 0.1}\n")
    with pytest.raises(ConfigError, match=r"^x\.yaml, line 2: plugin absent\.py: no such file; check the path$"):
        load_sweep(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match=r"^--set plugins: plugin y\.py: no such file; check the path$"):
        load_sweep(tmp_path / "x.yaml", ["plugins=y.py"])
    with pytest.raises(ConfigError, match="plugins must be str, not 3"):
        load_sweep(tmp_path / "x.yaml", ["plugins=3"])


def test_the_printed_scorer_in_a_server(recent: Path) -> None:
    for package in ("uvicorn", "starlette", "prometheus_client"):
        pytest.importorskip(package)
    from serving import chat

    cell = ["--scorer", "recent", "--compress", "always", "--keep-ratio", "0.5", "--sessions", "0", "--device", "cpu"]
    asked = [sys.executable, "-m", "sp", "serve", "--plugin", str(recent), *cell, "--port", "0"]
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            [url] = re.findall(r"http://\S+/v1", next(line for line in server.stderr if "http://" in line))
            body = {"model": "any", "messages": chat("quiet-lantern", 8301947), "max_tokens": 2}
            sent = Request(f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            told = json.load(urlopen(sent, timeout=60))["usage"]["sp"]
        finally:
            server.terminate()
    assert told["compressed"]
    assert (told["drafted"] == 0) == ("ModelFreeScorer" in printed()), "charged for what it does not use"
