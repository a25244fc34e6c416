"""Bases of a file's keys: measured once, kept, and in all caches of five bits that a run has."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from talks import check, options, pair, said, text

from sp.errors import ConfigError, SpWarning
from sp.models import Cache, load_model
from sp.models.cache import session_cache
from sp.ops.rope import Rope
from sp.parallel.host import HostGroup
from sp.prompt import Prompt
from sp.quant.cached import K4, K5
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, embedded, key_bases, load, synthetic
from sp.studies.sample import sample

TOKENS = 128
"""Tokens of each text: all that is done here is done with them, and takes as long as they are read."""
FOR_ANSWERS = 320


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A folder of its own, and short texts."""
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(key_bases, "TOKENS", TOKENS)
    return tmp_path / "cache" / "calibrations" / "keys"


@pytest.fixture
def measured(monkeypatch) -> list[int]:
    """Depths of the models that were measured."""
    found, work = list[int](), key_bases.measured_bases

    def counted(model, read, progress=None):
        found.append(model.depth)
        return work(model, read, progress)

    monkeypatch.setattr(key_bases, "measured_bases", counted)
    return found


def drafter():
    return load(embedded("drafter"), device="cpu").model


def same(one, other) -> bool:
    names = ("order", "offset", "scale", "first")
    return one.keys() == other.keys() and all(
        np.array_equal(getattr(one[layer], name), getattr(other[layer], name)) for layer in one for name in names
    )


def test_texts_are_the_same_every_time_and_of_the_length_that_is_asked_for() -> None:
    tokenizer = load(embedded("drafter"), device="cpu").tokenizer
    one, other = (key_bases.runs(tokenizer, 500) for _ in range(2))
    assert [len(ids) for ids in one] == [500] * len(key_bases.TEXTS)
    assert all(np.array_equal(mine, its) for mine, its in zip(one, other, strict=True))
    assert len({ids.tobytes() for ids in one}) == len(one)


def test_the_second_load_reads_what_the_first_one_measured(measured, own_cache) -> None:
    model = drafter()
    model.new_cache(9, "q8_0")
    assert measured == []
    first, cache = model.bases_for("5bit"), model.new_cache(9, "5bit")
    assert cache.stored(0).basis is first[0].of_format(K5)
    assert model.new_cache(9, "4bit").stored(0).basis is first[0].of_format(K4)
    assert model.bases_for("5bit") is first
    for kv in ("k=k5,v=q8_0", "4bit", "k=k4,v=q8_0"):
        assert same(drafter().bases_for(kv), first)
    assert measured == [model.depth]
    assert [path.suffix for path in own_cache.iterdir()] == [".safetensors"]


F32_ARRAY, BF16_ARRAY = b'"F32","shape":[2,128]', b'"BF16","shape":[512] '  # in as many bytes


