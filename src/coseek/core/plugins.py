"""Plugins: a part's name is its file's name in a package, the path of a user's Python file, or a Python function."""

import dis
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TypeAlias, cast

from coseek.core.errors import CoseekError, DataError, SettingError, UnknownName
from coseek.core.files import Json
from coseek.core.fingerprint import digest_of, file_digest
from coseek.core.settings import Settings

# Own functions: the user's Python functions as parts (a reward, an algorithm, a tool …), without a file.
#
# Settings contain the name `python:NAME`, which is valid only in a process that has offered the function. A resumed
# training must find the same function, so a function is identified by its source: its text, the values of its defaults
# and of the globals it reads, and the sources of the functions of its module that it calls. A training with anything
# else (a lambda, a closure over data, an object) cannot be resumed.

PREFIX = "python:"


class CannotResume(UserWarning):
    """A training uses a function that a later process could not identify."""


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function of the user, and the modules that replace its file, one for each kind of part."""

    function: object
    digest: str
    """Digest of the source; empty if the source does not identify the function."""
    problem: str
    """Why the source does not identify the function."""
    modules: dict[str, ModuleType]


_own_functions: dict[str, OwnFunction] = {}


def is_function(name: str) -> bool:
    """Whether settings name a Python function."""
    return name.startswith(PREFIX)


def offer(kind: str, function: object, names: Mapping[str, object], digest: str = "") -> str:
    """Register a function, or an object, as a part of this kind, in a module that contains `names`. Returns its name in
    settings.

    A later function of the same name replaces it, as when it is redefined in a notebook. `digest` identifies an object.
    """
    name = f"{PREFIX}{called(function)}"
    entry = _own_functions.get(name)
    if entry is None or entry.function is not function:
        entry = _own_functions[name] = OwnFunction(function, *((digest, "") if digest else identify(function)), {})
    module = ModuleType(name, inspect.getdoc(unwrapped(function)) or called(function))
    for key, value in names.items():
        setattr(module, key, value)
    entry.modules[kind] = module
    return name


def unwrapped(function: object) -> object:
    """The function inside a `functools.partial`; any other object as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def called(function: object) -> str:
    """The name of a function, or of an object's class, as one word."""
    function = unwrapped(function)
    name = getattr(function, "__name__", None) or type(function).__name__
    return re.sub(r"\W", "", str(name)) or "function"


def own_function(name: str) -> OwnFunction | None:
    """The function that was offered under this name."""
    return _own_functions.get(name)


def function_module(kind: str, name: str) -> ModuleType:
    """The module that replaces a function's file. Raises `SettingError` if this process did not offer the function."""
    entry = _own_functions.get(name)
    if entry is None:
        raise SettingError(
            f"the {kind} {name} is a function of the program that trained with it, and this process does not have it; "
            "run that program again, with resume=True for a stopped training"
        )
    if kind not in entry.modules:
        raise SettingError(
            f"there is no {kind} called {plugin_name(name)!r}, only a function of that name for another kind of part "
            f"({', '.join(entry.modules)}); give each function a name of its own with def"
        )
    return entry.modules[kind]


def check_takes(kind: str, function: Callable[..., object], *arguments: str) -> None:
    """Raise `SettingError` if a user's function does not take these arguments, before hours of work."""
    subject = f"the {kind} {called(function)}"
    check_plain(subject, function, generator=kind == "retriever")  # its hits are collected in a list
    _check_signature(subject, function, arguments)


def check_function(module: object, function: str, name: str, *arguments: str) -> None:
    """Raise `SettingError` if a function of the part `name` does not take these arguments."""
    check_plain(f"`{function}` of {name}", getattr(module, function))
    _check_signature(f"`{function}` of {name}", getattr(module, function), arguments)


def check_plain(subject: str, function: object, generator: bool = False) -> None:
    """Raise `SettingError` for an async function, and for a generator function unless `generator` allows it."""
    inner = unwrapped(function)
    for code in (inner, getattr(inner, "__call__", None)):  # noqa: B004 (an object's)
        is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        if is_async or (inspect.isgeneratorfunction(code) and not generator):
            raise SettingError(f"{subject} is async or a generator; write a plain function that returns its result")


def _check_signature(subject: str, function: Callable[..., object], arguments: Iterable[str]) -> None:
    with suppress(ValueError):  # a built-in without a signature
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError:
            raise SettingError(f"{subject} must take ({', '.join(arguments)}), in this order") from None


