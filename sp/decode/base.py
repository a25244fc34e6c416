"""Ways of decoding by name, how a token is chosen, and the ways without a draft."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.config import Registry, check_fields
from sp.errors import ConfigError, PromptError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.sequence import NEXT_STEP
from sp.models import Cache, Model, decode_step
from sp.models.run.captured_graph import CapturedGraph, CaptureStream
from sp.ops.array_module import array_module, on_host
from sp.ops.sampling.biased import Penalties, PenaltyState
from sp.ops.sampling.sample import (
    MOST_TOP,
    Sampling,
    Words,
    allowed_logits,
    argmax,
    likely_logits,
    sample,
    token_shares,
    top_logprobs,
)


class Constraint(Protocol):
    """What an answer may say, token by token."""

    def allowed(self) -> Words | None:
        """Tokens that may come next, as `allowed_logits` takes them; None for all."""
        ...

    def take(self, token: int) -> None:
        """Go on behind a token."""
        ...


@dataclass(frozen=True)
class Choice:
    """A token, and what the model thought of it before temperature, filters and constraint.

    Attributes
    ----------
    logprob : float
        Natural logarithm of its probability.
    tokens : int64 (k,)
        The likeliest ones, best first.
    logprobs : float64 (k,)
        Theirs.
    """

    token: int
    logprob: float
    tokens: Ints
    logprobs: Floats


class Chooser:
    """Chooses the tokens of one answer.

    Parameters
    ----------
    sampling : Sampling or None
        None takes the likeliest.
    seed : int
        Of the draws.
    min_p : float
        Where tokens are drawn: of none that is less than `min_p` times as likely as the likeliest.
    penalties : Penalties, optional
        Bias of tokens, and penalties for those said before; `constraint` has the last word.
    on_choice : callable, optional
        Told of every token as it is chosen, the one that ends the answer among them.
    top : int
        How many of the likeliest tokens `on_choice` is told of.

    Examples
    --------
    >>> told = []
    >>> chooser = Chooser(None, 0, on_choice=told.append, top=1)
    >>> chooser.choose(np.log(np.array([[0.25, 0.75]], np.float32))).tolist()
    [1]
    >>> round(float(np.exp(told[0].logprob)), 6), told[0].tokens.tolist()
    (0.75, [1])
    """

    def __init__(
        self,
        sampling: Sampling | None,
        seed: int,
        *,
        min_p: float = 0.0,
        penalties: Penalties | None = None,
        constraint: Constraint | None = None,
        on_choice: Callable[[Choice], None] | None = None,
        top: int = 0,
    ) -> None:
        self._sampling, self._seed, self._min_p, self._constraint = sampling, seed, min_p, constraint
        self._said = None if penalties is None else PenaltyState(penalties)
        self._tell, self._top = on_choice, top
        self._state: tuple[Any, Any] | None = None

    def choose(self, logits: Floats) -> Any:
        """The next token, int32 (1,), from logits (1, vocab), where those are.

        The host waits for it only where it is told of it.
        """
        words = self._constraint.allowed() if self._constraint else None
        left = logits if self._said is None else self._said.apply(logits)
        left = left if words is None else allowed_logits(left, words)
        token = argmax(left) if self._sampling is None else self._drawn(left, self._sampling)
        if self._constraint or self._tell or (self._said and self._said.counting):
            chosen = int(on_host(token)[0])
            if self._said:
                self._said.take(chosen)
            if self._constraint:
                self._constraint.take(chosen)
            if self._tell:
                self._tell(self._choice(logits, chosen))
        return token

    def _drawn(self, logits: Floats, sampling: Sampling) -> Any:
        if self._state is None:
            module = array_module(logits)
            self._state = module.full(1, self._seed, np.int64), module.zeros(1, np.int64)
        if self._min_p:
            logits = likely_logits(logits, argmax(logits), sampling.temperature, self._min_p)
        return sample(logits, sampling, *self._state)

    def _choice(self, logits: Floats, token: int) -> Choice:
        with np.errstate(divide="ignore"):
            share = float(np.log(token_shares(logits, 1.0, np.array([token], np.int64))[0]))
        if not self._top:
            return Choice(token, share, np.empty(0, np.int64), np.empty(0, np.float32))
        rows = logits if self._top <= MOST_TOP else on_host(logits)
        best = [on_host(each)[0] for each in top_logprobs(rows, min(self._top, rows.shape[1]))]
        return Choice(token, share, *best)


class Decoder:
    """A way to decode; those that guess ahead are `Speculative`.

    Attributes
    ----------
    watched : bool
        Whether somebody is told of its tokens or says which may come, so that no more than one may choose them.
    """

    watched = False

    def chooser(self, seed: int, **watched: Any) -> Chooser | None:
        """What chooses the tokens of one answer, where no draft guesses ahead; None for the likeliest of all.

        Parameters
        ----------
        seed : int
            Of the run.
        watched
            What else a `Chooser` takes: a constraint, or who is told of the tokens. A draft then guesses nothing.
        """
        return Chooser(None, seed, **watched) if watched else None


DECODERS: Registry[Decoder] = Registry("decoder")


@DECODERS.register("greedy")
@dataclass(frozen=True)
class Greedy(Decoder):
    """The likeliest token, one pass of the target each; see `sp.decode.base`."""


COLDEST, HOTTEST = 1e-5, 100.0  # temperatures between which the weights of tokens can be told apart


@DECODERS.register("sample")
@dataclass(frozen=True)
class Sample(Decoder):
    """Tokens drawn at a temperature, of those that filters leave; no draft guesses ahead.

    Filters follow each other as in vLLM: temperature, `min_p`, `top_k`, `top_p`, each on what the one before left.
    (llama.cpp has top-k, top-p, min-p and then the temperature, unless told otherwise.)

    Parameters
    ----------
    temperature : float
        Above 0.
    top_k : int
        Draw from that many of the likeliest; 0 for all.
    top_p : float
        Draw from the fewest that have this share.
    min_p : float
        Draw from none that is less than `min_p` times as likely as the likeliest.
    seed : int, optional
        Of the draws; that of the run if left out.

    Examples
    --------
    >>> import numpy as np
    >>> chooser = Sample(0.8, top_p=0.5).chooser(0)
    >>> chooser.choose(np.log(np.array([[0.1, 0.6, 0.3]], np.float32))).tolist()
    [1]
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "decoder sample")
        ranges = {
            "temperature": (COLDEST <= self.temperature <= HOTTEST, f"{COLDEST:g} to {HOTTEST:g}, or decode greedily"),
            "top_k": (0 <= self.top_k < 2**31, "0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0, at most 1"),
            "min_p": (0 <= self.min_p <= 1, "0 to 1"),
            "seed": (self.seed is None or 0 <= self.seed < 2**63, "0 or more"),
        }
        for name, (right, wanted) in ranges.items():
            if not right:
                raise ConfigError(f"decoder sample: {name} is {getattr(self, name)}; give {wanted}")

    def chooser(self, seed: int, **watched: Any) -> Chooser:
        sampling = Sampling(self.temperature, self.top_k, self.top_p)
        return Chooser(sampling, seed if self.seed is None else self.seed, min_p=self.min_p, **watched)


