"""Strategies, tasks, formats and families from outside the package: a Python file or a module, run once.

A plugin registers what it defines, as the files of the package do. A file runs under a module name of its own, so that
it hides no module of the same name, and workers in other processes load it under that name too.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from sp.errors import ConfigError, SpError, short

GROUP = "sp.plugins"  # entry points of installed packages that are loaded by themselves
BUILT_IN = "built in"  # source of what the package has itself
MARK = "__sp_plugin__"  # name that a loaded plugin gets: what it was named by, in messages and lists
PREFIX = "sp_plugin_"
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
HOME = Path(__file__).parent


@dataclass(frozen=True)
class Plugin:
    """A plugin that was found, loaded or not."""

    module: str  # name of its module
    file: str | None  # absolute path of its file; None for a module that is imported by its name
    named: str  # what to call it in messages

    def load(self) -> ModuleType:
        """Run it, unless that was done; whoever asks twice gets the same module. ConfigError: it cannot be found, or
        ends in an error; one line says where.
        """
        module = sys.modules.get(self.module)
        if module is None:
            place = str(Path(self.file).parent) if self.file else str(Path.cwd())
            if place not in sys.path:
                sys.path.append(place)  # last, so that it hides nothing
            try:
                module = import_module(self.module) if self.file is None else self._run()
            except (Exception, SystemExit) as error:
                sys.modules.pop(self.module, None)
                raise ConfigError(f"plugin {short(self.named)}{_told(self, error)}") from None
        setattr(module, MARK, self.named)
        return module

    def _run(self) -> ModuleType:
        spec = spec_from_file_location(self.module, self.file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[self.module] = module
        spec.loader.exec_module(module)
        return module


def find_plugin(text: str, beside: Path | None = None) -> Plugin:
    """The plugin that a text names: a path that ends in ``.py``, or a module. `beside`: folder that is searched for a
    file that is not where the text says; ConfigError: there is no such file, or it is no name of a module.
    """
    if not text.endswith(".py"):
        if not MODULE.fullmatch(text):
            raise ConfigError(
                f"a plugin is a Python file such as mine.py, or the name of a module, not {short(text)!r}"
            )
        return Plugin(text, None, text)
    path = Path(text).expanduser()
    if beside is not None and not path.is_file():
        path = beside / path
    try:
        file = str(path.resolve())
        there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, links in a circle, a null byte
        there = False
    if not there:
        raise ConfigError(f"plugin {short(text)}: there is no such file")
    known = next((name for name, module in _files() if module == file), None)
    name = PREFIX + re.sub(r"\W", "_", path.stem)
    if dict(_files()).get(name, file) != file:
        name += f"_{zlib.crc32(file.encode()):08x}"
    return Plugin(known or name, file, text)


def loaded_plugins() -> tuple[Plugin, ...]:
    """Plugins of this process, for workers in others to load."""
    found = []
    for name, module in list(sys.modules.items()):
        if isinstance(named := getattr(module, "__dict__", {}).get(MARK), str):
            file = getattr(module, "__file__", None)
            found.append(Plugin(name, file if named.endswith(".py") else None, named))
    return tuple(found)


def load_installed() -> list[str]:
    """Load what installed packages offer as entry points of the group `sp.plugins`; a line for each that fails."""
    failed = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        try:
            Plugin(entry.module, None, entry.module).load()
        except SpError as error:
            failed.append(str(error))
    return failed


def load_plugin(text: str | Path) -> ModuleType:
    """Load a plugin by file or module name, as ``--plugin`` does; errors as for `find_plugin` and `Plugin.load`."""
    return find_plugin(str(text)).load()


def source_of(cls: Any) -> str:
    """Where a class or function was defined: `BUILT_IN`, or the file or module of its plugin."""
    if cls.__module__.partition(".")[0] == "sp":
        return BUILT_IN
    module = sys.modules.get(cls.__module__)
    return str(getattr(module, MARK, None) or getattr(module, "__file__", None) or cls.__module__)


def file_of(cls: type) -> Path | None:
    """The file that defines a class from outside; None for one of the package, or without a file."""
    if cls.__module__.partition(".")[0] == "sp":
        return None
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _files() -> Iterator[tuple[str, str]]:
    """Modules that are loaded, and their files."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
            yield name, file


def _told(plugin: Plugin, error: BaseException) -> str:
    """The rest of a line: where in the plugin it went wrong, and how."""
    if isinstance(error, ModuleNotFoundError) and f"{plugin.module}.".startswith(f"{error.name}."):
        return ": there is no such module; name a file as in mine.py, or install it"
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{Path(error.filename).name}, line {error.lineno}"
    else:
        places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        own = [(file, line) for file, line in places if file == plugin.file]
        others = [(file, line) for file, line in places if not file.startswith("<") and HOME not in Path(file).parents]
        if found := own or others:
            where = f"{Path(found[-1][0]).name}, line {found[-1][1]}"
    where = where.removeprefix(f"{Path(plugin.named).name}, ")
    said = str(error) if isinstance(error, SpError) else f"{type(error).__name__}: {short(error)}"
    return f"{f', {where}' if where else ''}: {short(said, 200)}"
