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
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TypeAlias, cast

from coseek.core.errors import CoseekError, DataError, SettingError, UnknownName
from coseek.core.files import Json
from coseek.core.fingerprint import digest_of, file_digest
from coseek.core.settings import Settings

# Own functions: Python functions of the user as parts (a reward, an algorithm, a tool …), without a file.
#
# Settings hold the name `python:NAME`, which means something only in a process that has offered the function. A
# resumed training must find the same function, so a function is identified by its source: its text, the values of its
# defaults and of the globals that it reads, and the sources of the functions of its own module that it calls. What
# cannot be identified so (a lambda, a closure over data, an object) can be trained with and not resumed.

PREFIX = "python:"


class CannotResume(UserWarning):
    """A training uses a function that a later process could not recognise."""


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function of the user, and the modules that stand for its file, one for each kind of part."""

    function: object
    digest: str
    """Of its source; empty where that does not identify it."""
    problem: str
    """Why it does not."""
    modules: dict[str, ModuleType]


_offered: dict[str, OwnFunction] = {}


def is_function(name: str) -> bool:
    """Whether settings name a Python function."""
    return name.startswith(PREFIX)


def offer(kind: str, function: object, names: Mapping[str, object], digest: str = "") -> str:
    """Make a function, or an object, a part of this kind, whose module holds `names`. Returns its name in settings.

    One offered later under the same name replaces it, as redefining it in a notebook does. `digest` identifies an
    object.
    """
    name = f"{PREFIX}{called(function)}"
    known = _offered.get(name)
    if known is None or known.function is not function:
        known = _offered[name] = OwnFunction(function, *((digest, "") if digest else identify(function)), {})
    module = ModuleType(name, inspect.getdoc(unwrapped(function)) or called(function))
    for key, value in names.items():
        setattr(module, key, value)
    known.modules[kind] = module
    return name


def unwrapped(function: object) -> object:
    """The function with a name and a docstring of its own that a `functools.partial` calls; any other as it is."""
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
    return _offered.get(name)


def function_module(kind: str, name: str) -> ModuleType:
    """The module that stands for a function. Raises `SettingError` where this process has not offered it."""
    known = _offered.get(name)
    if known is not None and kind not in known.modules:
        raise SettingError(
            f"there is no {kind} called {plugin_name(name)!r}, only a function of that name for another kind of part "
            f"({', '.join(known.modules)}); give each function a name of its own with def"
        )
    if known is None:
        raise SettingError(
            f"the {kind} {name} is a function of the program that trained with it, and this process does not have it; "
            "run that program again, with resume=True for a stopped training"
        )
    return known.modules[kind]


def check_takes(kind: str, function: Callable[..., object], *arguments: str) -> None:
    """Raise `SettingError` for a function that cannot be called with these arguments, before hours of work."""
    check_plain(f"the {kind} {called(function)}", function, generator=kind == "retriever")  # whose hits are collected
    if not _takes(function, arguments):
        raise SettingError(f"the {kind} {called(function)} must take ({', '.join(arguments)})")


def check_function(module: object, function: str, name: str, *arguments: str) -> None:
    """Raise `SettingError` if a function of the part `name` cannot be called with these arguments."""
    check_plain(f"`{function}` of {name}", getattr(module, function))
    if not _takes(getattr(module, function), arguments):
        raise SettingError(f"`{function}` of {name} must take ({', '.join(arguments)}), in this order")


def check_plain(subject: str, function: object, generator: bool = False) -> None:
    """Raise `SettingError` for an async function, and for a generator unless it is allowed."""
    inner = unwrapped(function)
    for code in (inner, getattr(inner, "__call__", None)):  # noqa: B004 (an object's)
        late = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        if late or (inspect.isgeneratorfunction(code) and not generator):
            raise SettingError(f"{subject} is async or a generator; write a plain function that returns its result")


def _takes(function: Callable[..., object], arguments: Iterable[str]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True


class _Unidentified(Exception):
    """Why a source does not identify a function."""


def identify(function: object) -> tuple[str, str]:
    """A digest of everything that the function is made of, and empty; or empty, and why there is none."""
    try:
        return digest_of(*_sources(function, set())), ""
    except _Unidentified as why:
        return "", str(why)


def _sources(function: object, seen: set[str]) -> Iterator[str]:
    if not isinstance(function, FunctionType):
        raise _Unidentified(f"it is an object of the class {type(function).__name__}")
    if function.__name__ == "<lambda>":
        raise _Unidentified("it is a lambda")
    if function.__closure__:
        raise _Unidentified(f"it closes over {', '.join(function.__code__.co_freevars)}")
    seen.add(function.__qualname__)
    yield _source(function)
    yield _plain("its defaults", [function.__defaults__, function.__kwdefaults__])
    for name in sorted(set(_names(function.__code__)) & function.__globals__.keys()):
        yield name
        yield from _global(name, function.__globals__[name], function.__module__, seen)


def _global(name: str, value: object, module: str, seen: set[str]) -> Iterator[str]:
    """What identifies a global: the source of code of the same module, the name of a library's, a plain value."""
    if isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, FunctionType | type) and value.__module__ == module:
        if value.__qualname__ not in seen:
            yield from _sources(value, seen) if isinstance(value, FunctionType) else (_source(value),)
    elif hasattr(value, "__module__") and hasattr(value, "__qualname__"):
        yield f"{value.__module__}.{value.__qualname__}"
    elif callable(value) and hasattr(value, "__name__"):  # a built-in
        yield str(value.__name__)
    else:
        yield _plain(f"the global {name}", value)


