"""Strict YAML: plain values of bounded size. No tags of programs, repeated keys, anchors inside themselves, bombs of
aliases, numbers beyond 128 bits or deep nesting."""

import datetime
from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache

import yaml
from yaml.composer import ComposerError
from yaml.reader import ReaderError

from coseek.core.strict_json import DEEPEST

MOST_CHARACTERS = 1 << 20
"""Of one text. PyYAML reads some tens of thousands a second."""
MOST_NODES = 200_000
"""Values of one text, those behind an alias counted each time."""
_LARGEST = 2**128
_PLAIN = (bool, int, float, str, datetime.date, type(None))


class Replace(dict[str, object]):
    """A mapping tagged `!replace`: where settings are merged, it replaces the group below it."""


class InvalidYaml(ValueError):
    """Refused YAML; the message is a sentence without a subject."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        super().__init__(sentence)
        self.line = line
        """From 1, where it is known."""


def parse_yaml(text: str, foreign: bool = False) -> object:
    """The value of a YAML text: `None`, booleans, numbers, text, dates, lists and mappings of them. Raises
    `InvalidYaml`. In a `foreign` one, such as the head of a document, a scalar that is none of them is its text.

    A text that comes again is taken from memory: protocols, prompts and recipes are opened again and again.
    """
    return deepcopy(_parsed(text, foreign))


@lru_cache(maxsize=256)
def _parsed(text: str, foreign: bool) -> object:
    if len(text) > MOST_CHARACTERS:
        raise InvalidYaml(f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are read")
    try:
        loader = (_ForeignLoader if foreign else _Loader)(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Check().count(node)
        value: object = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidYaml(
            f"not valid YAML ({error.problem or error.context})", mark.line + 1 if mark else None
        ) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidYaml(f"not valid YAML (the character {chr(error.character)!r} is not allowed)", line) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"not valid YAML ({str(error).splitlines()[0]})") from None
    return value


class _Loader(yaml.SafeLoader):
    """Makes every fault of a value one with a line, and refuses deep nesting before it is Python's own depth."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEEPEST:
            mark = self.get_mark()  # of the reader, which is some characters further on
            raise ComposerError(None, None, f"nested more than {DEEPEST} deep", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):  # a date that is none, `!!int x` …
            raise _fault(f"{_shown(node)} is not what it looks like; put it in quotes", node) from None
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise _fault(f"{_shown(node)} has more than 128 bits; put it in quotes", node)
        if not isinstance(value, (*_PLAIN, list, dict)):
            raise _fault(f"{node.tag.rpartition(':')[2]!r} is no plain value", node)
        return value


def _replace(loader: _Loader, node: yaml.Node) -> Replace:
    if not isinstance(node, yaml.MappingNode):
        raise _fault("`!replace` stands before `name: value` settings", node)
    return Replace({str(name): value for name, value in loader.construct_mapping(node, deep=True).items()})


_Loader.add_constructor("!replace", _replace)


class _ForeignLoader(_Loader):
    """Takes a scalar at its text where it is not what it looks like."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except yaml.MarkedYAMLError:
            if isinstance(node, yaml.ScalarNode):
                return node.value
            raise


class _Check:
    """Counts the values of a text before any of them is made, and refuses repeated keys."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()

    def count(self, node: yaml.Node) -> int:
        """Values of a node and below, aliases in full."""
        if (known := self._sizes.get(id(node))) is not None:
            return known
        if id(node) in self._open:
            raise _fault("an anchor that holds itself", node)
        self._open.add(id(node))
        size = 1 + sum(self.count(each) for each in self._parts(node))
        if size > MOST_NODES:
            raise _fault(f"more than {MOST_NODES:,} values, aliases in full", node)
        self._open.discard(id(node))
        self._sizes[id(node)] = size
        return size

    @staticmethod
    def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        elif isinstance(node, yaml.MappingNode):
            met: set[tuple[str, str]] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in met:
                        raise _fault(f"{_shown(key)} stands twice", key)
                    met.add((key.tag, key.value))
                yield key
                yield value


def _fault(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)


def _shown(node: yaml.Node) -> str:
    value = str(node.value) if isinstance(node, yaml.ScalarNode) else node.tag.rpartition(":")[2]
    return repr(value if len(value) <= 40 else f"{value[:39]}…")
