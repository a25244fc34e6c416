"""A model loaded for use: weights, tokenizer, chat template; the drafter of a target, and GPUs that share them."""

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
LONGEST_DRAFT = 1 << 20  # positions up to which a drafter is extrapolated
MOST_ON_CPU = 1 << 30  # bytes of random weights that are created on the CPU at most


@dataclass(frozen=True)
class Loaded:
    """A model of the pair.

    Parameters
    ----------
    path : Path
        The file of the model; of random weights only a name.
    model : Model
    tokenizer : Tokenizer
    template : ChatTemplate or None
        Chat template, if the file has one.
    nbytes : int
        Size of the file in bytes.
    file : GGUFFile, optional
        The open file on the CPU, where packed weights are views of it.
    trained : int, optional
        Positions that the model is trained for, by its file or by a requested scaling of RoPE; its context may be
        longer.
    requested_rope : RopeScaling, optional
        Scaling of RoPE requested by the user.
    chosen : str
        Reason for a drafter that was chosen automatically; empty for others.
    needed : RopeScaling, optional
        Scaling that a prompt beyond the window needs; see `for_prompt`.
    """

    path: Path
    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate | None
    nbytes: int
    file: GGUFFile | None = None
    trained: int | None = None
    requested_rope: RopeScaling | None = None
    chosen: str = ""
    needed: RopeScaling | None = None

    def __repr__(self) -> str:
        vocabulary = f"vocabulary of {self.tokenizer.vocab_size:,}, {self.nbytes / 1e6:,.1f} MB"
        return f"Loaded({plain(self.path.name)!r}, {self.model!r}, {vocabulary})"

    def for_prompt(self, tokens: int) -> Loaded:
        """Return the model for a prompt of so many tokens: beyond its window with YaRN, unless a scaling was requested.

        Only a drafter, whose context is longer than its window, reads more than that; see `needed_scaling`.

        Examples
        --------
        >>> drafter = load(embedded("drafter"), extrapolate=True, device="cpu")
        >>> drafter.for_prompt(163_840) is drafter, str(drafter.for_prompt(200_000).needed)
        (True, 'yarn:2')
        """
        window, config = self.trained, self.model.config
        if self.requested_rope is not None or window is None or not window < tokens <= config.context:
            return self
        own = replace(config, context=window)  # the configuration without extrapolation
        needed = needed_scaling(own, tokens)  # None if no scaling applies
        if needed is None:
            return self
        scaled = needed.applied(own)
        return replace(self, model=self.model.with_rope(scaled.rope), trained=scaled.context, needed=needed)

    def describe(self) -> dict[str, object]:
        """Return facts for the trace."""
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
            "repacked": [asdict(change) for change in self.model.repacked],
            "math": self.model.arithmetic.as_dict(),
            "rope": rope_facts(config.rope)
            | {"positions": self.trained, "asked": self.requested_rope and str(self.requested_rope)}
            | ({"needed": str(self.needed)} if self.needed else {}),
        }


def embedded(role: str) -> Path:
    """Return the path of the embedded `target`, `drafter` (scores prompts) or `draft` (speculative decoding)."""
    return Path(str(files("sp") / "assets" / EMBEDDED[role]))


def with_tools() -> str:
    """Return the chat template with tools of the embedded target and drafter; that in their files renders no tools.

    The files stay as they are, because records name them by their hash; without tools both templates render the same.
    """
    return (files("sp") / "assets" / "chat_template.jinja").read_text(encoding="utf-8")