def greedy(
    model: Model,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    eos_ids: frozenset[int],
    max_new_tokens: int,
    on_token: Callable[[int], bool | None] | None = None,
) -> list[int]:
    """Tokens generated from the logits of the last prompt token.

    On the device every step but the first is the replay of a CUDA graph, see `GraphDecoder`.

    `logits` array (vocab,): logits after the prefill; their argmax is the first token; `position`: position of the
    first generated token: the length of the *original* prompt when kept tokens stand at their original positions;
    `eos_ids`: tokens that end the answer; they are not returned; `on_token`: called with each token as soon as it is
    known; if it returns True, that token is the last.
    """
    return gather(generate(model, logits, position, cache, limit=max_new_tokens), eos_ids, on_token)


def gather(
    stream: Generator[int], eos_ids: frozenset[int], on_token: Callable[[int], bool | None] | None = None
) -> list[int]:
    """Tokens of a stream up to an end token, which is left out; closes the stream. `on_token` as for `greedy`."""
    tokens: list[int] = []
    with closing(stream):
        for token in stream:
            if token in eos_ids:
                break
            tokens.append(token)
            if on_token is not None and on_token(token):
                break
    return tokens


def generate(
    model: Model,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    limit: int,
    decoder: GraphDecoder | None = None,
    chooser: Chooser | None = None,
) -> Generator[int]:
    """Tokens one by one, up to `limit`, the likeliest or those of a `chooser`; other parameters as those of `greedy`.
    On the device `decoder` is one of the same model and cache that goes on living; by default it is made for this.
    """
    if is_device(logits) and model.captures:
        mine = decoder or GraphDecoder(model, cache, limit)
        try:
            yield from mine.tokens(logits, position, limit, chooser)
        finally:
            if decoder is None:
                mine.end()
        return
    for number in range(limit):
        row = logits.reshape(1, -1)
        token = int((argmax(row) if chooser is None else chooser.choose(row))[0])
        yield token
        if number + 1 < limit:
            logits = decode_step(model, token, position + number, cache)


