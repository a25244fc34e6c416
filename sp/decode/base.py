"""Registry of decoders, choice of tokens from logits, and the decoders that need no draft."""

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
    """A rule of which tokens an answer may contain, for example a grammar."""

    def allowed(self) -> Words | None:
        """Tokens that may come next, in the form of `allowed_logits`; None for all."""
        ...

    def take(self, token: int) -> None:
        """Advance past a token."""
        ...


@dataclass(frozen=True)
class TokenChoice:
    """A chosen token, and its probability in the model's distribution before temperature, filters and constraint.

    Attributes
    ----------
    logprob : float
        Natural logarithm of the token's probability.
    tokens : int64 (k,)
        The likeliest tokens, best first.
    logprobs : float64 (k,)
        Natural logarithms of their probabilities.
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
        Temperature and filters of the draws; None takes the likeliest token.
    seed : int
        Seed of the draws.
    min_p : float
        Exclude tokens that are less than `min_p` times as likely as the likeliest.
    penalties : Penalties, optional
        Biases of tokens, and penalties for those generated before; `constraint` has precedence.
    constraint : Constraint, optional
        Restricts the tokens that may come.
    on_choice : callable, optional
        Called with every token as it is chosen, including the one that ends the answer.
    top : int
        Number of likeliest tokens in each `TokenChoice`.

    Examples
    --------
    >>> choices = []
    >>> chooser = Chooser(None, 0, on_choice=choices.append, top=1)
    >>> chooser.choose(np.log(np.array([[0.25, 0.75]], np.float32))).tolist()
    [1]
    >>> round(float(np.exp(choices[0].logprob)), 6), choices[0].tokens.tolist()
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
        on_choice: Callable[[TokenChoice], None] | None = None,
        top: int = 0,
    ) -> None:
        self._sampling, self._seed, self._min_p, self._constraint = sampling, seed, min_p, constraint
        self._penalties = None if penalties is None else PenaltyState(penalties)
        self._on_choice, self._top = on_choice, top
        self._state: tuple[Any, Any] | None = None  # seed and number of draws, created where the first logits are

    def choose(self, logits: Floats) -> Any:
        """Choose the next token, int32 (1,), from logits (1, vocab), on their device.

        The host waits for the token only where a callback, a constraint or penalties depend on it.
        """
        words = self._constraint.allowed() if self._constraint else None
        # Penalties first: a constraint sets logits to -inf, which no bias may raise again.
        adjusted = logits if self._penalties is None else self._penalties.apply(logits)
        adjusted = adjusted if words is None else allowed_logits(adjusted, words)
        token = argmax(adjusted) if self._sampling is None else self._draw(adjusted, self._sampling)
        if self._constraint or self._on_choice or (self._penalties and self._penalties.counting):
            chosen = int(on_host(token)[0])  # waits for the device
            if self._penalties:
                self._penalties.take(chosen)
            if self._constraint:
                self._constraint.take(chosen)
            if self._on_choice:
                self._on_choice(self._choice(logits, chosen))
        return token

    def _draw(self, logits: Floats, sampling: Sampling) -> Any:
        if self._state is None:
            module = array_module(logits)  # seed and number of draws live where the logits are
            self._state = module.full(1, self._seed, np.int64), module.zeros(1, np.int64)
        # `min_p` comes before the other filters, as in vLLM.
        if self._min_p:
            logits = likely_logits(logits, argmax(logits), sampling.temperature, self._min_p)
        return sample(logits, sampling, *self._state)

    def _choice(self, logits: Floats, token: int) -> TokenChoice:
        with np.errstate(divide="ignore"):
            # At temperature 1, unfiltered.
            share = float(np.log(token_shares(logits, 1.0, np.array([token], np.int64))[0]))
        if not self._top:
            return TokenChoice(token, share, np.empty(0, np.int64), np.empty(0, np.float32))
        # The device kernel has room for MOST_TOP; more are sorted out on the host.
        rows = logits if self._top <= MOST_TOP else on_host(logits)
        best = [on_host(column)[0] for column in top_logprobs(rows, min(self._top, rows.shape[1]))]
        return TokenChoice(token, share, *best)


class Decoder:
    """A decoding method; speculative ones are `Speculative`.

    Attributes
    ----------
    observed : bool
        True if a callback or a constraint depends on its tokens, so that they have to be chosen in one place only.
    """

    observed = False

    def chooser(self, seed: int, **observed: Any) -> Chooser | None:
        """Return the chooser of one answer where no draft is used; None for the likeliest token each time.

        Parameters
        ----------
        seed : int
            Seed of the run.
        observed
            Further arguments of `Chooser`: a constraint, callbacks, penalties. With them nothing is decoded
            speculatively.
        """
        return Chooser(None, seed, **observed) if observed else None


DECODERS: Registry[Decoder] = Registry("decoder")


@DECODERS.register("greedy")
@dataclass(frozen=True)
class Greedy(Decoder):
    """The likeliest token each time, one pass of the target for each; see `sp.decode.base`."""


COLDEST, HOTTEST = 1e-5, 100.0  # beyond these temperatures float32 weights are one-hot or uniform


@DECODERS.register("sample")
@dataclass(frozen=True)
class SamplingDecoder(Decoder):
    """Tokens drawn at a temperature among those that pass the filters; not speculative.

    Filters are applied in vLLM's order: temperature, `min_p`, `top_k`, `top_p`, each to what the one before left.
    (llama.cpp applies top-k, top-p, min-p and then the temperature by default.)

    Parameters
    ----------
    temperature : float
        Above 0.
    top_k : int
        Draw from that many of the likeliest; 0 for all.
    top_p : float
        Draw from the fewest tokens that have this share of the probability.
    min_p : float
        Exclude tokens that are less than `min_p` times as likely as the likeliest.
    seed : int, optional
        Seed of the draws; that of the run if omitted.

    Examples
    --------
    >>> import numpy as np
    >>> chooser = SamplingDecoder(0.8, top_p=0.5).chooser(0)
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
        ranges = {  # whether each value is valid, and the valid range
            "temperature": (
                COLDEST <= self.temperature <= HOTTEST,
                f"{COLDEST:g} to {HOTTEST:g}, or use decoder greedy",
            ),
            "top_k": (0 <= self.top_k < 2**31, "0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0, at most 1"),
            "min_p": (0 <= self.min_p <= 1, "0 to 1"),
            "seed": (self.seed is None or 0 <= self.seed < 2**63, "0 or more"),
        }
        for name, (valid, valid_range) in ranges.items():
            if not valid:
                raise ConfigError(f"decoder sample: {name} is {getattr(self, name)}; give {valid_range}")

    def chooser(self, seed: int, **observed: Any) -> Chooser:
        sampling = Sampling(self.temperature, self.top_k, self.top_p)
        return Chooser(sampling, seed if self.seed is None else self.seed, min_p=self.min_p, **observed)


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
    """Generate tokens greedily from the logits of the last prompt token.

    On the device every step but the first is the replay of a CUDA graph, see `GraphDecoder`.

    Parameters
    ----------
    model : Model
    logits : array (vocab,)
        Logits after the prefill; their argmax is the first token.
    position : int
        Position of the first generated token: the length of the *original* prompt when the selected tokens keep their
        original positions.
    cache : Cache
        Holds the keys and values of the prompt.
    eos_ids : frozenset of int
        Tokens that end the answer; they are not returned.
    max_new_tokens : int
    on_token : callable, optional
        Called with each token as soon as it is known; if it returns True, that token is the last.

    Returns
    -------
    list of int
    """
    return gather(generate(model, logits, position, cache, limit=max_new_tokens), eos_ids, on_token)