class _Unidentified(Exception):
    """Why the source does not identify a function."""


def identify(function: object) -> tuple[str, str]:
    """Return a digest of everything that determines the function, and an empty reason; or an empty digest, and the
    reason why there is none."""
    try:
        return digest_of(*_sources(function, set())), ""
    except _Unidentified as why:
        return "", str(why)


def _sources(function: object, visited: set[str]) -> Iterator[str]:
    if not isinstance(function, FunctionType):
        raise _Unidentified(f"it is an object of the class {type(function).__name__}")
    if function.__name__ == "<lambda>":
        raise _Unidentified("it is a lambda")
    if function.__closure__:
        raise _Unidentified(f"it closes over {', '.join(function.__code__.co_freevars)}")
    visited.add(function.__qualname__)
    yield _source(function)
    yield _plain_repr("its defaults", [function.__defaults__, function.__kwdefaults__])
    for name in sorted(set(_names(function.__code__)) & function.__globals__.keys()):
        yield name
        yield from _global(name, function.__globals__[name], function.__module__, visited)


def _global(name: str, value: object, module: str, visited: set[str]) -> Iterator[str]:
    """Identify a global: by its source if it is code of the same module, by its name if it is a library's, else by its
    value."""
    if isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, FunctionType | type) and value.__module__ == module:
        if value.__qualname__ not in visited:
            yield from _sources(value, visited) if isinstance(value, FunctionType) else (_source(value),)
    elif hasattr(value, "__module__") and hasattr(value, "__qualname__"):
        yield f"{value.__module__}.{value.__qualname__}"
    elif callable(value) and hasattr(value, "__name__"):  # a built-in
        yield str(value.__name__)
    else:
        yield _plain_repr(f"the global {name}", value)