def _names(code: CodeType) -> Iterator[str]:
    """The globals that the code reads, functions inside it included."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _source(part: FunctionType | type) -> str:
    try:
        return inspect.cleandoc(inspect.getsource(part))
    except (OSError, TypeError):
        raise _Unidentified(f"the source of {part.__name__} cannot be read") from None


_PLAIN = (str, bytes, int, float, bool, type(None), re.Pattern, Path)


def _plain(what: str, value: object) -> str:
    """A value whose text says what it is. Raises for any other."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, dict):
        return repr(sorted((_plain(what, key), _plain(what, each)) for key, each in value.items()))
    if isinstance(value, set | frozenset):
        return repr(sorted(_plain(what, each) for each in value))
    if isinstance(value, list | tuple):
        return repr([_plain(what, each) for each in cast("list[object]", value)])
    raise _Unidentified(f"it reads {what}, of the class {type(value).__name__}")


# Plugins: Python files of the user, named by their path, and Python functions.
#
# A plugin is executed, so its path must come from the command line or a recipe. Names stored in runs, indexes and data
# sets go through `find_plugin` without `offers` and are never executed.

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
    known = f"coseek_own_part_{digest_of(file_digest(path), str(path.resolve()))[:16]}"
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
        raise SettingError(failure(kind, name, error)) from None


def failure(kind: str, name: str, error: Exception) -> str:
    """The sentence about an exception of a user's file, or of a function."""
    if is_function(name):
        return f"{plugin_name(name)}: {type(error).__name__}: {error}"
    return _failed(f"the {kind} file {name} failed", Path(name), error)


def plugin_digests(tree: Json) -> dict[str, Json]:
    """Path or function → digest of the plugins that a tree of settings names, which must not change on resume. That of
    a function which cannot be identified is empty."""
    digests: dict[str, Json] = {}
    for name in sorted(set(filter(is_plugin_path, texts_in_tree(tree, names=True)))):
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
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
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


def texts_in_tree(tree: Json, names: bool = False) -> Iterator[str]:
    """Every text among the values of a tree, with `names` also the keys."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        if names and isinstance(tree, dict):
            yield from tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from texts_in_tree(value, names)


# Registry of parts: a part's name is its file's name in a package, or the path of a plugin (`own_part.py`).


Folders: TypeAlias = str | tuple[str, ...]
"""The package that holds the parts of a kind, or several of them. `coseek.lab` is named here and imported nowhere."""


def plugin_names(packages: Folders) -> list[str]:
    """The names of a kind's parts (`some_part.py` is `some-part`); imports none of them."""
    return sorted(_modules(packages))


def find_plugin(kind: str, packages: Folders, name: str, offers: PluginSpec | None = None) -> ModuleType:
    """Import the part called `name`. Raises `UnknownName` with the nearest name.

    With `offers`, `name` may also be the path of a Python file, which is executed: pass only names that the user gave.
    """
    if offers is not None and is_plugin_path(name):
        return load_plugin(kind, name, offers)
    known = _modules(packages)
    if name not in known:
        raise UnknownName(kind, name, sorted(known))
    return importlib.import_module(known[name])


def _modules(packages: Folders) -> dict[str, str]:
    """Name → module of each part."""
    found: dict[str, str] = {}
    for package in (packages,) if isinstance(packages, str) else packages:
        folder: Iterable[str] = importlib.import_module(package).__path__
        names = [module.name for module in pkgutil.iter_modules(folder) if not module.name.startswith("_")]
        found |= {name.replace("_", "-"): f"{package}.{name}" for name in names}
    return found


def find_yaml(kind: str, folder: Path, name: str) -> Path:
    """The file `NAME.yaml` in `folder`, or a path that ends in `.yaml` or `.yml`. Raises `UnknownName`."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise DataError(f"there is no {kind} file {name}; check the path")
        return Path(name)
    known = yaml_names(folder)
    if name not in known:
        raise UnknownName(kind, name, known)
    return folder / f"{name}.yaml"


def yaml_names(folder: Path) -> list[str]:
    """The names of the YAML files in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))
