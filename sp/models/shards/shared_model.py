"""SharedModel: a model that cards share as one model: what is to be known of it, but nothing that reads."""

from __future__ import annotations

from typing import NoReturn

from sp.errors import ConfigError
from sp.models.model import Model
from sp.models.shards.shards import Shards


class SharedModel(Model):
    """A model that cards share, where something is asked of the whole.

    Attributes
    ----------
    config, device, repacked, arithmetic
        See `Model`, of the whole.
    trunk, nbytes
        Of the card that holds most.
    shards : Shards
        Which read; see `Shards.run` and `sp.models.shards.stream`.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import load_shards
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded
    >>> model = SharedModel(load_shards(embedded("target"), HostGroup(2)))
    >>> model
    Model(qwen3: 10 layers of 512, context 163,840, cpu, shared by 2)
    >>> model.embed(np.arange(4))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sp.errors.ConfigError: a target that 2 cards share cannot do this, ...
    """

    def __init__(self, shards: Shards) -> None:
        most = max(shards.models, key=lambda part: part.nbytes)
        super().__init__(shards.config, most.trunk, most.device, most.nbytes, most.repacked, None, most.arithmetic)
        self.shards = shards

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, shared by {self.shards.group.size})"

    def new_cache(self, *_: object, **__: object) -> NoReturn:
        """Refused, as all that reads by itself is."""
        self._refuse()

    def embed(self, ids: object) -> NoReturn:
        """Refused, see `new_cache`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"a target that {self.shards.group.size} cards share cannot do this, which is for one card alone; leave it "
            "on one with --target-cards 1"
        )
