"""Options of a run, of its models and devices: defined once for Python, command line, sweeps and server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from sp.config import Option, Registry, Tokens, check_fields
from sp.decode import DECODERS, Decoder, Speculative
from sp.errors import ConfigError
from sp.keywords import names_keywords
from sp.models import Gaps, ModelConfig, RopeScaling
from sp.models.cache.kv_type import USUAL, KVType, rotates
from sp.named import read_strategy
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer, ReadingScorer
from sp.scoring.sparse import Sparse
from sp.selection import SELECTORS, Selector, check_keep_ratio
from sp.session.device_memory import Size, Where

if TYPE_CHECKING:
    from sp.session.loaded import Loaded

T = TypeVar("T")
if TYPE_CHECKING:

    class ByName(Generic[T]):
        """A field of type T that may be set by name, for type checkers."""

        def __get__(self, instance: object, owner: object) -> T: ...
        def __set__(self, instance: object, value: T | str) -> None: ...

else:

    class _FieldType:
        """The type of the field itself, for code that inspects fields at run time."""

        def __getitem__(self, kind):
            return kind

    ByName = _FieldType()


Compress = Literal["auto", "always", "off"]
Positions = Literal["original", "contiguous"]
PositionsOption = Literal["auto", "original", "contiguous"]
Mapping = Literal["byte_span", "text_rejoin"]
BY_NAME: dict[str, Registry[Any]] = {"scorer": SCORERS, "selector": SELECTORS, "decode": DECODERS}
"""Options that are strategies, with the registries of their names."""
PrecisionName = Literal["auto", "bf16", "fp8", "int8"]


@names_keywords
@dataclass(frozen=True)
class ModelOptions:
    """The models of a run and their options.

    Parameters
    ----------
    target : Path, optional
        GGUF file or known name of the target; the embedded one if omitted.
    drafter : Path, optional
        GGUF file or known name of the drafter; the best downloaded one if omitted (see sp get).
    target_rope : RopeScaling, optional
        RoPE scaling of the target instead of its file's: none, linear:2, yarn:4.
    drafter_rope : RopeScaling, optional
        RoPE scaling of the drafter; by default YaRN as needed beyond its window.
    precision : {"auto", "bf16", "fp8", "int8"}
        Matmul precision of target prefill: bf16, int8, fp8 or auto.
    drafter_precision : {"auto", "bf16", "fp8", "int8"}
        Matmul precision of drafter prefill.
    """

    group: ClassVar[str] = "Models"

    target: Path | None = None
    drafter: Path | None = None
    target_rope: RopeScaling | None = None
    drafter_rope: RopeScaling | None = None
    precision: PrecisionName = "bf16"
    drafter_precision: PrecisionName = "bf16"


@names_keywords
@dataclass(frozen=True)
class PlaceOptions:
    """The devices of the models.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        cuda, cpu, or auto: the GPU if there is one.
    gpus : int
        Number of GPUs, from the first on: for the drafter they divide each prompt, and they share the target.
    target_gpus : int, optional
        Number of GPUs that share the target, if it differs from gpus.
    vram : Size, optional
        Limit of GPU memory for models, caches and temporary arrays, e.g. 24g; none if omitted.
    break_even : Path, optional
        Records of sp bench ttft that decide whether auto compresses, in place of a prediction.
    """

    group: ClassVar[str] = "Devices"

    device: Where = "auto"
    gpus: Annotated[int, Option(least=1)] = 1
    target_gpus: Annotated[int | None, Option(least=1)] = None
    vram: Size | None = None
    break_even: Path | None = None


@names_keywords
@dataclass(frozen=True)
class RunOptions:
    """How a prompt is compressed and answered.

    Parameters
    ----------
    keep_ratio : float
        Share of the unprotected tokens that the target reads, in (0, 1]; protected ones (question, system message,
        markup) are read in addition.
    scorer : Scorer or str
        Scorer of tokens; by name with options in brackets, as in tail[queries=24], see sp list scorers.
    selector : Selector or str
        Selector of tokens by importance; by name with options in brackets, see sp list selectors.
    compress : {"auto", "always", "off"}
        Compress prompts always, never, or with auto if the predicted cost is below that of the full prefill.
    threshold : int
        With auto, prompts of fewer tokens are never compressed.
    positions : {"auto", "original", "contiguous"}
        Positions of selected tokens: those in the prompt (original), or 0, 1, 2, ... (contiguous). auto is contiguous
        for a target with sliding windows and for text_rejoin, else original. Always contiguous for a prompt longer than
        the target's context.
    mapping : {"byte_span", "text_rejoin"}
        From drafter to target: byte_span selects the target tokens that share bytes with the drafter's important ones;
        text_rejoin joins the selected text and encodes it again, which implies contiguous positions (cross-family
        speculative prefill, arXiv 2603.02631).
    mark_omitted : bool
        Write a mark such as [... 212 lines ...] in place of omitted text, but not inside JSON values. Marks are added
        to the selected tokens, at positions of the text that they replace.
    kv : KVType
        Format of the target's KV cache: f16, q8_0, 5bit, 4bit, q4_0, or one each for keys and values as in
        k=q8_0,v=q4_0; on the CPU also f32, q5_1 and q5_0.
    rotate : bool, optional
        Hadamard-rotate cached keys and values; if omitted, when the cache is quantised, as in llama.cpp.
    state_gaps : {"compact", "reset", "decay"}
        Treatment of gaps by the target's recurrent layers.
    sparse : Sparse, optional
        Key blocks that the drafter reads, instead of the scorer's own setting: off, auto, alpha:0.1, density:0.05,
        blocks:64, sqrt:64, energy:0.9 or skip:0.05.
    target_sparse : FlashPrefill or SkipSoftmax, optional
        Block-sparse attention of target prefill, or without tiles of little weight; dense if omitted.
    decode : Decoder or str
        Decoder, by name: greedy, sample, or speculative with a draft: dflash (a chain) or ddtree (a tree).
    max_new_tokens : int
        Longest answer, thinking included, in tokens.
    seed : int
        Seed of scorers that draw random numbers, and of sampled answers.

    Raises
    ------
    ConfigError
        For a value of the wrong type or out of range, an unknown name, or options that exclude each other.

    Examples
    --------
    >>> RunOptions(scorer="tail[queries=24]", selector="top_chunks", decode="greedy").scorer.queries
    24
    >>> RunOptions(max_new_tokens="2k").max_new_tokens
    2048
    """

    group: ClassVar[str] = "Reading"

    keep_ratio: float = 0.05
    scorer: ByName[Scorer] = "auto"  # type: ignore[assignment]  # a name until it is read
    selector: ByName[Selector] = "top_chunks"  # type: ignore[assignment]
    compress: Compress = "auto"
    threshold: Annotated[ByName[Tokens], Option(least=0)] = 0  # type: ignore[assignment]
    positions: Annotated[PositionsOption, Option(fixed=True)] = "auto"
    mapping: Annotated[Mapping, Option(fixed=True)] = "byte_span"
    mark_omitted: bool = False
    kv: Annotated[ByName[KVType], Option(fixed=True)] = USUAL  # type: ignore[assignment]
    rotate: Annotated[bool | None, Option(fixed=True)] = None
    state_gaps: Annotated[Gaps, Option(fixed=True)] = "compact"
    sparse: Sparse | None = None
    target_sparse: Annotated[FlashPrefill | SkipSoftmax | None, Option(fixed=True, textual=False)] = None
    decode: ByName[Decoder] = "greedy"  # type: ignore[assignment]
    max_new_tokens: Annotated[ByName[Tokens], Option(least=1)] = 64  # type: ignore[assignment]
    seed: Annotated[int, Option(least=0)] = 0

    def __post_init__(self) -> None:
        for name, registry in BY_NAME.items():
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, read_strategy(value, registry, name))  # frozen
        check_fields(self, "options")
        check_keep_ratio(self.keep_ratio)
        rotates(self.kv, self.rotate)  # raises for formats that exist for rotated rows only
        if self.sparse is not None:
            if not isinstance(self.scorer, ReadingScorer):
                raise ConfigError(f"scorer {SCORERS.name_of(self.scorer)} runs no model; omit sparse")
            object.__setattr__(self, "scorer", replace(self.scorer, sparse=self.sparse))
            object.__setattr__(self, "sparse", None)  # the scorer has it now, so that equal options compare equal
        if self.mapping == "text_rejoin" and self.positions == "original":
            raise ConfigError("text_rejoin loses the original positions; use it with positions contiguous")
        if self.target_sparse is not None and isinstance(self.decode, Speculative):
            raise ConfigError(
                "speculative decoding needs dense attention in the target; omit target.alpha or target.skip, or use "
                "decoder greedy"
            )
        contiguous = self.positions == "contiguous" or self.mapping == "text_rejoin"
        if self.state_gaps != "compact" and (contiguous or self.target_sparse is not None):
            raise ConfigError(
                f"state_gaps {self.state_gaps} needs positions original and dense attention in the target"
            )

    @property
    def rotated(self) -> bool:
        """True if the target's cached keys and values are rotated.

        Examples
        --------
        >>> RunOptions(kv="q4_0").rotated, RunOptions(kv="q4_0", rotate=False).rotated, RunOptions().rotated
        (True, False, False)
        """
        return rotates(self.kv, self.rotate)


Method = TypeVar("Method", bound=Callable[..., Any])


def takes_options(method: Method) -> Method:
    """Decorate a function that takes a `RunOptions`: passing its fields as keywords is explained in the error."""
    return names_keywords(method, [field.name for field in fields(RunOptions)])


Recall = Literal["auto", "append", "rewind", "off"]


@names_keywords
@dataclass(frozen=True)
class ConversationOptions:
    """How the turns of a conversation share caches.

    Parameters
    ----------
    recall : {"auto", "append", "rewind", "off"}
        How omitted text that a later question needs is restored: append puts an excerpt before the first new message;
        rewind puts it at its place, and everything after it is read again; auto uses the one that reads fewer tokens.
    recall_ratio : float
        Largest share of the omitted tokens that a turn may restore; at least 128 tokens.
    recall_tokens : int
        Largest number of tokens that a turn may restore.
    keys : KVType
        Format of the drafter's cached keys and values of the transcript; as for kv.
    snapshots : int
        Number of snapshots of recurrent states in host memory, for rewind.

    Examples
    --------
    >>> from sp.config import from_mapping
    >>> from_mapping(ConversationOptions, {"recall": "append", "recall_tokens": 256}, "conversation").recall
    'append'
    """

    group: ClassVar[str] = "Memory"

    recall: Recall = "auto"
    recall_ratio: float = 0.05
    recall_tokens: Annotated[Tokens, Option(least=1)] = 384
    keys: Annotated[KVType, Option(flags=("--keys", "--session-keys"))] = USUAL
    snapshots: Annotated[int, Option(least=1)] = 8

    def __post_init__(self) -> None:
        check_fields(self, "conversation")
        if not 0 < self.recall_ratio <= 1:
            raise ConfigError(f"recall_ratio must be above 0 and at most 1, not {self.recall_ratio:g}")


def check_run(options: RunOptions, drafter: Loaded | None) -> ModelConfig | None:
    """Return the layers of the drafter whose keys are kept; None without a drafter or for a scorer without a model.

    ConfigError for options that a conversation does not support.
    """
    if isinstance(options.decode, Speculative):
        raise ConfigError("a conversation does not support speculative decoding; use decoder greedy or sample")
    if options.mapping != "byte_span":
        raise ConfigError(f"mapping {options.mapping} encodes the selected text again each turn; use byte_span")
    if options.mark_omitted:
        raise ConfigError("a conversation cannot mark omitted text, which may come back; omit mark_omitted")
    if drafter is None or isinstance(options.scorer, ModelFreeScorer):
        return None
    name = SCORERS.name_of(options.scorer)
    if options.scorer.reads_target:
        raise ConfigError(f"scorer {name} runs on the target, which would read everything; use a drafter-based scorer")
    layers = options.scorer.prefix_layers(drafter.model.config)  # None: its scores need more than keys of earlier turns
    if layers is None:
        raise ConfigError(f"scorer {name} cannot reuse keys of earlier turns; use tail or anchored")
    return layers
