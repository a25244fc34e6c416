"""Read from the header of a model file if and how it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sp import values
from sp.errors import ConfigError, GGUFError, ModelError
from sp.gguf import ChatTemplate, GGUFFile, render_chat
from sp.gguf.template import chat_template, check_template
from sp.gguf.vocabulary import NORMAL, Vocabulary, read_vocabulary
from sp.kernels.specs.attention.attention_rows import HEAD_DIMS
from sp.kernels.specs.experts import MOST_EXPERTS, MOST_USED
from sp.models.config import ModelConfig
from sp.models.drafts.dflash import refuse_later
from sp.models.drafts.dflash_config import DRAFT_ARCHITECTURES, gguf_keys
from sp.models.families.base import ARCHITECTURES, find_architecture, read_config, shard_config
from sp.models.file.file_type import tensor_format
from sp.models.file.metadata_keys import Keys
from sp.models.file.refusals import refuse_changed, refuse_prediction, unsupported
from sp.models.file.rope_keys import describe_window
from sp.models.file.weights import HeaderStore
from sp.models.network.cost import missing_tensors
from sp.models.network.weights import ModelWeights, model_tensors
from sp.models.synthetic.shapes import find_shape
from sp.planning.gpus import LARGEST_DRAFTER, Drafter, weights_bytes
from sp.planning.memory import Stacks, file_formats, stack_bytes, streamed_bytes
from sp.quant import FORMATS, BlockFormat

MOST_NAME_CHARACTERS = 100  # of a tensor's name in a message


@dataclass(frozen=True)
class Hindrance:
    """A reason why a model file does not run, or a warning about it. `of_format`: True if it is the number format, so
    that another file of the same model may run."""

    line: str  # message with what to do, without the file's name
    stops: bool = True  # False for a warning
    of_format: bool = False
    usable: bool = False  # True if the file has another use, as a draft model next to its target


def is_draft(file: GGUFFile) -> bool:
    """Return True if a file is a draft model for speculative decoding, which does not run by itself."""
    return values.text(file.metadata.get("general.architecture")) in DRAFT_ARCHITECTURES


def find_hindrances(file: GGUFFile) -> Iterator[Hindrance]:
    """Yield the hindrances in tensors and keys: every unknown format, and the first other problem."""
    unknown = Counter(info.type_name for info in file.tensors.values() if info.ggml_type not in FORMATS)
    for name, count in unknown.items():
        example = next(tensor for tensor, info in file.tensors.items() if info.type_name == name)
        example = values.preview(example, MOST_NAME_CHARACTERS).strip("'")
        yield Hindrance(f"{count} tensor(s) of type {name}, which sp cannot decode, e.g. {example}", of_format=True)
    if not file.tensors:
        yield Hindrance("no tensors: a vocabulary only, or metadata only")
        return
    architecture = values.text(file.metadata.get("general.architecture"))
    try:
        refuse_prediction(str(file.path), file.tensors)
        if architecture in DRAFT_ARCHITECTURES:
            refuse_later(gguf_keys(file), file.tensors)
        if architecture is None or architecture not in ARCHITECTURES:
            line = unsupported(file.metadata.get("general.architecture"), ARCHITECTURES)
            yield Hindrance(line, usable=architecture in DRAFT_ARCHITECTURES)
            return
        refuse_changed(Keys(architecture, file.metadata, str(file.path)), find_architecture(architecture).honours)
        yield from _incomplete(file, architecture)
    except (GGUFError, ModelError) as error:
        yield Hindrance(without_path(error, file))


def _incomplete(file: GGUFFile, architecture: str) -> Iterator[Hindrance]:
    """Yield the hindrances of missing keys and tensors, and of skipped blocks."""
    for key, consequence in (
        ("context_length", "the longest prompt is unknown"), ("block_count", "this is no complete model")
    ):  # fmt: skip
        if values.whole(file.metadata.get(f"{architecture}.{key}")) is None:
            yield Hindrance(f"key '{architecture}.{key}' is absent or no whole number, so {consequence}")
            return
    blocks = values.whole(file.metadata.get(f"{architecture}.block_count")) or 0
    extra = values.whole(file.metadata.get(f"{architecture}.nextn_predict_layers")) or 0
    if extra > 0:
        line = f"{extra} multi-token-prediction block(s) from blk.{blocks - extra} on will be skipped"
        yield Hindrance(line, stops=False)
    if missing := missing_tensors(architecture, file):
        examples = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        yield Hindrance(f"{len(missing)} expected tensors are missing: {examples}")
        return
    config = read_config(file)
    store = HeaderStore(file, config)
    ModelWeights.build(store)
    store.finish(find_architecture(architecture).config_tensors)


def vocabulary_hindrances(file: GGUFFile, vocabulary: Vocabulary | None, problem: str | None) -> Iterator[Hindrance]:
    """Yield the hindrances of the vocabulary; `problem` is why it is None."""
    if is_draft(file):  # it uses the vocabulary and template of its target
        return
    if vocabulary is None:
        yield Hindrance(f"no usable tokenizer: {problem}")
        return
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape[0] != (tokens := len(vocabulary.tokens)):
        line = f"vocabulary of {tokens} tokens but {embedding.shape[0]} embedding rows"
        yield Hindrance(line, stops=tokens > embedding.shape[0])
    if "eos" not in vocabulary.ids:
        yield Hindrance("no end-of-sequence token id: an answer may not know where to stop", stops=False)


def without_path(error: Exception, file: GGUFFile) -> str:
    """Return the message of an error about a file, without the file's name."""
    return str(error).removeprefix(f"{file.path}: ")


