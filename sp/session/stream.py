"""Streams: an answer as pieces of text while it is decoded, for a loop or for an async loop."""

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

Result = TypeVar("Result", bound=RunResult | TurnResult)
ResultT_co = TypeVar("ResultT_co", bound=RunResult | TurnResult, covariant=True)


class AnswerCall(Protocol[ResultT_co]):
    """A call that answers: `Pipeline.run` or `Conversation.answer` with all other arguments bound."""

    def __call__(self, *, reporter: Reporter, on_token: OnToken) -> ResultT_co: ...


class _StoppedError(Exception):
    """Raised inside the pipeline to end its work when nobody reads the stream any more."""


@dataclass
class _State(Generic[Result]):
    """The state shared by the work and the stream.

    At its end it has a `result` or an `error`, or neither if it was stopped before the answer began.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    result: Result | None = None
    error: BaseException | None = None


Emit = Callable[[str | None], None]
"""Takes each piece of text, and None at the end."""


def _answer(work: AnswerCall[Result], text: AnswerText, reporter: Reporter, state: _State[Result], emit: Emit) -> None:
    """Run the work, and emit its text and its end.

    A stop ends it at the next layer of the prompt, or with the next token of the answer, which is then cut there.
    """
    stop = state.stop

    @contextmanager
    def watching(label: str, total: int) -> Iterator[Callable[[int], None]]:
        with reporter(label, total) as progress:

            def advance(amount: int) -> None:
                if stop.is_set():
                    raise _StoppedError
                if progress is not None:
                    progress(amount)

            advance(0)  # a stop before the stage ends the work at once
            yield advance

    def on_token(token: int) -> bool:
        if piece := text.push(token):
            emit(piece)
        return stop.is_set()  # True ends the answer with this token

    try:
        state.result = work(reporter=watching, on_token=on_token)
        if rest := text.finish():
            emit(rest)
    except _StoppedError:
        pass
    except BaseException as error:  # raised again in the thread that reads the stream
        state.error = error
    state.ended = True
    emit(None)


class _BaseStream(Generic[Result]):
    """The common part of streams: work that starts when the first piece is requested, and its end."""

    def __init__(self, work: AnswerCall[Result], text: AnswerText, reporter: Reporter) -> None:
        self._work, self._state = (work, text, reporter), _State[Result]()
        self._thread: threading.Thread | None = None
        self._over = False  # no further piece may be read

    def __del__(self) -> None:
        self._state.stop.set()

    def __repr__(self) -> str:
        state = "has ended" if self._state.ended else "has not begun" if self._thread is None else "goes on"
        return f"{type(self).__name__}({state})"

    @property
    def result(self) -> Result:
        """The result that a call without a stream would have returned, once the stream has ended.

        Raises
        ------
        ConfigError
            Before the end, and for a stream that was closed before its answer began.
        """
        if not self._state.ended:
            raise ConfigError("the stream has not ended, so it has no result yet; read it to its end, or close it")
        if self._state.error is not None:
            raise self._state.error
        if self._state.result is None:
            raise ConfigError(
                "the stream was closed before the answer began, so it has no result; start another stream"
            )
        return self._state.result

    def _begin(self, emit: Emit) -> None:
        """Start the work, unless it has started."""
        if self._thread is None:
            # Holds no reference to the stream, which may be collected.
            answer = partial(_answer, *self._work, self._state, emit)
            # The work sees the context variables of the caller. A daemon thread does not keep the process alive.
            self._thread = threading.Thread(target=copy_context().run, args=(answer,), name="sp-stream", daemon=True)
            self._thread.start()

    def _checked(self, piece: str | None) -> str | None:
        """Return a piece, or None at the end; raises the error of the work."""
        if piece is None:
            self._over = True
            if self._state.error is not None:
                raise self._state.error
        return piece

    def _stop(self) -> None:
        """Request the end of the work."""
        self._state.stop.set()
        self._over = True
        self._state.ended |= self._thread is None  # work that never started has ended


class Stream(_BaseStream[Result]):
    """An answer, piece by piece: whole characters of its text, as soon as they are certain.

    The work runs in a thread of its own, from the first piece requested; the pipeline must not be used otherwise
    meanwhile. Leaving the loop, `close`, and the end of a ``with`` block end the work: within a layer of the prompt,
    or with the next token of the answer. `result` then has the answer so far.

    Examples
    --------
    >>> import sp
    >>> stream = sp.load(device="cpu").stream("The sky is blue.", sp.RunOptions(max_new_tokens=4))
    >>> pieces = [piece for piece in stream]
    >>> "".join(pieces) == stream.result.answer.text
    True
    """

    def __init__(self, work: AnswerCall[Result], text: AnswerText, reporter: Reporter) -> None:
        super().__init__(work, text, reporter)
        self._pieces = SimpleQueue[str | None]()

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
        """End the work and wait for its end; safe to call again, and from any thread."""
        self._stop()
        # A finaliser may run in the working thread, which cannot join itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _next(self) -> str | None:
        if self._over:
            return None
        self._begin(self._pieces.put)
        try:
            return self._checked(self._pieces.get())
        except BaseException:  # for example Ctrl-C while waiting
            self.close()
            raise


class AsyncStream(_BaseStream[Result]):
    """`Stream` for an async loop: the work runs in one thread, and the event loop is free.

    Cancelling the task that reads, `aclose`, and the end of an ``async with`` block end the work as in `Stream`.
    After ``break`` the event loop closes it.

    Examples
    --------
    >>> import asyncio, sp
    >>> async def main() -> bool:
    ...     stream = sp.load(device="cpu").astream("The sky is blue.", sp.RunOptions(max_new_tokens=4))
    ...     text = "".join([piece async for piece in stream])
    ...     return text == stream.result.answer.text
    >>> asyncio.run(main())
    True
    """

    def __init__(self, work: AnswerCall[Result], text: AnswerText, reporter: Reporter) -> None:
        super().__init__(work, text, reporter)
        self._pieces, self._ended = asyncio.Queue[str | None](), asyncio.Event()

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
        """End the work and wait for its end; safe to call again."""
        self._stop()
        if self._thread is not None:
            await self._ended.wait()

    async def _next(self) -> str | None:
        if self._over:
            return None
        loop, pieces, ended, state = asyncio.get_running_loop(), self._pieces, self._ended, self._state

        def deliver(piece: str | None) -> None:
            pieces.put_nowait(piece)
            if piece is None:
                ended.set()

        def emit(piece: str | None) -> None:
            try:
                loop.call_soon_threadsafe(deliver, piece)
            except RuntimeError:  # the loop is closed, so nobody reads any more
                state.stop.set()

        self._begin(emit)
        try:
            return self._checked(await pieces.get())
        except BaseException:  # the task is cancelled
            await self.aclose()
            raise
