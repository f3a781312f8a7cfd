"""Plugins: Python files of the user, named by their path, and Python functions (`own_functions`).

A plugin is executed, so its path must come from the command line or a recipe. Names stored in runs, indexes and data
sets go through `registry.find_plugin` without `offers` and are never executed.
"""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from coseek.core.errors import CoseekError, DataError, SettingError
from coseek.core.files import Json
from coseek.core.own_functions import PREFIX, function_module, is_function, own_function
from coseek.core.settings import Settings

PluginSpec: TypeAlias = Mapping[str, type | None]
"""Required names of a plugin: a subclass of this settings class, a value of this type, or (`None`) a function."""


class _Source(SourceFileLoader):
    """Executes the file without cached bytecode, whose size and time two quick edits may share."""

    def path_stats(self, path: str) -> Mapping[str, object]:
        raise OSError


def is_plugin_path(name: str) -> bool:
    """Whether a name is the path of a Python file, or that of a Python function."""
    return name.endswith(".py") or is_function(name)


def plugin_name(name: str) -> str:
    """A part's name in logs: a plugin's file name, or that of a function."""
    if is_function(name):
        return name.removeprefix(PREFIX)
    return Path(name).stem.replace("-", "_") if is_plugin_path(name) else name


def load_plugin(kind: str, name: str, offers: PluginSpec) -> ModuleType:
    """Execute a file once and check its names. Raises `DataError` and `SettingError`."""
    if is_function(name):
        return function_module(kind, name)
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"there is no {kind} file {path} (seen from {Path.cwd()}); check the path")
    known = f"coseek_own_part_{file_digest(path, str(path.resolve()))[:16]}"
    module = sys.modules.get(known) or _run(path, kind, known)
    for needed, what in offers.items():
        _check(module, path, kind, needed, what, offers)
    return module


@contextmanager
def running(kind: str, name: str) -> Iterator[None]:
    """Call a part inside the block. What a user's own file raises is a `SettingError` with the line; errors of our own
    parts propagate."""
    try:
        yield
    except CoseekError:
        raise
    except Exception as error:
        if not is_plugin_path(name) or is_function(name):  # a program sees the traceback of its own function
            raise
        raise SettingError(_failed(f"the {kind} file {name} failed", Path(name), error)) from None


def plugin_digests(tree: Json) -> dict[str, Json]:
    """Path or function → digest of the plugins that a tree of settings names, which must not change on resume. That of
    a function which cannot be identified is empty."""
    digests: dict[str, Json] = {}
    for name in sorted(set(filter(is_plugin_path, _texts(tree)))):
        if (known := own_function(name)) is not None:
            digests[name] = known.digest
        elif Path(name).expanduser().is_file():
            digests[name] = file_digest(Path(name).expanduser())
    return digests


def _run(path: Path, kind: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution: classes look up their annotations there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 (a user's file may raise anything)
        del sys.modules[name]
        raise SettingError(_failed(f"the {kind} file {path} cannot be imported", path, error)) from None
    return module


def _failed(what: str, path: Path, error: Exception) -> str:
    """The sentence about an error in a user's file, with its line there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError):
        said, line = error.msg, error.lineno
    else:
        said, line = str(error), lines[-1] if lines else None
    where = f" (line {line})" if line else ""
    return f"{what}: {type(error).__name__}: {said}{where}; mend it"


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
