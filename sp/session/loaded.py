"""A model opened for use: weights, tokenizer, chat template; which drafter a target has, and GPUs that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sp.errors import ConfigError, ModelError, plain, short
from sp.gguf import ChatTemplate, GGUFFile, Tokenizer, chat_template
from sp.gguf.template import TOOL_USE
from sp.hub import best_drafter, model_path
from sp.kernels.device import pick_device
from sp.keywords import names_keywords
from sp.models import (
    ContextParallel,
    Draft,
    Model,
    RopeScaling,
    load_draft,
    load_model,
    load_shards,
    needed_scaling,
    read_config,
)
from sp.models.device.load import config_with_overrides
from sp.models.families.base import shard_config
from sp.models.file.rope_keys import rope_facts
from sp.models.network.model import Device
from sp.models.shards.shards import SharedModel
from sp.models.synthetic.shapes import find_shape, tensor_plan, type_of_shape
from sp.parallel.group import ParallelGroup
from sp.parallel.nccl import NcclGroup, copies, group_of
from sp.planning.memory import cold_within, file_formats
from sp.quant import Math
from sp.scoring.base import ModelFreeScorer, Scorer
from sp.scoring.calibration.measure import known_retrieval, made_retrieval, makes_one, needed_depth
from sp.session.device_memory import Where
from sp.session.key_bases import FileBases, with_bases
from sp.trace import Reporter

EMBEDDED = {"target": "target.gguf", "drafter": "drafter.gguf", "draft": "draft.gguf"}
LONGEST_DRAFT = 1 << 20
MOST_ON_CPU = 1 << 30  # bytes of random weights beyond which the CPU is no place for them


@dataclass(frozen=True)
class Loaded:
    """One model of the pair.

    Parameters
    ----------
    path : Path
        Where the model came from; of random weights only a name.
    model : Model
    tokenizer : Tokenizer
    template : ChatTemplate or None
        If the file has one.
    nbytes : int
        Bytes of the file.
    file : GGUFFile, optional
        Stays open on the CPU, where weights that stay packed are views of it.
    trained : int, optional
        Positions that the file, or a scaling of RoPE in its place, says the model is good for; its context may be
        longer.
    asked : RopeScaling, optional
        The scaling of RoPE that was asked for.
    chosen : str
        Why it is this file, of a drafter that was not named; empty for others.
    needed : RopeScaling, optional
        The scaling that a prompt beyond the window needs; see `for_prompt`.
    """

    path: Path
    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate | None
    nbytes: int
    file: GGUFFile | None = None
    trained: int | None = None
    asked: RopeScaling | None = None
    chosen: str = ""
    needed: RopeScaling | None = None

    def __repr__(self) -> str:
        vocabulary = f"vocabulary of {self.tokenizer.vocab_size:,}, {self.nbytes / 1e6:,.1f} MB"
        return f"Loaded({plain(self.path.name)!r}, {self.model!r}, {vocabulary})"

    def for_prompt(self, tokens: int) -> Loaded:
        """The model as it reads so many tokens: beyond its window with YaRN, unless a scaling of RoPE was asked for.

        Only a drafter, whose context is longer than its window, reads more than that; see `needed_scaling`.

        Examples
        --------
        >>> drafter = load(embedded("drafter"), extrapolate=True, device="cpu")
        >>> drafter.for_prompt(163_840) is drafter, str(drafter.for_prompt(200_000).needed)
        (True, 'yarn:2')
        """
        window, config = self.trained, self.model.config
        if self.asked is not None or window is None or not window < tokens <= config.context:
            return self
        own = replace(config, context=window)
        needed = needed_scaling(own, tokens)
        if needed is None:
            return self
        scaled = needed.applied(own)
        return replace(self, model=self.model.with_rope(scaled.rope), trained=scaled.context, needed=needed)

    def describe(self) -> dict[str, object]:
        """Facts for the trace."""
        config = self.model.config
        return {
            "file": self.path.name,
            "bytes": self.nbytes,
            "architecture": config.architecture,
            "device": self.model.device,
            "layers": config.layers,
            "layers_loaded": self.model.depth,
            "hidden": config.hidden,
            "vocabulary": self.tokenizer.vocab_size,
            "vocabulary_sha256": self.tokenizer.sha256,
            "repacked": [asdict(each) for each in self.model.repacked],
            "math": self.model.arithmetic.as_dict(),
            "rope": rope_facts(config.rope)
            | {"positions": self.trained, "asked": self.asked and str(self.asked)}
            | ({"needed": str(self.needed)} if self.needed else {}),
        }


def embedded(role: str) -> Path:
    """Path of the embedded `target`, `drafter` (which scores prompts) or `draft` (which guesses answers)."""
    return Path(str(files("sp") / "assets" / EMBEDDED[role]))


def with_tools() -> str:
    """The chat template of the embedded target and drafter with tools, which their files' own does not show. The files
    stay as they are, as records name them by their hash; without tools the two templates say the same.
    """
    return (files("sp") / "assets" / "chat_template.jinja").read_text(encoding="utf-8")


def own(path: Path) -> bool:
    """Whether a file is an embedded model that chats."""
    return any(path.resolve() == embedded(role).resolve() for role in ("target", "drafter"))


@names_keywords
def load(
    path: str | Path,
    *,
    extrapolate: bool = False,
    device: Where = "auto",
    rope: RopeScaling | None = None,
    progress: Callable[[int], None] | None = None,
    room: int | None = None,
    precision: str = Math.BF16,
    group: ParallelGroup | None = None,
    scorers: Sequence[Scorer] = (),
    reporter: Reporter | None = None,
    beside: Loaded | None = None,
) -> Loaded:
    """Open a GGUF file as a model with its tokenizer.

    Parameters
    ----------
    path : path
        The file, or the first of its shards; or the name of a known model that was fetched.
    extrapolate : bool
        Allow positions beyond the file's context, as a drafter needs whose context is shorter than the
        target's: its scores only have to rank. It then reads them with YaRN, see `Loaded.for_prompt`; where that
        cannot be RoPE is extrapolated, and the report says so, see `sp.session.report`.
    device : {"auto", "cpu", "cuda"}
        `auto` is the GPU where there is one that the kernels run on.
    rope : RopeScaling, optional
        Scaling of RoPE in place of the file's own.
    progress : callable, optional
        See `load_model`.
    room : int, optional
        Bytes of the device for this model, its cache and its work. Experts of a mixture that needs more wait in host
        memory, see `cold_layers`; without it all weights lie on the device.
    precision : {"bf16", "int8", "fp8", "auto"}
        See `load_model`.
    group : ParallelGroup, optional
        GPUs that share it, see `load_shards`; the model is then a `SharedModel`.
    scorers : sequence of Scorer
        Of a drafter that only scores: those it is for. Layers that none of them runs are not loaded, and the file's
        calibration is looked up, or made, where one of them asks for it.
    reporter : Reporter, optional
        Is told when a calibration is made, or keys are measured for a cache that turns them (`5bit`); either may take
        a minute.
    beside : Loaded, optional
        A whole model that stays open, loaded with the same `precision`. If this is its file, and both are on the CPU,
        its weights and its tokenizer are this one's as well.

    Raises
    ------
    GGUFError
        The file is damaged or unsupported.
    ModelError
        The file is no complete model, or its vocabulary does not fit its embedding.
    DeviceError
        With ``cuda``: there is no usable device, or too little memory on it.
    ConfigError
        No products are made in `precision` there, or so many GPUs cannot share the model.

    Examples
    --------
    >>> loaded = load(embedded("drafter"), device="cpu")
    >>> loaded.path.name, loaded.model.config.architecture
    ('drafter.gguf', 'qwen3')
    """
    where = pick_device(device)
    if beside is not None and (where != "cpu" or model_path(path).resolve() != beside.path.resolve()):
        beside = None
    file = GGUFFile.open(path) if beside is None or beside.file is None else beside.file
    config = read_config(file)  # first, for a file of another kind is best told by its architecture
    tokenizer = Tokenizer.from_gguf(file) if beside is None else beside.tokenizer
    trained = (config if rope is None else rope.applied(config)).context
    context = longest(trained) if extrapolate else None
    formats = file_formats(file)
    if group is not None:
        shard_config(config, group.size)
    how: dict[str, Any] = {
        "device": where,
        "context": context,
        "rope": rope,
        "progress": progress,
        "precision": precision,
    }
    source = with_tools() if own(file.path) else chat_template(file)
    template = ChatTemplate.of_file(source, tokenizer, chat_template(file, TOOL_USE))
    retrieval = known_retrieval(file.path, config, scorers)
    if retrieval is None and makes_one(scorers):
        whole = load_model(file, device=where, context=longest(config.context))
        retrieval = made_retrieval(file.path, whole, tokenizer, template, reporter)
        del whole  # before the layers that are needed are loaded
    if beside is not None:
        model = beside.model.with_config(replace(config_with_overrides(file, context, rope), retrieval=retrieval))
    elif group is None:
        depth = needed_depth(scorers, replace(config, retrieval=retrieval))
        model = load_model(file, cold=cold_within(config, formats, room, precision), depth=depth, **how)
        model.config = replace(model.config, retrieval=retrieval)
    else:
        model = SharedModel(load_shards(file, group, **how))
    if tokenizer.vocab_size > model.config.vocab:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens but the embedding has "
            f"{model.config.vocab} rows; the file is inconsistent, get another one"
        )
    parameters = sum(prod(tensor.shape) for tensor in file.tensors.values())
    with_bases(model, FileBases(file.path, tokenizer, trained, parameters, reporter))
    return Loaded(file.path, model, tokenizer, template, file.nbytes, file, trained, rope)


def synthetic(
    shape: str,
    file_type: str | None = None,
    *,
    extrapolate: bool = False,
    device: Where = "auto",
    rope: RopeScaling | None = None,
    seed: int = 0,
    room: int | None = None,
    precision: str = Math.BF16,
    group: ParallelGroup | None = None,
    scorers: Sequence[Scorer] = (),
) -> Loaded:
    """Random weights in a named shape, with a vocabulary made by rule: for speed, not for answers.

    On the GPU the weights are made there and no file is written.

    Parameters
    ----------
    shape : str
        One of `sp.models.synthetic.shapes.list_shapes`.
    file_type : str, optional
        One of `sp.models.file.file_type.FILE_TYPES`; the one that the shape is meant in if left out.
    extrapolate, device, rope, room, precision, group, scorers
        See `load`; there is no calibration of random weights.
    seed : int

    Raises
    ------
    ConfigError
        For an unknown shape or file type, a model too large to be made on the CPU, or products that are not made.
    DeviceError
        With ``cuda``: there is no usable device, or too little memory on it.

    Examples
    --------
    >>> synthetic("tiny-qwen3", device="cpu").path.name
    'tiny-qwen3-q4_k_m.synthetic'
    """
    from sp.models.synthetic.synthetic import synthetic_metadata, write_synthetic

    file_type = type_of_shape(shape, file_type)
    nbytes = sum(fmt.nbytes(size) for _, size, fmt in tensor_plan(shape, file_type))
    name = Path(f"{shape}-{file_type}.synthetic")
    if pick_device(device) == "cpu":
        if nbytes > MOST_ON_CPU:
            raise ConfigError(
                f"{nbytes / 1e9:.1f} GB of random weights are made on a GPU only; "
                f"for the CPU write a file first: sp synth --shape {shape} --type {file_type} -o FILE"
            )
        with TemporaryDirectory() as folder:
            file = write_synthetic(Path(folder) / "model.gguf", shape, file_type, seed)
            plain = [replace(scorer, calibrate="never") if scorer.retrieves else scorer for scorer in scorers]  # type: ignore[type-var]
            made = load(
                file, extrapolate=extrapolate, device="cpu", rope=rope, precision=precision, group=group, scorers=plain
            )
            with_bases(made.model, None)  # of random weights, whose file is gone
            return replace(made, path=name)
    from sp.models.synthetic.random_store import random_model, random_shards

    found = find_shape(shape)
    metadata = synthetic_metadata(found, file_type)
    if group is None:
        cold = cold_within(found.config, {tensor: fmt for tensor, _, fmt in found.plan(file_type)}, room, precision)
        model = random_model(shape, file_type, seed, rope, cold, precision, needed_depth(scorers, found.config))
    else:
        shard_config(found.config, group.size)
        model = SharedModel(random_shards(shape, file_type, group, precision, seed, rope))
    trained = model.config.context
    if extrapolate:
        model.config = replace(model.config, context=longest(trained))
    tokenizer = Tokenizer.from_metadata(metadata, str(name))
    template = ChatTemplate.of_file(str(metadata["tokenizer.chat_template"]), tokenizer)
    return Loaded(name, model, tokenizer, template, nbytes, trained=trained, asked=rope)


def longest(context: int) -> int:
    """Positions a drafter is trusted with."""
    return max(context, LONGEST_DRAFT)


OF_ONE_GPU = "a budget of GPU memory is for one GPU; leave --vram away, or --gpus and --target-gpus"


def sharing(gpus: int, target_gpus: int | None, where: Device, vram: int | None) -> NcclGroup | None:
    """The GPUs that share a target, for `load`: as many as draft, unless another number is asked for; None for one.
    ConfigError with a budget of memory, or on the CPU; DeviceError: where there are not so many, or no NCCL.
    """
    count = gpus if target_gpus is None else target_gpus
    if vram is not None and max(gpus, count) > 1:
        raise ConfigError(OF_ONE_GPU)
    return group_of(count, where, "--gpus" if target_gpus is None else "--target-gpus")


def default_drafter(target: str | Path | None, scorers: Iterable[type[Scorer]] | None = None) -> Path:
    """The drafter of a target where none is named: its path, or the name of a known model.

    The embedded target has the embedded drafter. That one was trained for the texts of its own world, so any other
    target has the best known model that was fetched.

    If none of the classes of `scorers` that will be used runs a model, the embedded drafter will do, for it reads
    nothing.

    ConfigError: no such model was fetched; GGUFError, ModelError: the same, of a target that cannot be opened, or is no
    model, either.
    """
    if target is None or model_path(target).resolve() == embedded("target").resolve():
        return embedded("drafter")
    if scorers is not None and all(issubclass(scorer, ModelFreeScorer) for scorer in scorers):
        return embedded("drafter")
    if (model := best_drafter()) is not None:
        return Path(model.name)
    with GGUFFile.open(target) as file:  # what is wrong with it comes first
        read_config(file)
        Tokenizer.from_gguf(file)
    raise ConfigError(
        f"{short(Path(target).name)} needs a drafter that scores prompts, and none is here; fetch one with: "
        "sp get smollm2-135m, or name one with --drafter"
    )


def spread(drafter: Loaded, group: NcclGroup, opened: Callable[[Device], Loaded]) -> ContextParallel:
    """A drafter that lies on the first GPU of a group, and its like on the others. ConfigError for one with recurrent
    layers; DeviceError with too little memory on a GPU.
    """
    if drafter.model.config.delta_layers:
        raise ConfigError(
            f"{drafter.path.name} has recurrent layers, whose state would go from GPU to GPU; leave --gpus away, or "
            "take a drafter of attention layers"
        )
    return ContextParallel(group, [drafter.model, *(one.model for one in copies(group, lambda: opened("cuda")))])


def gpus_line(gpus: ContextParallel, together: bool) -> str:
    """The line of a report: whether the GPUs read together, or else why not.

    >>> from sp.parallel.host import HostGroup
    >>> gpus_line(ContextParallel(HostGroup(2), [load_model(embedded("drafter"))] * 2), together=True)
    'drafter: read by 2 GPUs together'
    """
    count = gpus.group.size
    if together:
        return f"drafter: read by {count} GPUs together"
    return f"drafter: read by the first of {count} GPUs alone, as short prompts, kept keys and some scorers are"


@dataclass(frozen=True, repr=False)
class DraftOnGPUs(Draft):
    """The draft of the first GPU, and those of the others."""

    others: tuple[Draft, ...] = ()


def draft_on_gpus(path: str | Path, model: SharedModel) -> DraftOnGPUs:
    """`load_draft` for every GPU's share of the target."""
    drafts = []
    for part in model.shards.models:
        with model.shards.group.device(part.shard.rank):
            drafts.append(load_draft(path, part))
    first = {field.name: getattr(drafts[0], field.name) for field in fields(Draft)}
    return DraftOnGPUs(**first, others=tuple(drafts[1:]))


def draft_of(draft: Draft | None, rank: int) -> Draft | None:
    """That of one GPU; none where there is none."""
    if not isinstance(draft, DraftOnGPUs):
        return draft
    return (draft, *draft.others)[rank]