def _names(code: CodeType) -> Iterator[str]:
    """The globals that the code reads, including those of inner functions."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(part: FunctionType | type) -> str:
    try:
        return inspect.cleandoc(inspect.getsource(part))
    except (OSError, TypeError):
        raise _Unidentified(f"the source of {part.__name__} cannot be read") from None


_PLAIN = (str, bytes, int, float, bool, type(None), re.Pattern, Path)


def _plain_repr(subject: str, value: object) -> str:
    """The `repr` of a value that is plain at every depth. Raises `_Unidentified` for any other."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, dict):
        return repr(sorted((_plain_repr(subject, key), _plain_repr(subject, item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return repr(sorted(_plain_repr(subject, item) for item in value))
    if isinstance(value, list | tuple):
        return repr([_plain_repr(subject, item) for item in cast("list[object]", value)])
    raise _Unidentified(f"it reads {subject}, of the class {type(value).__name__}")


# Plugins: the user's Python files, named by their paths, and Python functions.
#
# A plugin is executed, so its path must come from the command line or a recipe. Names stored in runs, indexes and data
# sets go through `find_plugin` without `offers`, which never executes a file.

PluginSpec: TypeAlias = Mapping[str, type | None]
"""Required name of a plugin → its type: a settings class to subclass, the type of a value, or `None` for a function."""


class _Source(SourceFileLoader):
    """Ignores cached bytecode: after two quick edits, the file may have the same size and time."""

    def path_stats(self, path: str) -> Mapping[str, object]:
        raise OSError


def is_plugin_path(name: str) -> bool:
    """Whether a name is the path of a Python file or names a Python function."""
    return name.endswith(".py") or is_function(name)


def plugin_name(name: str) -> str:
    """A part's name in logs: the stem of its file, or the name of its function."""
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
    module_name = f"coseek_own_part_{digest_of(file_digest(path), str(path.resolve()))[:16]}"
    module = sys.modules.get(module_name) or _run(path, kind, module_name)
    for member, kind_of_value in offers.items():
        _check(module, path, kind, member, kind_of_value, offers)
    return module


@contextmanager
def running(kind: str, name: str) -> Iterator[None]:
    """Call a part in the block. An exception from a user's file becomes a `SettingError` with its line."""
    try:
        yield
    except CoseekError:
        raise
    except Exception as error:
        if not is_plugin_path(name) or is_function(name):  # a program sees the traceback of its own function
            raise
        raise SettingError(failure(kind, name, error)) from None


def failure(kind: str, name: str, error: Exception) -> str:
    """Describe an exception from a user's file or function."""
    if is_function(name):
        return f"{plugin_name(name)}: {type(error).__name__}: {error}"
    return _describe_failure(f"the {kind} file {name} failed", Path(name), error)


def plugin_digests(tree: Json) -> dict[str, Json]:
    """Path or function → digest, of all plugins that a tree of settings names; they must not change on resume. A
    function that cannot be identified has an empty digest."""
    digests: dict[str, Json] = {}
    for name in sorted(set(filter(is_plugin_path, texts_in_tree(tree, names=True)))):
        if (function := own_function(name)) is not None:
            digests[name] = function.digest
        elif Path(name).expanduser().is_file():
            digests[name] = file_digest(Path(name).expanduser())
    return digests


def _run(path: Path, kind: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution, since classes resolve their annotations there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 (a user's file may raise anything)
        del sys.modules[name]
        raise SettingError(_describe_failure(f"the {kind} file {path} cannot be imported", path, error)) from None
    return module


def _describe_failure(event: str, path: Path, error: Exception) -> str:
    """Describe an exception from a user's file, with the line in that file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    if isinstance(error, SyntaxError):
        message, line = error.msg, error.lineno
    else:
        message, line = str(error), lines[-1] if lines else None
    position = f" (line {line})" if line else ""
    return f"{event}: {type(error).__name__}: {message}{position}; mend it"


def _check(module: ModuleType, path: Path, kind: str, name: str, required: type | None, offers: PluginSpec) -> None:
    """Raise `SettingError` unless the module defines `name` with the required type."""
    if not hasattr(module, name):
        raise SettingError(f"{path} has no {name!r}, so it is no {kind}; such a file offers {', '.join(offers)}")
    value = getattr(module, name)
    if required is None:
        is_valid, noun = callable(value), "a function"
    elif issubclass(required, Settings):
        is_valid, noun = isinstance(value, type) and issubclass(value, required), f"a class over {required.__name__}"
    else:
        is_valid, noun = isinstance(value, required), f"a {required.__name__}"
    if not is_valid:
        raise SettingError(f"{name!r} of the {kind} file {path} must be {noun}, not {value!r}")


def texts_in_tree(tree: Json, names: bool = False) -> Iterator[str]:
    """Every text among the values of a tree; with `names`, also the keys."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        if names and isinstance(tree, dict):
            yield from tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from texts_in_tree(value, names)


# Registry of parts: a part's name is the name of its file in a package, or the path of a plugin (`own_part.py`).


Folders: TypeAlias = str | tuple[str, ...]
"""The packages that contain the parts of a kind. `coseek.lab` is found by such a name, and is imported nowhere."""


def plugin_names(packages: Folders) -> list[str]:
    """The names of a kind's parts (`some_part.py` is `some-part`). Imports none of them."""
    return sorted(_modules(packages))


def find_plugin(kind: str, packages: Folders, name: str, offers: PluginSpec | None = None) -> ModuleType:
    """Import the part called `name`. Raises `UnknownName` with the nearest name.

    With `offers`, `name` may also be the path of a Python file, which is executed: pass only names that the user typed.
    """
    if offers is not None and is_plugin_path(name):
        return load_plugin(kind, name, offers)
    modules = _modules(packages)
    if name not in modules:
        raise UnknownName(kind, name, sorted(modules))
    return importlib.import_module(modules[name])


def _modules(packages: Folders) -> dict[str, str]:
    """Name → module of each part."""
    modules: dict[str, str] = {}
    for package in (packages,) if isinstance(packages, str) else packages:
        folder: Iterable[str] = importlib.import_module(package).__path__
        names = [module.name for module in pkgutil.iter_modules(folder) if not module.name.startswith("_")]
        modules |= {name.replace("_", "-"): f"{package}.{name}" for name in names}
    return modules


def find_yaml(kind: str, folder: Path, name: str) -> Path:
    """The path of `NAME.yaml` in `folder`, or `name` itself if it ends in `.yaml` or `.yml`. Raises `UnknownName` or
    `DataError`."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise DataError(f"there is no {kind} file {name}; check the path")
        return Path(name)
    names = yaml_names(folder)
    if name not in names:
        raise UnknownName(kind, name, names)
    return folder / f"{name}.yaml"


def yaml_names(folder: Path) -> list[str]:
    """The names of the YAML files in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))
