"""PeerGathers: all-gathers by copy engines, which leave all multiprocessors to what runs beside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import explain, reach_each_other
from sp.parallel.meeting import Meeting, Shown, Step


class _Begun(NamedTuple):
    """A gather whose parts are not fetched yet."""

    step: Step
    wholes: tuple[Any, ...]


class PeerGathers:
    """Gathers of one card, which fetches from the others what each shows, once that is made there.

    A card shows its parts and the event after which they are whole; whoever fetches them makes a stream of its own wait
    for that event, on the device. So no device ever waits for what a thread has not queued yet.

    Parameters
    ----------
    rank : int
    devices : sequence of int
        CUDA's numbers of all cards, which reach each other: see `reachable`.
    beside : cupy.cuda.Stream
        Of this card; what it copies is queued there.
    meeting : Meeting
        Where cards show each other what they have.
    """

    def __init__(self, rank: int, devices: Sequence[int], beside: Any, meeting: Meeting) -> None:
        self._rank, self._devices, self._beside, self._meeting = rank, devices, beside, meeting
        self._begun: deque[_Begun] = deque()
        self._ended: dict[int, Any] = {}

    def show(self, stream: Any, wholes: tuple[Any, ...]) -> Step:
        """Come to the next step, where the others have this card's parts once what is queued now is done."""
        places = tuple(whole.data.ptr for whole in wholes)
        self._meeting.show(self._rank, Shown(stream.record(), places))
        step = self._meeting.come(self._rank, "all-gather")
        self._begun.append(_Begun(step, wholes))
        return step

    def fetch(self) -> list[tuple[Step, Any]]:
        """Queue the copies of gathers to which all cards have come, in order; steps, and the ends of copies."""
        found = []
        while self._begun and self._meeting.have_come(self._begun[0].step):
            step, wholes = self._begun.popleft()
            ended = self._ended[step.number] = self._copies(step.number, wholes)
            found.append((step, ended))
        return found

    def queued(self, step: Step) -> bool:
        """Whether the copies of a step are."""
        return step.number in self._ended

    def end(self, step: Step) -> Any:
        """The event after which all that a step fetched is there; asked for once."""
        return self._ended.pop(step.number)

    def _copies(self, number: int, wholes: tuple[Any, ...]) -> Any:
        """One card after another, each beginning with the next one, so that no two fetch from the same at once."""
        runtime, beside, size = import_cupy().cuda.runtime, self._beside, len(self._devices)
        shown, mine = self._meeting.parts[number], self._devices[self._rank]
        beside.wait_event(shown[self._rank].ready)  # until then this card may still read what lies in its place
        for turn in range(1, size):
            other = (self._rank + turn) % size
            beside.wait_event(shown[other].ready)
            for whole, start in zip(wholes, shown[other].places, strict=True):
                part = whole.nbytes // size
                to, source = whole.data.ptr + other * part, start + other * part
                runtime.memcpyPeerAsync(to, mine, source, self._devices[other], part, beside.ptr)
        self._meeting.fetched(number)
        return beside.record()


def reachable(devices: Sequence[int]) -> bool:
    """Let all cards read the memory of all others, and say whether they can."""
    if not reach_each_other(devices):
        return False
    cuda = import_cupy().cuda
    for one in devices:
        with cuda.Device(one):
            for other in devices:
                try:
                    if other != one:
                        cuda.runtime.deviceEnablePeerAccess(other)
                except cuda.runtime.CUDARuntimeError as error:
                    if "PeerAccessAlreadyEnabled" not in str(error):  # by CuPy itself, for example
                        raise DeviceError(explain(error) or str(error)) from error
    return True
