"""Streams: an answer as pieces of text that come while the work goes on, for a loop or for an async loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, Self, TypeVar

from sp.chat.answer import AnswerText
from sp.errors import ConfigError
from sp.session.result import OnToken, RunResult, TurnResult
from sp.trace import Reporter

Found = TypeVar("Found", bound=RunResult | TurnResult)
Answered = TypeVar("Answered", bound=RunResult | TurnResult, covariant=True)


class Work(Protocol[Answered]):
    """What answers: `Pipeline.run` or `Conversation.answer`, all but these two given."""

    def __call__(self, *, reporter: Reporter, on_token: OnToken) -> Answered: ...


class _StoppedError(Exception):
    """Nobody reads the stream any more; raised inside the pipeline to end its work."""


@dataclass
class _State(Generic[Found]):
    """What the work and the stream share. At its end it has a `result`, or went wrong by an `error`; neither if it was
    stopped before the answer began.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    result: Found | None = None
    error: BaseException | None = None


Tell = Callable[[str | None], None]
"""Takes a piece of text, and None at the end."""


def _answer(work: Work[Found], text: AnswerText, reporter: Reporter, state: _State[Found], tell: Tell) -> None:
    """Do the work, and tell of text and of the end. Once it is to stop it does: at the next layer of a prompt, or with
    the next token of an answer, which then is all there is of it.
    """
    stop = state.stop

    @contextmanager
    def watching(what: str, total: int) -> Iterator[Callable[[int], None]]:
        with reporter(what, total) as progress:

            def told(amount: int) -> None:
                if stop.is_set():
                    raise _StoppedError
                if progress is not None:
                    progress(amount)

            told(0)
            yield told

    def on_token(token: int) -> bool:
        if piece := text.push(token):
            tell(piece)
        return stop.is_set()

    try:
        state.result = work(reporter=watching, on_token=on_token)
        if rest := text.finish():
            tell(rest)
    except _StoppedError:
        pass
    except BaseException as error:  # which belongs to whoever reads
        state.error = error
    state.ended = True
    tell(None)


class _Reading(Generic[Found]):
    """What both kinds of stream are: work that begins when the first piece is asked for, and its end."""

    def __init__(self, work: Work[Found], text: AnswerText, reporter: Reporter) -> None:
        self._given, self._state = (work, text, reporter), _State[Found]()
        self._thread: threading.Thread | None = None
        self._over = False  # nothing more is to be read

    def __del__(self) -> None:
        self._state.stop.set()

    def __repr__(self) -> str:
        state = "has ended" if self._state.ended else "has not begun" if self._thread is None else "goes on"
        return f"{type(self).__name__}({state})"

    @property
    def result(self) -> Found:
        """What a call without a stream would have returned, once the stream has ended.

        Raises
        ------
        ConfigError
            Before that, and for a stream that was closed before its answer began.
        """
        if not self._state.ended:
            raise ConfigError("the stream has not ended, so there is no result yet; read it to its end, or close it")
        if self._state.error is not None:
            raise self._state.error
        if self._state.result is None:
            raise ConfigError("the stream was closed before the answer began, so there is no result; ask anew")
        return self._state.result

    def _begin(self, tell: Tell) -> None:
        """Begin the work, if nothing has."""
        if self._thread is None:
            answer = partial(_answer, *self._given, self._state, tell)
            self._thread = threading.Thread(target=copy_context().run, args=(answer,), name="sp-stream", daemon=True)
            self._thread.start()

    def _taken(self, piece: str | None) -> str | None:
        """A piece, or None at the end; what went wrong is raised."""
        if piece is None:
            self._over = True
            if self._state.error is not None:
                raise self._state.error
        return piece

    def _stop(self) -> None:
        """Have the work end."""
        self._state.stop.set()
        self._over = True
        self._state.ended |= self._thread is None


class Stream(_Reading[Found]):
    """An answer, piece by piece: whole characters of its text, as soon as they are certain.

    The work goes on in a thread of its own, from when the first piece is asked for; no other use of the pipeline may
    run meanwhile. A loop that is left, `close`, and the end of a ``with`` block end it: within a layer of the prompt,
    or with the next token of the answer. `result` has then what there is.

    Examples
    --------
    >>> import sp
    >>> stream = sp.load(device="cpu").stream("The sky is blue.", sp.RunOptions(max_new_tokens=4))
    >>> pieces = [piece for piece in stream]
    >>> "".join(pieces) == stream.result.answer.text
    True
    """

    def __init__(self, work: Work[Found], text: AnswerText, reporter: Reporter) -> None:
        super().__init__(work, text, reporter)
        self._told = SimpleQueue[str | None]()

    def __iter__(self) -> Iterator[str]:
        try:
            while (piece := self._next()) is not None:
                yield piece
        finally:
            self.close()

    def __next__(self) -> str:
        if (piece := self._next()) is None:
            raise StopIteration
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the work, and wait until it has ended; nothing if it has. Any thread may call it."""
        self._stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _next(self) -> str | None:
        if self._over:
            return None
        self._begin(self._told.put)
        try:
            return self._taken(self._told.get())
        except BaseException:  # Ctrl-C, while nothing came
            self.close()
            raise


class AsyncStream(_Reading[Found]):
    """`Stream` for an async loop: the work goes on in one thread, and the event loop is free.

    Cancelling the task that reads, `aclose`, and the end of an ``async with`` block end the work as `Stream` says.
    After ``break`` the event loop closes it.

    Examples
    --------
    >>> import asyncio, sp
    >>> async def main() -> bool:
    ...     stream = sp.load(device="cpu").astream("The sky is blue.", sp.RunOptions(max_new_tokens=4))
    ...     said = "".join([piece async for piece in stream])
    ...     return said == stream.result.answer.text
    >>> asyncio.run(main())
    True
    """

    def __init__(self, work: Work[Found], text: AnswerText, reporter: Reporter) -> None:
        super().__init__(work, text, reporter)
        self._told, self._ended = asyncio.Queue[str | None](), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            while (piece := await self._next()) is not None:
                yield piece
        finally:
            await self.aclose()

    async def __anext__(self) -> str:
        if (piece := await self._next()) is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the work, and wait until it has ended; nothing if it has."""
        self._stop()
        if self._thread is not None:
            await self._ended.wait()

    async def _next(self) -> str | None:
        if self._over:
            return None
        loop, told, ended, state = asyncio.get_running_loop(), self._told, self._ended, self._state

        def arrived(piece: str | None) -> None:
            told.put_nowait(piece)
            if piece is None:
                ended.set()

        def tell(piece: str | None) -> None:
            try:
                loop.call_soon_threadsafe(arrived, piece)
            except RuntimeError:  # the loop is closed, and nobody hears
                state.stop.set()

        self._begin(tell)
        try:
            return self._taken(await told.get())
        except BaseException:  # the task is cancelled
            await self.aclose()
            raise
