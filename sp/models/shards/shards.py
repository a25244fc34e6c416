"""Shards: the GPUs that share a model, and work that all of them do with it at the same time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any, NoReturn, TypeVar

from sp.errors import ConfigError
from sp.models.config import ModelConfig
from sp.models.network.model import Model
from sp.models.run.tensor_parallel import ShardModel, working_with
from sp.parallel.group import ParallelGroup, Rank

T = TypeVar("T")


@dataclass(frozen=True)
class Shards:
    """A model on several GPUs.

    Attributes
    ----------
    config : ModelConfig
        Configuration of the whole model.
    models : tuple of ShardModel
        In the group's order.
    """

    group: ParallelGroup
    config: ModelConfig
    models: tuple[ShardModel, ...]

    def run(self, work: Callable[[ShardModel], T]) -> list[T]:
        """Run `work` with each GPU's shard at the same time, in one thread per GPU; return its results by GPU. It must
        do the same on every GPU: the same passes over the same tokens, with a cache that it creates from its model.
        Logits are the same on all GPUs. SpError: from the GPU that failed first; see `ParallelGroup.run`.

        >>> import numpy as np
        >>> from sp.models import decode_step, load_shards, prefill
        >>> from sp.parallel.host import HostGroup
        >>> from sp.session.loaded import embedded
        >>> ids = np.arange(40)
        >>> def two_tokens(model):
        ...     cache = model.new_cache(50)
        ...     first = int(prefill(model, ids, ids, cache).argmax())
        ...     return first, int(decode_step(model, first, 40, cache).argmax())
        >>> first, second = load_shards(embedded("target"), HostGroup(2)).run(two_tokens)
        >>> first == second
        True
        """

        def on(gpu: Rank) -> T:
            with working_with(gpu):
                return work(self.models[gpu.rank])

        return self.group.run(on)


class SharedModel(Model):
    """A model on several GPUs, for callers that need the model as a whole. `config`, `device`, `repacked`,
    `arithmetic`: as in `Model`, of the whole. `weights`, `nbytes`: of the GPU that holds most. `shards`: the models
    that can run; see `Shards.run` and `sp.models.shards.shards`."""

    def __init__(self, shards: Shards) -> None:
        most = max(shards.models, key=lambda part: part.nbytes)
        super().__init__(shards.config, most.weights, most.device, most.nbytes, most.repacked, None, most.arithmetic)
        self.shards = shards

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, shared by {self.shards.group.size})"

    def new_cache(self, *_: object, **__: object) -> NoReturn:
        """Raise ConfigError, like every method that would run on one GPU alone."""
        self._refuse()

    def embed(self, ids: object, *, normed: bool = True) -> NoReturn:
        """Raise ConfigError, see `new_cache`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"a target that {self.shards.group.size} GPUs share cannot do this, which is for one GPU alone; leave it "
            "on one with --target-gpus 1"
        )


class _PieceCounter:
    """Counter of the pieces that every GPU may produce."""

    def __init__(self) -> None:
        self._changed, self._pieces, self._over = Condition(), 0, False

    def one_more(self) -> None:
        """Allow one more piece on all GPUs."""
        with self._changed:
            self._pieces += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Allow no more pieces."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def allows(self, number: int) -> bool:
        """Wait until piece `number`, counted from 0, is allowed or the end is reached; True if it is allowed."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._pieces > number)
            return self._pieces > number


def stream(
    shards: Shards, work: Callable[[ShardModel], Generator[T]], spoiled: Callable[[], object] = lambda: None
) -> Generator[T]:
    """Yield what `work` yields on the first GPU, piece by piece; every GPU advances exactly as far as the consumer.

    Each GPU has a thread from the first piece until the end or until this generator is closed, which waits in between.
    `work`: called with a GPU's shard. It must yield equally often on every GPU, and do the same work in between; see
    `Shards.run`. `spoiled`: called once the GPUs have ended after a failure: state that they keep for later is invalid
    then. SpError: from the GPU that failed first, also from `close`.
    """
    counter, results, failed = _PieceCounter(), SimpleQueue[Any](), list[BaseException]()
    end_marker = object()

    def on(part: ShardModel) -> None:
        try:
            with closing(work(part)) as pieces:
                for number in count():
                    # Every GPU stops here until the consumer asks for the next piece.
                    if not counter.allows(number):
                        return
                    piece = next(pieces, end_marker)
                    if piece is end_marker:
                        return
                    # All GPUs compute the same piece; one of them hands it on.
                    if part is shards.models[0]:
                        results.put(piece)
        except BaseException:
            counter.end()
            raise

    def whole() -> None:
        try:
            shards.run(on)
        except BaseException as error:
            failed.append(error)
        finally:
            results.put(end_marker)

    # The context carries settings of the caller, such as the kernel path.
    thread = Thread(target=copy_context().run, args=(whole,), name="sp-gpus", daemon=True)
    thread.start()
    try:
        while True:
            counter.one_more()
            piece = results.get()
            if piece is end_marker:
                break
            yield piece
    finally:
        counter.end()
        thread.join()
        if failed:
            spoiled()
            raise failed[0]