def other_key(path) -> None:
    path.write_bytes(path.read_bytes().replace(b"sp-key-bases/4", b"sp-key-bases/0"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Bases that were measured, and the folder with their file: what tests damage is a copy of it."""
    folder = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SP_CACHE_DIR", str(folder))
        patch.setattr(key_bases, "TOKENS", TOKENS)
        return drafter().bases_for("5bit"), folder / "calibrations" / "keys"


def spoilt(**arrays):
    """Bytes that have other arrays in the place of some."""

    def spoil(path) -> None:
        from safetensors import safe_open
        from safetensors.numpy import save

        with safe_open(path, "numpy") as file:
            held, facts = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        for name, change in arrays.items():
            held[f"0.{name}"] = change(held[f"0.{name}"])
        path.write_bytes(save(held, facts))

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no such file"),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: (path.unlink(), path.mkdir()),
        other_key,
        spoilt(scale=lambda x: x * np.float32(np.nan)),
        spoilt(scale=lambda x: -x),
        spoilt(offset=lambda x: x.astype(np.float64)),
        spoilt(offset=lambda x: x[:, :-1].copy()),
        spoilt(order=lambda x: x * 0),
        spoilt(scale=lambda x: x * 0 + np.float32(1e-42)),
        spoilt(first=lambda x: x * np.float32(np.inf)),
        spoilt(first=lambda x: x[:, :-1].copy()),
        lambda path: path.write_bytes(path.read_bytes().replace(F32_ARRAY, BF16_ARRAY)),
    ],
    ids=[
        "empty",
        "text",
        "cut",
        "folder",
        "schema",
        "nan",
        "negative",
        "dtype",
        "shape",
        "order",
        "tiny",
        "first",
        "wide",
        "bfloat16",
    ],
)
def test_what_is_damaged_is_measured_anew(spoil, sound, measured, own_cache) -> None:
    first, folder = sound
    shutil.copytree(folder, own_cache)
    (path,) = own_cache.iterdir()
    spoil(path)
    assert same(drafter().bases_for("5bit"), first)
    assert len(measured) == 1


def test_what_is_not_damaged_is_read(sound, measured, own_cache) -> None:
    first, folder = sound
    shutil.copytree(folder, own_cache)
    assert same(drafter().bases_for("5bit"), first)
    assert measured == []


def test_a_folder_that_takes_no_files_only_costs_time(measured, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "file"))
    model = drafter()
    assert model.bases_for("5bit") is model.bases_for("5bit")
    drafter().bases_for("5bit")
    assert len(measured) == 2


def test_another_rope_and_another_depth_have_bases_of_their_own(measured, own_cache) -> None:
    model = drafter()
    first, other = model.bases_for("5bit"), model.with_rope(Rope(2e4, 128))
    assert not same(other.bases_for("5bit"), first)
    assert other.with_rope(model.config.rope).bases_for("5bit") is first
    cut = load_model(embedded("drafter"), depth=2)
    cut.key_bases = model.key_bases
    assert tuple(cut.bases_for("5bit")) == (0, 1)
    assert len(measured) == len(list(own_cache.iterdir())) == 3


def test_a_window_that_is_short_is_read_no_further(monkeypatch, measured) -> None:
    loaded, seen = load(embedded("drafter"), device="cpu"), []
    runs = key_bases.runs
    monkeypatch.setattr(key_bases, "runs", lambda tokenizer, tokens: seen.append(tokens) or runs(tokenizer, tokens))
    for window, parameters in ((100, 0), (4096, 0), (4096, 10**9), (10, 0)):
        monkeypatch.setattr(key_bases, "TOKENS_IF_LARGE", 80)
        bases = key_bases.FileBases(loaded.path, loaded.tokenizer, window, parameters)
        assert bool(bases(loaded.model)) == (window > 10)
    assert seen == [100, TOKENS, 80]


def test_what_cannot_be_measured_has_plain_bases(monkeypatch, measured) -> None:
    def missing(rng):
        raise ConfigError("this Python lacks it")
        yield ""

    monkeypatch.setitem(key_bases.TEXTS, "prose", missing)
    with pytest.warns(SpWarning, match="this Python lacks it; keys are packed in plain bases"):
        assert drafter().bases_for("5bit") == {}
    assert load_model(embedded("drafter")).bases_for("5bit") == {}
    assert synthetic("tiny-qwen3", device="cpu").model.bases_for("5bit") == {}
    assert measured == []


@pytest.fixture
def asked(monkeypatch) -> list[Cache]:
    """Caches of five bits and of four that trails and models made."""
    found, init = list[Cache](), Cache.__init__

    def spy(self, *given, **how):
        init(self, *given, **how)
        found.extend([self] if self.kv in ("5bit", "4bit") else [])

    monkeypatch.setattr(session_cache.Cache, "__init__", spy)
    return found


def is_measured(cache: Cache) -> bool:
    return all(cache.stored(layer).basis.scale.std() > 0 for layer in cache.config.attention_layers)


@pytest.mark.slow
def test_the_embedded_pair_answers_right_with_five_bits(asked, measured, monkeypatch) -> None:
    monkeypatch.setattr(key_bases, "TOKENS", FOR_ANSWERS)
    opened = Pipeline.open(device="cpu")
    document, example = sample()
    place = document.index(example.needle)
    shorter = document[place - 3000 : place + 3000]  # all of it takes four times as long
    prompt = Prompt.from_document(shorter, example.question, opened.target.template)
    result = opened.run(prompt, RunOptions(keep_ratio=0.2, kv="5bit", compress="always"), full=False)
    assert all(answer in result.answer.text for answer in example.answers)
    assert asked
    assert all(map(is_measured, asked))
    assert measured == [opened.target.model.depth]


def test_who_opens_a_pair_is_told_before_any_stage(measured) -> None:
    told = []

    @contextmanager
    def reporter(what, total):
        done = []
        yield done.append
        told.append((what, total, sum(done)))

    opened = Pipeline.open(device="cpu", reporter=reporter)
    opened.ready(RunOptions())
    assert told == []
    opened.ready(RunOptions(kv="5bit"))
    opened.ready(RunOptions(kv="5bit"))
    total = len(key_bases.TEXTS) * TOKENS * opened.target.model.config.layers
    assert told == [("measuring target.gguf", total, total)]
    Conversation(opened, RunOptions(), ConversationOptions(keys="5bit"))
    assert [what for what, *_ in told] == ["measuring target.gguf", "measuring drafter.gguf"]
    opened.ready(RunOptions(kv="4bit"), keys="5bit")
    opened.ready(RunOptions(), keys="4bit")
    assert len(told) == 2


@pytest.mark.parametrize("kv", ["5bit", "4bit"])
@pytest.mark.parametrize("drafter", ["qwen3", "qwen35"])
def test_a_conversation_keeps_keys_in_bases(drafter, kv, asked) -> None:
    talk = Conversation(pair("qwen3", drafter), options(0.5, kv=kv), ConversationOptions(keys=kv))
    rng, history = np.random.default_rng(3), [said("system", text(np.random.default_rng(2), 8))]
    for turn in range(3):
        history.append(said("user", text(rng, 90)))
        result = talk.ask(history)
        check(talk, result)
        assert (result.usage.cached > 0) == (turn > 0)
        history.append(said("assistant", result.answer.text))
    assert len(asked) >= 2
    assert all(map(is_measured, asked))


def test_gpus_that_share_a_model_agree_on_bases_and_keep_a_file_each(measured, own_cache) -> None:
    def opened():
        return load(embedded("target"), device="cpu", group=HostGroup(2)).model.shards

    first = opened().run(lambda part: part.new_cache(9, "5bit").stored(0).basis)
    assert [basis.scale.shape[0] for basis in first] == [1, 1]
    assert len(measured) == len(list(own_cache.iterdir())) == 2
    shards = opened()
    for _ in range(2):
        again = shards.run(lambda part: part.new_cache(9, "5bit").stored(0).basis)
    assert all(np.array_equal(one.scale, other.scale) for one, other in zip(first, again, strict=True))
    assert len(measured) == 2
    next(own_cache.iterdir()).unlink()  # of one GPU: all read
    opened().run(lambda part: part.new_cache(9, "5bit"))
    assert len(measured) == 4