Depth = Callable[[Path, ModelConfig], int | None]


def whole(path: Path, config: ModelConfig) -> int | None:
    """Load all layers, and the head."""
    return None


@dataclass(frozen=True)
class Subject:
    """A model file as described by its header; with several GPUs, the shard of one of them. `stacks`: bytes of its
    experts on the device, by layer; empty without experts, or for several GPUs."""

    path: str
    nbytes: int  # nbytes, parameters: sums over all files of the model
    parameters: int
    draft: bool  # True for a draft model of speculative decoding, which does not run by itself
    hindrances: tuple[Hindrance, ...]
    vocabulary: Vocabulary | None  # None if it has no usable one
    config: ModelConfig | None  # None if its metadata describe no model
    weights: int | None  # bytes on the device; None if a tensor is missing or cannot be packed
    names: tuple[str, ...]  # names of all tensors
    streamed: int | None = None  # bytes of the weights that a pass reads, see `streamed_bytes`; None if `weights` is
    shape: str | None = None  # name of a shape, if there is no file
    stacks: Stacks = ()
    gpus: int = 1  # GPUs that share it; `config` and device bytes are those of one of them
    formats: Mapping[str, BlockFormat] = field(default_factory=dict)  # formats by tensor name
    depth: Depth = whole  # see `read_subject`

    @property
    def alone(self) -> bool:
        """True if one GPU holds the whole model."""
        return self.gpus == 1

    @property
    def stopped(self) -> Hindrance | None:
        """The first hindrance that keeps it from running anywhere."""
        return next((hindrance for hindrance in self.hindrances if hindrance.stops), None)

    @property
    def refused(self) -> Hindrance | None:
        """The first hindrance for which no command accepts the file."""
        return next((hindrance for hindrance in self.hindrances if hindrance.stops and not hindrance.usable), None)

    @property
    def on_device(self) -> bool:
        """True if a GPU with enough memory runs it."""
        config = self.config
        if self.weights is None or config is None or any(s.head_dim not in HEAD_DIMS for s in config.head_sizes):
            return False
        experts = config.experts
        return experts is None or (experts.count <= MOST_EXPERTS and experts.used <= MOST_USED)

    @cached_property
    def text_tokens(self) -> int | None:
        """Number of ordinary tokens before the first special one, which is equal for shapes of one vocabulary."""
        if self.vocabulary is None:
            return None
        types = self.vocabulary.types
        return next((i for i, kind in enumerate(types) if kind != NORMAL), len(types))

    @cached_property
    def scoring_model(self) -> Drafter | None:
        """The part that is loaded to score for another model; None if the device cannot store it.

        Its depth may depend on the file's hash, which takes a while to compute once.
        """
        if self.config is None or self.weights is None:
            return None
        depth = self.depth(Path(self.path), self.config)
        return Drafter.of(Path(self.path).name, self.config, self.formats, depth, self.gpus)

    def as_drafter(self, tokens: int | None = None) -> str:
        """Describe in one line how it reads prompts of `tokens` tokens as a drafter. `config` must not be None."""
        assert self.config is not None
        window = describe_window(self.config, tokens)
        # Larger files are no drafters, so they are not hashed to find their depth.
        drafter = self.scoring_model if self.parameters <= LARGEST_DRAFTER else None
        return f"{window}; {drafter.depth_label} are read" if drafter and drafter.depth_label else window

    def weights_as(self, file_type: str) -> int | None:
        """Compute the bytes on the device of the same model in another file type; None if that is impossible."""
        if self.config is None:
            return None
        layers, tied = self.config.layers, "output.weight" not in self.names
        try:
            tensors = model_tensors(self.config, self.names)
            formats = {t.name: tensor_format(file_type, t.name, t.shape, layers=layers, tied=tied) for t in tensors}
            return weights_bytes(self.config, formats, self.gpus)
        except ModelError:
            return None