def gather(
    stream: Generator[int], eos_ids: frozenset[int], on_token: Callable[[int], bool | None] | None = None
) -> list[int]:
    """Collect the tokens of a stream up to an end token, which is omitted, and close it. `on_token` as for `greedy`."""
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
    """Yield up to `limit` tokens, the likeliest or those of a `chooser`; other parameters as those of `greedy`.

    On the device `decoder` is a `GraphDecoder` of the same model and cache that outlives the call; by default one is
    created for the call.
    """
    if is_device(logits) and model.captures:
        graph = decoder or GraphDecoder(model, cache, limit)
        try:
            yield from graph.tokens(logits, position, limit, chooser)
        finally:
            if decoder is None:
                graph.end()
        return
    for number in range(limit):
        row = logits.reshape(1, -1)  # (1, vocab)
        token = int((argmax(row) if chooser is None else chooser.choose(row))[0])
        yield token
        if number + 1 < limit:
            logits = decode_step(model, token, position + number, cache)


class GraphDecoder:
    """Decoding on the device as replays of a CUDA graph, for successive answers with the same cache.

    A step of a large model is hundreds of short kernels; launched individually the host is slower than the device. In
    the graph the chosen token, its position and the token counts of the cache live on the device and advance there, so
    every replay is the same. The host only starts replays, reserves cache pages and reads tokens as they appear.
    Without a chooser the graph holds the whole step; with one it ends with the logits, from which the chooser takes
    over.

    `eager`: launch every step kernel by kernel, as a reference.
    """

    def __init__(self, model: Model, cache: Cache, limit: int, *, eager: bool = False) -> None:
        cupy = import_cupy()
        self._model, self._cache, self._last_position = model, cache, -1
        self._capture = CaptureStream()
        options: dict[str, Any] = {"eager": eager, "all_agree": model.all_agree, "cache": cache}
        self._read_next: CapturedGraph[None] = CapturedGraph(**options)
        self._next_logits: CapturedGraph[Any] = CapturedGraph(**options)
        self._host_tokens = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * limit), np.int32, limit)
        # The last token, and all of the answer.
        self._token, self._history = cupy.empty(1, np.int32), cupy.empty(limit, np.int32)
        self._position, self._step = cupy.zeros(1, np.int64), cupy.zeros(1, np.int32)

    def tokens(self, logits: Any, position: int, limit: int, chooser: Chooser | None = None) -> Iterator[int]:
        """Yield each token as soon as the host knows it.

        While the host waits for a token other than the first, the device already computes the next one, so a caller
        that stops early finds the cache one token further on. Not so with a chooser, which may need each token on the
        host.

        Parameters
        ----------
        logits : cupy float32 (vocab,)
            Logits of the last token in the cache; the first token is chosen from them.
        position : int
            Position of the first generated token.
        limit : int
            Most tokens to generate; the cache needs room for all but the last.
        chooser : Chooser, optional
            Takes the likeliest token if omitted.
        """
        self._last_position = position - 1
        self._position.fill(position - 1)  # the graph increments it
        self._step.fill(0)
        in_flight = 2 if chooser is None else 1  # steps that may be launched beyond the last token read
        with self._capture.working():
            self._choose(logits.reshape(1, -1), chooser)
        waiting, launched = [self._fetch(0)], 1  # events of copies to the host, and steps launched
        try:
            for number in range(limit):
                # The first token is not delayed by launching a second step, which takes the host longer than the token.
                while launched < min(number + (in_flight if number else 1), limit):
                    self._advance(chooser)
                    waiting.append(self._fetch(launched))
                    launched += 1
                self._model.wait_for_event(waiting.pop(0))
                yield int(self._host_tokens[number])
        finally:
            self._capture.stream.synchronize()  # a step may still write to the cache, which the caller may free

    @property
    def refused(self) -> str | None:
        """Reason why steps are not in a graph; only where GPUs share the model, otherwise that is an error."""
        return self._read_next.refused or self._next_logits.refused

    def end(self) -> None:
        """Free the graph and its memory."""
        self._capture.stream.synchronize()
        self._read_next.clear()
        self._next_logits.clear()
        self._capture.end()

    def _fetch(self, number: int) -> Any:
        """Copy a token to the host asynchronously; returns the event that marks its arrival."""
        runtime = import_cupy().cuda.runtime
        source, target = self._history[number:].data.ptr, self._host_tokens[number:].ctypes.data
        runtime.memcpyAsync(target, source, 4, runtime.memcpyDeviceToHost, self._capture.stream.ptr)
        return self._capture.stream.record()

    def _advance(self, chooser: Chooser | None) -> None:
        """Read the newest token and choose the next one: launched eagerly the first time, then as a replay."""
        self._last_position += 1
        if self._last_position >= self._model.config.context:
            raise PromptError(
                f"position {self._last_position} is outside the model's context of {self._model.config.context} "
                "tokens; request a shorter answer"
            )
        with self._capture.working():
            self._cache.reserve(1)  # may allocate a page, which a graph cannot
            graph: CapturedGraph[Any] = self._read_next if chooser is None else self._next_logits
            if graph.ready:  # a replay runs no Python, so the host's count of tokens has to be advanced here
                self._cache.count(1)
            if chooser is None:
                self._read_next(self._read_and_choose)
            else:
                self._choose(self._next_logits(self._read), chooser)

    def _read_and_choose(self) -> None:
        """Run one step that takes the likeliest token."""
        self._choose(self._read(), None)

    def _read(self) -> Any:
        """Run the token through all layers; returns logits (1, vocab) of the next."""
        x = self._model.embed(self._token)  # (1, hidden)
        with self._cache.together(1):
            for layer in range(self._model.config.layers):
                x = self._model.layer(layer, x, self._position, self._cache)
        return self._model.head(x)

    def _choose(self, logits: Any, chooser: Chooser | None) -> None:
        """Choose a token from logits (1, vocab) and store it as the next one."""
        token = argmax(logits) if chooser is None else chooser.choose(logits)
        NEXT_STEP.launch((1,), token, self._token, self._position, self._history, self._step)