class GraphDecoder:
    """Decoding on the device, of one answer after the other with the same cache: a step as a CUDA graph.

    A step of a large model is hundreds of short kernels; launched one by one the host is slower than the device. In the
    graph the chosen token, its position and the token counts of the cache live on the device and move on there, so
    every replay is the same. The host only starts replays, takes pages for the cache and reads tokens as they appear.
    Greedily the graph holds all of a step; with a chooser it ends with the logits, from which that chooses.

    `eager`: launch every step kernel by kernel, as a reference.
    """

    def __init__(self, model: Model, cache: Cache, limit: int, *, eager: bool = False) -> None:
        cupy = import_cupy()
        self._model, self._cache, self._last_position = model, cache, -1
        self._lane = CaptureStream()
        how: dict[str, Any] = {"eager": eager, "agreed": model.agreed, "cache": cache}
        self._read_next: CapturedGraph[None] = CapturedGraph(**how)
        self._next_logits: CapturedGraph[Any] = CapturedGraph(**how)
        self._arrived = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * limit), np.int32, limit)
        self._token, self._history = cupy.empty(1, np.int32), cupy.empty(limit, np.int32)
        self._position, self._step = cupy.zeros(1, np.int64), cupy.zeros(1, np.int32)

    def tokens(self, logits: Any, position: int, limit: int, chooser: Chooser | None = None) -> Iterator[int]:
        """Each token as soon as the host knows it.

        While the host waits for a token, but for the first, the device is at work on the next one, so whoever stops
        early finds the cache one token further on; not so with a chooser, which may have to be told first.

        `logits` cupy float32 (vocab,): of the last token read; from them the first token is chosen; `limit`: most
        tokens to generate; the cache needs room for all but the last; `chooser`: takes the likeliest token if left out.
        """
        self._last_position = position - 1
        self._position.fill(position - 1)
        self._step.fill(0)
        ahead = 2 if chooser is None else 1
        with self._lane.working():
            self._choose(logits.reshape(1, -1), chooser)
        waiting, launched = [self._fetch(0)], 1
        try:
            for number in range(limit):
                # The first token is wanted at once: to launch a step takes the host longer than the token will.
                while launched < min(number + (ahead if number else 1), limit):
                    self._advance(chooser)
                    waiting.append(self._fetch(launched))
                    launched += 1
                self._model.arrived(waiting.pop(0))
                yield int(self._arrived[number])
        finally:
            self._lane.stream.synchronize()  # the cache may be let go of now

    @property
    def refused(self) -> str | None:
        """Why steps are not in a graph; only where cards share the model, otherwise that is an error."""
        return self._read_next.refused or self._next_logits.refused

    def end(self) -> None:
        """Let go of the graph and its memory."""
        self._lane.stream.synchronize()
        self._read_next.clear()
        self._next_logits.clear()
        self._lane.end()

    def _fetch(self, number: int) -> Any:
        """Copy a token to the host; the event that marks its arrival."""
        runtime = import_cupy().cuda.runtime
        source, target = self._history[number:].data.ptr, self._arrived[number:].ctypes.data
        runtime.memcpyAsync(target, source, 4, runtime.memcpyDeviceToHost, self._lane.stream.ptr)
        return self._lane.stream.record()

    def _advance(self, chooser: Chooser | None) -> None:
        """Read the newest token and choose the next one: the first time launch by launch, then by replays."""
        self._last_position += 1
        if self._last_position >= self._model.config.context:
            raise PromptError(
                f"position {self._last_position} is outside the model's context of {self._model.config.context} "
                "tokens; ask for a shorter answer"
            )
        with self._lane.working():
            self._cache.reserve(1)
            graph: CapturedGraph[Any] = self._read_next if chooser is None else self._next_logits
            if graph.ready:
                self._cache.count(1)
            if chooser is None:
                self._read_next(self._read_and_choose)
            else:
                self._choose(self._next_logits(self._read), chooser)

    def _read_and_choose(self) -> None:
        """One step, with the likeliest token."""
        self._choose(self._read(), None)

    def _read(self) -> Any:
        """The token through all layers; logits (1, vocab) of the next."""
        x = self._model.embed(self._token)
        with self._cache.together(1):
            for layer in range(self._model.config.layers):
                x = self._model.layer(layer, x, self._position, self._cache)
        return self._model.head(x)

    def _choose(self, logits: Any, chooser: Chooser | None) -> None:
        """A token of logits (1, vocab) is the next one."""
        token = argmax(logits) if chooser is None else chooser.choose(logits)
        NEXT_STEP.launch((1,), token, self._token, self._position, self._history, self._step)
