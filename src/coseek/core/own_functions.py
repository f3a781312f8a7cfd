"""Own functions: Python functions of the user as parts (a reward, an algorithm, a tool …), without a file.

Settings hold the name `python:NAME`, which means something only in a process that has offered the function. A resumed
training must find the same function, so a function is identified by its source: its text, the values of its defaults
and of the globals that it reads, and the sources of the functions of its own module that it calls. What cannot be
identified so (a lambda, a closure over data, an object) can be trained with and not resumed.
"""

import dis
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import cast

from coseek.core.errors import SettingError
from coseek.core.fingerprint import digest_of

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
    module = ModuleType(name, inspect.getdoc(function) or called(function))
    for key, value in names.items():
        setattr(module, key, value)
    known.modules[kind] = module
    return name


def called(function: object) -> str:
    """The name of a function, or of an object's class, as one word."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return re.sub(r"\W", "", str(name)) or "function"


def own_function(name: str) -> OwnFunction | None:
    """The function that was offered under this name."""
    return _offered.get(name)


def function_module(kind: str, name: str) -> ModuleType:
    """The module that stands for a function. Raises `SettingError` where this process has not offered it."""
    known = _offered.get(name)
    if known is None or kind not in known.modules:
        raise SettingError(
            f"the {kind} {name} is a function of the program that trained with it, and this process does not have it; "
            "run that program again, with resume=True for a stopped training"
        )
    return known.modules[kind]


def check_takes(kind: str, function: Callable[..., object], *arguments: str) -> None:
    """Raise `SettingError` for a function that cannot be called with these arguments, before hours of work."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise SettingError(f"the {kind} {called(function)} must take ({', '.join(arguments)})") from None
    except ValueError:  # a built-in without a signature
        return


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
