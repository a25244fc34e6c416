"""Strategies, tasks, formats and families from outside the package: a Python file or a module, run once.

A plugin registers its classes as the modules of the package do. A file runs under a module name of its own, so that it
hides no module of the same name, and workers in other processes load it under that name, too.
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

GROUP = "sp.plugins"  # entry points of installed packages that are loaded automatically
BUILT_IN = "built in"  # source of the package's own classes
MARK = "__sp_plugin__"  # attribute of a loaded plugin's module that has its label
PREFIX = "sp_plugin_"
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
HOME = Path(__file__).parent


@dataclass(frozen=True)
class Plugin:
    """A plugin, loaded or not.

    Attributes
    ----------
    module : str
        Name of its module.
    file : str, optional
        Absolute path of its file; None for a module that is imported by name.
    label : str
        Its name in messages and lists, as the user wrote it.
    """

    module: str
    file: str | None
    label: str

    def load(self) -> ModuleType:
        """Run the plugin once per process, and return its module.

        Raises
        ------
        ConfigError
            It does not exist, or raises an error; the message says where.
        """
        module = sys.modules.get(self.module)
        if module is None:
            place = str(Path(self.file).parent) if self.file else str(Path.cwd())
            if place not in sys.path:
                sys.path.append(place)  # at the end, so that a plugin's neighbours hide no installed module
            try:
                module = import_module(self.module) if self.file is None else self._run()
            except (Exception, SystemExit) as error:
                sys.modules.pop(self.module, None)
                raise ConfigError(f"plugin {short(self.label)}{_reason(self, error)}") from None
        setattr(module, MARK, self.label)
        return module

    def _run(self) -> ModuleType:
        spec = spec_from_file_location(self.module, self.file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[self.module] = module  # before it runs, as dataclasses look their module up there
        spec.loader.exec_module(module)
        return module


def find_plugin(text: str, folder: Path | None = None) -> Plugin:
    """Find a plugin by the path of a ``.py`` file or by the name of a module.

    `folder`: folder in which a relative path is looked up if it does not exist in the working directory. ConfigError if
    there is no such file, or the text cannot be the name of a module.
    """
    if not text.endswith(".py"):
        if not MODULE.fullmatch(text):
            raise ConfigError(
                f"a plugin is a Python file such as mine.py, or the name of a module; got {short(text)!r}"
            )
        return Plugin(text, None, text)
    path = Path(text).expanduser()
    if folder is not None and not path.is_file():
        path = folder / path
    try:
        file = str(path.resolve())
        there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, a cycle of links, a null byte
        there = False
    if not there:
        raise ConfigError(f"plugin {short(text)}: no such file; check the path")
    known = next((name for name, module in _files() if module == file), None)
    name = PREFIX + re.sub(r"\W", "_", path.stem)
    if dict(_files()).get(name, file) != file:  # another file of the same name is loaded
        name += f"_{zlib.crc32(file.encode()):08x}"
    return Plugin(known or name, file, text)


def loaded_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of this process, which workers in other processes have to load."""
    plugins = []
    for name, module in list(sys.modules.items()):
        if isinstance(label := getattr(module, "__dict__", {}).get(MARK), str):
            file = getattr(module, "__file__", None)
            plugins.append(Plugin(name, file if label.endswith(".py") else None, label))
    return tuple(plugins)


def load_installed() -> list[str]:
    """Load the plugins of installed packages, entry points of the group `sp.plugins`; return a line per failure."""
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
    """Return the source of a class or function: `BUILT_IN`, or the file or module of its plugin."""
    if cls.__module__.partition(".")[0] == "sp":
        return BUILT_IN
    module = sys.modules.get(cls.__module__)
    return str(getattr(module, MARK, None) or getattr(module, "__file__", None) or cls.__module__)


def file_of(cls: type) -> Path | None:
    """Return the file that defines a class of a plugin; None for one of the package, or without a file."""
    if cls.__module__.partition(".")[0] == "sp":
        return None
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _files() -> Iterator[tuple[str, str]]:
    """Yield the loaded modules and their files."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
            yield name, file


def _reason(plugin: Plugin, error: BaseException) -> str:
    """Return the end of an error message: file, line and reason of a plugin's failure."""
    if isinstance(error, ModuleNotFoundError) and f"{plugin.module}.".startswith(f"{error.name}."):
        return ": no such module; pass a file such as mine.py, or install the module"
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{Path(error.filename).name}, line {error.lineno}"
    else:
        places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        own = [(file, line) for file, line in places if file == plugin.file]
        others = [(file, line) for file, line in places if not file.startswith("<") and HOME not in Path(file).parents]
        if frames := own or others:
            where = f"{Path(frames[-1][0]).name}, line {frames[-1][1]}"
    where = where.removeprefix(f"{Path(plugin.label).name}, ")
    reason = str(error) if isinstance(error, SpError) else f"{type(error).__name__}: {short(error)}"
    return f"{f', {where}' if where else ''}: {short(reason, 200)}"
