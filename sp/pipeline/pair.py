"""A target and its drafter: loaded one after the other under one budget of memory, or the drafter on several cards."""

from __future__ import annotations

from collections.abc import Callable

from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.models import Cards
from sp.models.arithmetic import scoring
from sp.models.model import Device
from sp.parallel.nccl import NcclGroup, copies
from sp.pipeline.load import Loaded, Where
from sp.pipeline.residency import Residency


def load_pair(
    target: Callable[[Device], Loaded],
    drafter: Callable[[Device], Loaded],
    *,
    device: Where = "auto",
    vram: int | None = None,
) -> tuple[Loaded, Loaded, Residency]:
    """Load two models one after the other.

    Parameters
    ----------
    target, drafter : callable
        Load a model on the device they are given.
    device : {"auto", "cpu", "cuda"}
    vram : int, optional
        Bytes for models, caches and work together, see `Residency`; what the device has, if left out.

    Returns
    -------
    target, drafter : Loaded
    residency : Residency
        That both have been taken on by.

    Raises
    ------
    ConfigError
        A budget for models on the CPU.
    DeviceError
        The budget is too small to load them.
    """
    where = pick_device(device)
    if where == "cpu":
        if vram is not None:
            raise ConfigError("vram is a budget of GPU memory, but the models run on the CPU; leave it out")
        return target(where), drafter(where), Residency()
    residency = Residency(vram)
    heavy = residency.load("target", lambda: target(where))
    return heavy, residency.load("drafter", lambda: drafter(where)), residency


def to_score(opened: Callable[[Device], Loaded]) -> Callable[[Device], Loaded]:
    """Load a model that only scores, see `sp.models.arithmetic.scoring`."""

    def load(device: Device) -> Loaded:
        found = opened(device)
        model = found.model
        model.arithmetic = scoring(model.arithmetic, model.device, model.config.head_dim)
        return found

    return load


def spread(drafter: Loaded, group: NcclGroup, opened: Callable[[Device], Loaded]) -> Cards:
    """A drafter that lies on the first card of a group, and its like on the others.

    Raises
    ------
    ConfigError
        For one with recurrent layers.
    DeviceError
        With too little memory on a card.
    """
    if drafter.model.config.delta_layers:
        raise ConfigError(
            f"{drafter.path.name} has recurrent layers, whose state would go from card to card; leave --cards away, or "
            "take a drafter of attention layers"
        )
    return Cards(group, [drafter.model, *(one.model for one in copies(group, lambda: opened("cuda")))])


def cards_line(cards: Cards, together: bool) -> str:
    """The line of a report: whether the cards read together, or else why not.

    Examples
    --------
    >>> from sp.models import load_model
    >>> from sp.parallel.host import HostGroup
    >>> from sp.pipeline.load import embedded
    >>> cards_line(Cards(HostGroup(2), [load_model(embedded("drafter"))] * 2), together=True)
    'drafter: read by 2 cards together'
    """
    count = cards.group.size
    if together:
        return f"drafter: read by {count} cards together"
    return f"drafter: read by the first of {count} cards alone, as short prompts, kept keys and some scorers are"
