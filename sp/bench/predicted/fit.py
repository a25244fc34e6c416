"""fit: shares and seconds of kernels from their own records, then the host's part from rows that may be fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from sp.bench.predicted.links import ALONE, PAIRED, fit_links
from sp.bench.predicted.rows import CARD, Row, rows
from sp.bench.predicted.samples import Sample, kernel_samples
from sp.bench.record import newest
from sp.errors import ConfigError
from sp.models.inspect.known_cards import Path as KernelPath
from sp.models.inspect.known_cards import find_card
from sp.models.timing.fitted import Fitted, Host, Rate, bound
from sp.models.timing.work import AROUND, Weights, reading

LONG, SHORT = 32768, 512
KERNELS: tuple[KernelPath, ...] = ("sm_90a", "portable")
TARGET = ("qwen3.6-27b", "q4_k_m")
LAUNCH_US = 20.5
"""What a small launch is taken to have cost the hosts of records from before that was looked at. Those of later ones
took 16 to 35 us: chosen so that short scorings on them are predicted best (``docs/predicted-times.md``)."""


def fit(folder: Path, pairs: Path) -> Fitted:
    """All that is fitted, from the newest records of two machines.

    Parameters
    ----------
    folder : Path
        ``results/nvidia-h200``.
    pairs : Path
        Of two linked cards that share a target: ``results/nvidia-h100-80gb-hbm3``.

    Raises
    ------
    ConfigError
        There are no records of some kind.
    """
    found = list(rows(folder))
    samples, fitting = list(kernel_samples(folder)), {row.key: row for row in found if row.fit}
    rates: dict[str, dict[str, Rate]] = {path: _rates(samples, path) for path in KERNELS}
    known = Fitted(rates, Host(0.0, LAUNCH_US, 0.0, 0.0, 0.0, 1.0, 1.0), ALONE, 1.0)
    known = replace(known, slower=_slower(_row(fitting, "prefill", LONG), known))
    for path in KERNELS:
        rates[path]["matmul int8"] = _of_a_row(_row(fitting, "prefill int8", path), "matmul int8", path, known)

    def with_host(**one: float) -> Fitted:
        return replace(known, host=replace(known.host, **one))

    launches = sum(one.launches for one in reading(Weights.of_shape(*TARGET), SHORT))
    known = with_host(launch_s=_row(fitting, "full", SHORT).seconds / launches)  # from before short runs had graphs
    known = with_host(step_share=1 / (1 + _row(fitting, "decode", 0).error(known)))
    known = with_host(score_s=_left(_row(fitting, "drafter", LONG, 0.05), known))
    request = _row(fitting, "ttft", LONG)
    known = with_host(token_s=request.host_s / LONG)
    known = with_host(request_s=_left(request, known), copy_share=_copy_share(folder))
    return replace(known, links=fit_links(found, list(rows(pairs, PAIRED)), known))


def told(known: Fitted) -> dict[str, Any]:
    """What `sp.models.timing.fitted` reads, to so many digits as say something."""
    rates = {path: {kind: asdict(one) for kind, one in kinds.items()} for path, kinds in known.rates.items()}
    rounded: dict[str, Any] = _rounded(
        {
            "card": CARD,
            "rates": rates,
            "host": asdict(known.host),
            "linked": {"scoring": CARD, "target": PAIRED},
            "links": asdict(known.links),
            "slower": known.slower,
        }
    )
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _rates(samples: Sequence[Sample], path: KernelPath) -> dict[str, Rate]:
    mine = [one for one in samples if one.path in (None, path)]
    kinds = dict.fromkeys(one.work.kind for one in mine)
    return {kind: fit_rate([one for one in mine if one.work.kind == kind], path) for kind in kinds}


def fit_rate(samples: Iterable[Sample], path: KernelPath) -> Rate:
    """Share of the bound and seconds a launch with the least squares of relative errors, none of them negative.

    Where all samples are as large, or a launch would take less than nothing, the share alone is fitted.
    """
    card, samples = find_card(CARD), list(samples)
    seconds = np.array([one.seconds for one in samples])
    limits = np.array([bound(one.work, card, path) for one in samples])
    left = 1 - np.array([one.work.exponentials / card.exponentials for one in samples]) / seconds
    columns = np.stack([limits / seconds, [one.work.launches for one in samples] / seconds], axis=1)
    (inverse, launch), *_ = np.linalg.lstsq(columns, left, rcond=None)
    if len(set(limits)) == 1 or launch < 0:
        ratio = columns[:, 0]
        inverse, launch = (ratio @ left) / (ratio @ ratio), 0.0
    return Rate(float(1 / inverse), float(launch))


def _slower(row: Row, known: Fitted) -> float:
    """How much longer products take in a long pass than by themselves, from what the prediction for one lacks."""
    return 1 + _left(row, known) / (row.predict(replace(known, slower=2.0)) - row.predict(known))


def _of_a_row(row: Row, kind: str, path: KernelPath, known: Fitted) -> Rate:
    """Share of the bound with which a kind takes what the other kinds and its own launches leave of a row.

    Products in int8 are slower in a long pass, for which power is short, than by themselves.
    """
    rates = known.rates
    launch = rates[path][kind].launch_s / AROUND if kind in rates[path] else 0.0

    def without(share: float) -> float:
        return _left(row, replace(known, rates={**rates, path: {**rates[path], kind: Rate(share, launch)}}))

    others, bounded = without(float("inf")), without(1.0)
    return Rate((others - bounded) / others, launch)


def _row(known: dict[tuple[Any, ...], Row], *key: Any) -> Row:
    if key not in known:
        raise ConfigError(f"no record to fit to: {' '.join(map(str, key))}")
    return known[key]


def _left(row: Row, known: Fitted) -> float:
    """Measured seconds that the prediction so far does not have."""
    return row.seconds - row.predict(known)


def _copy_share(folder: Path) -> float:
    """Of PCIe, from loads of a file that lies in memory."""
    loads = [
        record["metrics"]["gb_s"] for record in newest(folder / "load.jsonl") if record["config"]["mode"] == "repeated"
    ]
    if not loads:
        raise ConfigError(f"{folder}: no record of a load to fit to")
    return float(mean(loads) * 1e9 / find_card(CARD).pcie)
