"""Own part: a part that is a Python file of the user's, named by its path, so that no installed package is edited.

Such a file is run. Its path is therefore always one that the user typed or wrote into a recipe: what a run, an index
or a data set names goes another way (`registry.find` without `offers`), and is never run.
"""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json
from coseek.core.settings import Settings

PluginSpec: TypeAlias = Mapping[str, type | None]
"""What such a part has, by name: a class over this class of settings, a value of this type, or (`None`) a function."""


class _Source(SourceFileLoader):
    """Runs the file as it stands. Cached bytecode is told apart by size and time, which two quick edits may share."""

    def path_stats(self, path: str) -> Mapping[str, object]:
        raise OSError


def is_plugin_path(name: str) -> bool:
    """Whether a name is the path of a Python file."""
    return name.endswith(".py")


def plugin_name(name: str) -> str:
    """What an own part is called in logs: its file's name."""
    return Path(name).stem.replace("-", "_") if is_plugin_path(name) else name


def load_plugin(kind: str, name: str, offers: PluginSpec) -> ModuleType:
    """Run a file and look whether it offers what such a part needs. The same file is run once."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"there is no {kind} file {path} (seen from {Path.cwd()}); check the path")
    known = f"coseek_own_part_{file_digest(path, str(path.resolve()))[:16]}"
    module = sys.modules.get(known) or _run(path, kind, known)
    for needed, what in offers.items():
        _check(module, path, kind, needed, what, offers)
    return module


def plugin_digests(tree: Json) -> dict[str, Json]:
    """The own parts that a tree of settings names, each with a digest of its file: what a run that goes on must find
    unchanged."""
    found = {name for name in _texts(tree) if is_plugin_path(name) and Path(name).expanduser().is_file()}
    return {name: file_digest(Path(name).expanduser()) for name in sorted(found)}


def _run(path: Path, kind: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: classes look their annotations up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 (whatever a user's file does when it is run)
        del sys.modules[name]
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SettingError(
            f"the {kind} file {path} cannot be imported: {type(error).__name__}: {said}{_line(error, path)}; mend it"
        ) from None
    return module


def _line(error: Exception, path: Path) -> str:
    """The last line of the file itself on the way to the error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f" (line {line})" if line else ""


def _check(module: ModuleType, path: Path, kind: str, needed: str, what: type | None, offers: PluginSpec) -> None:
    if not hasattr(module, needed):
        raise SettingError(f"{path} has no {needed!r}, so it is no {kind}; such a file offers {', '.join(offers)}")
    found = getattr(module, needed)
    if what is None:
        right, wanted = callable(found), "a function"
    elif issubclass(what, Settings):
        right, wanted = isinstance(found, type) and issubclass(found, what), f"a class over {what.__name__}"
    else:
        right, wanted = isinstance(found, what), f"a {what.__name__}"
    if not right:
        raise SettingError(f"{needed!r} of the {kind} file {path} must be {wanted}, not {found!r}")


def _texts(tree: Json) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield name
            yield from _texts(value)


def file_digest(path: Path, *also: str) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes() + "".join(also).encode()).hexdigest()
