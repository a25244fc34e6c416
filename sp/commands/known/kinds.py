"""The kinds of things that are chosen by name, and what there is of each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sp.commands.known.keys import sections
from sp.hub import KNOWN, KnownModel, fetched
from sp.options import Field, fields_of, summary_of
from sp.plugins import BUILT_IN, loaded_plugins, source_of

MODELS, FAMILIES, PLUGINS, KEYS = "models", "families", "plugins", "keys"


@dataclass(frozen=True)
class Item:
    """One thing that can be named.

    Parameters
    ----------
    name, told : str
    fields : tuple of Field
        Its options.
    source : str
        ``built in``, or the plugin it comes from.
    facts : mapping
        What else a record says.
    """

    name: str
    told: str
    fields: tuple[Field, ...] = ()
    source: str = BUILT_IN
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Plain values; the default of an option that must be given is null, of others a text."""
        options = [{key: getattr(one, key) for key in ("name", "type", "default", "told")} for one in self.fields]
        return {"name": self.name, "told": self.told, "fields": options, "source": self.source, **self.facts}


def registries() -> dict[str, Any]:
    """The registries of strategies by the name of their kind."""
    import sp.evals  # noqa: F401  # registers tasks and formats
    from sp.decode import DECODERS
    from sp.evals import TASKS
    from sp.evals.formats.file_task import FORMATS
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS

    return {f"{one.kind}s": one for one in (SCORERS, SELECTORS, DECODERS, TASKS, FORMATS)}


def kinds() -> list[str]:
    """What can be listed.

    Examples
    --------
    >>> kinds()
    ['scorers', 'selectors', 'decoders', 'tasks', 'formats', 'models', 'families', 'plugins', 'keys']
    """
    return [*registries(), MODELS, FAMILIES, PLUGINS, KEYS]


def items(kind: str) -> list[Item]:
    """All of a kind: strategies, tasks, models and families by name, parts of a sweep file in their order."""
    if kind == MODELS:
        return [_model(model) for model in KNOWN.values()]
    if kind == FAMILIES:
        return _families()
    if kind == PLUGINS:
        return [Item(one.module, one.file or "A module.", source=one.named) for one in loaded_plugins()]
    if kind == KEYS:
        return [Item(part, told, tuple(keys)) for part, (told, keys) in sections().items()]
    from sp.scoring.trained.base import TrainedScorer
    from sp.scoring.trained.weights_file import shipped

    registry, found = registries()[kind], []
    for name in registry:
        cls = registry.class_of(name)
        told = f"{summary_of(cls)} {shipped(name)}" if issubclass(cls, TrainedScorer) else summary_of(cls)
        found.append(Item(name, told, tuple(fields_of(cls)), source_of(cls)))
    return found


def _model(model: KnownModel) -> Item:
    """A model that is fetched by name: what it is, its licence, and where it lies if it is here."""
    path = fetched(model)
    where = f"not here; sp get {model.name}" if path is None else f"here: {path}"
    facts = {"path": path and str(path), "bytes": model.nbytes, "licence": model.licence, "sha256": model.sha256}
    return Item(model.name, f"{model.about}; {model.nbytes / 1e6:,.1f} MB, {model.licence}; {where}", facts=facts)


def _families() -> list[Item]:
    """Families of models that run, and the tokenizers that their files come with."""
    from sp.models.architectures.base import ARCHITECTURES

    found = []
    for name, record in sorted(ARCHITECTURES.items()):
        about = (inspect.getdoc(inspect.getmodule(record.block)) or "").partition("\n")[0].removeprefix(f"{name}: ")
        told = f"{about.rstrip('.')}; tokenizers: {', '.join(record.tokenizers)}."
        found.append(Item(name, told, source=source_of(record.block)))
    return found