def is_embedded_chat(path: Path) -> bool:
    """Return True if a file is an embedded model that chats."""
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
        Allow positions beyond the file's context, for a drafter whose context is shorter than the target's: its
        scores only have to rank. It then reads them with YaRN, see `Loaded.for_prompt`; where that is impossible
        RoPE is extrapolated, and the report says so, see `sp.session.report`.
    device : {"auto", "cpu", "cuda"}
        `auto` is the GPU where there is one that the kernels run on.
    rope : RopeScaling, optional
        Scaling of RoPE in place of the file's own.
    progress : callable, optional
        See `load_model`.
    room : int, optional
        Bytes of the device for this model, its cache and its work. Experts of a mixture that needs more stay in host
        memory, see `cold_layers`; by default all weights are on the device.
    precision : {"bf16", "int8", "fp8", "auto"}
        See `load_model`.
    group : ParallelGroup, optional
        GPUs that share it, see `load_shards`; the model is then a `SharedModel`.
    scorers : sequence of Scorer
        For a drafter that only scores, its scorers. Layers that none of them runs are not loaded, and the file's
        calibration is looked up, or computed, if one of them needs it.
    reporter : Reporter, optional
        Shows a calibration, or a measurement of keys for a cache that transforms them (`5bit`, `4bit`); either may
        take a minute.
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
    config = read_config(file)  # first, because its architecture identifies a file of another kind best
    tokenizer = Tokenizer.from_gguf(file) if beside is None else beside.tokenizer
    trained = (config if rope is None else rope.applied(config)).context
    context = longest(trained) if extrapolate else None
    formats = file_formats(file)
    if group is not None:
        shard_config(config, group.size)
    options: dict[str, Any] = {
        "device": where,
        "context": context,
        "rope": rope,
        "progress": progress,
        "precision": precision,
    }
    # Files name a template for tools separately, if they have one.
    source = with_tools() if is_embedded_chat(file.path) else chat_template(file)
    template = ChatTemplate.of_file(source, tokenizer, chat_template(file, TOOL_USE))
    retrieval = known_retrieval(file.path, config, scorers)
    if retrieval is None and makes_one(scorers):
        whole = load_model(file, device=where, context=longest(config.context))
        retrieval = made_retrieval(file.path, whole, tokenizer, template, reporter)
        del whole  # its memory is needed for the layers loaded next
    if beside is not None:
        model = beside.model.with_config(replace(config_with_overrides(file, context, rope), retrieval=retrieval))
    elif group is None:
        depth = needed_depth(scorers, replace(config, retrieval=retrieval))
        model = load_model(file, cold=cold_within(config, formats, room, precision), depth=depth, **options)
        model.config = replace(model.config, retrieval=retrieval)
    else:
        model = SharedModel(load_shards(file, group, **options))
    if tokenizer.vocab_size > model.config.vocab:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens but the embedding has "
            f"{model.config.vocab} rows; the file is inconsistent, get another one"
        )
    parameters = sum(prod(tensor.shape) for tensor in file.tensors.values())  # embeddings included
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
    """Create random weights in a named shape, with a synthetic vocabulary: for speed, not for answers.

    On the GPU the weights are made there and no file is written.

    Parameters
    ----------
    shape : str
        One of `sp.models.synthetic.shapes.list_shapes`.
    file_type : str, optional
        One of `sp.models.file.file_type.FILE_TYPES`; the one that the shape is meant in if omitted.
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
    nbytes = sum(fmt.nbytes(size) for _, size, fmt in tensor_plan(shape, file_type))  # as if it were a file
    name = Path(f"{shape}-{file_type}.synthetic")
    # On the CPU weights are views of a file, so one is written and read like any other.
    if pick_device(device) == "cpu":
        if nbytes > MOST_ON_CPU:
            raise ConfigError(
                f"{nbytes / 1e9:.1f} GB of random weights are made on a GPU only; "
                f"for the CPU write a file first: sp synth --shape {shape} --type {file_type} -o FILE"
            )
        with TemporaryDirectory() as folder:  # the file stays mapped after its folder is removed
            file = write_synthetic(Path(folder) / "model.gguf", shape, file_type, seed)
            plain = [replace(scorer, calibrate="never") if scorer.retrieves else scorer for scorer in scorers]  # type: ignore[type-var]
            loaded = load(
                file, extrapolate=extrapolate, device="cpu", rope=rope, precision=precision, group=group, scorers=plain
            )
            with_bases(loaded.model, None)  # they would be cached by the hash of a temporary file
            return replace(loaded, path=name)
    from sp.models.synthetic.random_store import random_model, random_shards

    named_shape = find_shape(shape)
    metadata = synthetic_metadata(named_shape, file_type)
    if group is None:
        cold = cold_within(
            named_shape.config, {tensor: fmt for tensor, _, fmt in named_shape.plan(file_type)}, room, precision
        )
        model = random_model(shape, file_type, seed, rope, cold, precision, needed_depth(scorers, named_shape.config))
    else:
        shard_config(named_shape.config, group.size)
        model = SharedModel(random_shards(shape, file_type, group, precision, seed, rope))
    trained = model.config.context
    if extrapolate:
        model.config = replace(model.config, context=longest(trained))
    tokenizer = Tokenizer.from_metadata(metadata, str(name))
    template = ChatTemplate.of_file(str(metadata["tokenizer.chat_template"]), tokenizer)
    return Loaded(name, model, tokenizer, template, nbytes, trained=trained, requested_rope=rope)


def longest(context: int) -> int:
    """Return the number of positions a drafter is used for."""
    return max(context, LONGEST_DRAFT)


OF_ONE_GPU = "--vram limits the memory of a single GPU; omit it, or --gpus and --target-gpus"


def sharing(gpus: int, target_gpus: int | None, device: str, vram: int | None) -> NcclGroup | None:
    """Return the GPUs that share a target, for `load`: by default as many as draft; None for one.

    ConfigError with a budget of memory, or on the CPU; DeviceError if there are fewer GPUs, or no NCCL.
    """
    count = gpus if target_gpus is None else target_gpus
    if vram is not None and max(gpus, count) > 1:
        raise ConfigError(OF_ONE_GPU)
    return group_of(count, device, "--gpus" if target_gpus is None else "--target-gpus")


def default_drafter(target: str | Path | None, scorers: Iterable[type[Scorer]] | None = None) -> Path:
    """Return the default drafter of a target: its path, or the name of a known model.

    The embedded target has the embedded drafter. That one is trained for texts of its own world only, so any other
    target gets the best known model that was fetched. If no class of `scorers` runs a model, the embedded drafter
    suffices, because it reads nothing.

    ConfigError if no such model was fetched; GGUFError or ModelError for a target that cannot be opened, or is no
    model.
    """
    if target is None or model_path(target).resolve() == embedded("target").resolve():
        return embedded("drafter")
    if scorers is not None and all(issubclass(scorer, ModelFreeScorer) for scorer in scorers):
        return embedded("drafter")
    if (model := best_drafter()) is not None:
        return Path(model.name)
    with GGUFFile.open(target) as file:  # its errors take precedence
        read_config(file)
        Tokenizer.from_gguf(file)
    raise ConfigError(
        f"{short(Path(target).name)} needs a drafter that scores prompts, and none was found; fetch one with: "
        "sp get smollm2-135m, or pass one with --drafter"
    )


def replicated(drafter: Loaded, group: NcclGroup, load_copy: Callable[[Device], Loaded]) -> ContextParallel:
    """Return a drafter on the first GPU of a group with copies on the others.

    ConfigError for a drafter with recurrent layers; DeviceError if a GPU has too little memory.
    """
    if drafter.model.config.delta_layers:
        raise ConfigError(
            f"{drafter.path.name} has recurrent layers, whose state would go from GPU to GPU; leave --gpus away, or "
            "take a drafter of attention layers"
        )
    models = [drafter.model, *(loaded.model for loaded in copies(group, lambda: load_copy("cuda")))]
    for model in models:
        model.key_bases = drafter.model.key_bases  # measured once
    return ContextParallel(group, models)


def gpus_line(gpus: ContextParallel, together: bool) -> str:
    """Return the line of a report on whether the GPUs read together.

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
    """The draft of the first GPU, with those of the others."""

    others: tuple[Draft, ...] = ()


def draft_on_gpus(path: str | Path, model: SharedModel) -> DraftOnGPUs:
    """Run `load_draft` for every GPU's shard of the target."""
    drafts = []
    for part in model.shards.models:
        with model.shards.group.device(part.shard.rank):
            drafts.append(load_draft(path, part))  # its buffers are allocated on that GPU
    first = {field.name: getattr(drafts[0], field.name) for field in fields(Draft)}
    return DraftOnGPUs(**first, others=tuple(drafts[1:]))


def draft_of(draft: Draft | None, rank: int) -> Draft | None:
    """Return the draft of one GPU, or None."""
    if not isinstance(draft, DraftOnGPUs):
        return draft
    return (draft, *draft.others)[rank]