def read_subject(file: GGUFFile, gpus: int = 1, depth: Depth = whole) -> Subject:
    """Read the header of an open file; all problems become hindrances. `gpus`: number that share the model; `depth`:
    function of path and configuration that returns the layers to load if the model scores. ConfigError: so many GPUs
    cannot share it."""
    vocabulary, problem = None, None
    try:
        vocabulary = read_vocabulary(file.metadata, str(file.path))
    except GGUFError as error:
        problem = without_path(error, file)
    formats = file_formats(file)
    try:
        config = read_config(file)
    except (GGUFError, ModelError):
        config = None
    config, (weights, streamed, stacks) = _shared(config, formats, gpus)
    return Subject(
        str(file.path),
        file.nbytes,
        sum(info.elements for info in file.tensors.values()),
        is_draft(file),
        (
            *find_hindrances(file),
            *vocabulary_hindrances(file, vocabulary, problem),
            *_template_hindrances(file, vocabulary),
        ),
        vocabulary,
        config,
        weights,
        tuple(file.tensors),
        streamed,
        stacks=stacks,
        gpus=gpus,
        formats=formats,
        depth=depth,
    )


def shape_subject(name: str, file_type: str, gpus: int = 1, depth: Depth = whole) -> Subject:
    """Describe a named shape like a file of a type; ConfigError if either is unknown, or GPUs cannot share it. `depth`:
    see `read_subject`."""
    shape = find_shape(name)
    plan = shape.plan(file_type)
    formats = {tensor: fmt for tensor, _, fmt in plan}
    nbytes = sum(fmt.nbytes(size) for _, size, fmt in plan)
    parameters = sum(tensor.size for tensor in shape.tensors())
    config, (weights, streamed, stacks) = _shared(shape.config, formats, gpus)
    path = f"{name}-{file_type}.synthetic"
    sizes = weights, tuple(formats), streamed, name, stacks, gpus, formats, depth
    return Subject(path, nbytes, parameters, False, (), None, config, *sizes)


Sizes = tuple[int | None, int | None, Stacks]


def _shared(
    config: ModelConfig | None, formats: Mapping[str, BlockFormat], gpus: int
) -> tuple[ModelConfig | None, Sizes]:
    """Return the configuration and sizes of a model, or of the shard of one of several GPUs."""
    if gpus == 1 or config is None:
        return config, _sizes(config, formats, gpus)
    part = shard_config(config, gpus)
    _check_blocks(part, formats, gpus)
    sizes = _sizes(part, formats, gpus)
    if sizes[0] is None and _sizes(config, formats, 1)[0] is not None:
        raise ConfigError(
            f"{gpus} GPUs cannot share its matrices: the parts of one would be too narrow; use fewer GPUs"
        )
    return part, sizes


def _check_blocks(config: ModelConfig, formats: Mapping[str, BlockFormat], gpus: int) -> None:
    """Raise ConfigError if a GPU's columns of a matrix would end within a block of its format."""
    for tensor in model_tensors(config, formats):
        fmt = formats.get(tensor.name)
        if fmt is not None and tensor.kind in ("matrix", "stack") and tensor.shape[-1] % fmt.block_size:
            raise ConfigError(
                f"{tensor.name}: {gpus} GPUs cannot share its columns in {fmt.name}, which has blocks of "
                f"{fmt.block_size}; use fewer GPUs, or a file in another format"
            )


def _sizes(config: ModelConfig | None, formats: Mapping[str, BlockFormat], gpus: int) -> Sizes:
    """Return the bytes on the device, those that a pass reads, and those of experts; None or empty if unknown."""
    if config is None:
        return None, None, ()
    try:
        stacks = stack_bytes(config, formats) if gpus == 1 else ()
        return weights_bytes(config, formats, gpus), streamed_bytes(config, formats, gpus), stacks
    except (ModelError, KeyError):  # too narrow for the device, or tensors are missing
        return None, None, ()


def _template_hindrances(file: GGUFFile, vocabulary: Vocabulary | None) -> Iterable[Hindrance]:
    """Yield what is wrong with the chat template, which is compiled and renders a conversation of one word."""
    try:
        template = chat_template(file)
        if template is not None:
            check_template(template)
            named = {} if vocabulary is None else {key: vocabulary.tokens[i] for key, i in vocabulary.ids.items()}
            compiled = ChatTemplate(template, named.get("bos", ""), named.get("eos", ""))
            render_chat(compiled, [{"role": "user", "content": "hi"}])
        elif not is_draft(file):
            yield Hindrance("no chat template: give one, or a prompt as plain text", stops=False)
    except GGUFError as error:
        yield Hindrance(without_path(error, file))
