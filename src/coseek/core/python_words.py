"""Python words: advice of an error in the words of a program, where a function of the library was called.

Errors below the command line name options (`--resume`) and commands (`coseek run`), which a program does not type.
"""

import inspect
import re
from collections.abc import Callable, Collection
from functools import wraps
from typing import ParamSpec, TypeVar

from coseek.core.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?:[ =]([A-Z][A-Z.]*|\d+))?")
_FUNCTIONS = {
    "coseek data import documents": "coseek.import_documents",
    "coseek world make": "coseek.make_world",
    "coseek train agent": "coseek.train_agent",
    "coseek train retriever": "coseek.train_retriever",
    "coseek index": "coseek.build_index",
    "coseek run": "coseek.run_agent",
    "coseek label": "coseek.label",
    "coseek measure": "coseek.measure_retrievers",
    "coseek ask": "coseek.ask",
}
_COMMAND = re.compile(f"`({'|'.join(_FUNCTIONS)})`")
_SWITCHES = ("resume",)
"""Options without a value."""


def in_python_words(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of the library: options in a `UserError` become its parameters, commands functions."""
    parameters = frozenset(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            error.args = tuple(python_words(sentence, parameters) for sentence in error.sentences)
            raise

    return called


def python_words(sentence: str, parameters: Collection[str]) -> str:
    """The sentence with parameters in place of options of the same name; other options stay."""

    def parameter(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        if name not in parameters:
            return found[0]
        if name in _SWITCHES:
            return f"{name}=True"
        return f"{name}={found[2]}" if found[2] else f"`{name}`"

    return _COMMAND.sub(lambda found: f"`{_FUNCTIONS[found[1]]}`", _OPTION.sub(parameter, sentence))
