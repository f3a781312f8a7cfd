"""Strict YAML: plain values. No tags of programs, and no repeated keys."""

import datetime
from copy import deepcopy
from functools import lru_cache
from typing import cast

import yaml
from yaml.reader import ReaderError

_PLAIN = (bool, int, float, str, datetime.date, type(None), list, dict)


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
    try:
        value: object = (_ForeignLoader if foreign else _Loader)(text).get_single_data()
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
    except RecursionError:
        raise InvalidYaml("it is nested too deeply") from None
    return value


class _Loader(yaml.SafeLoader):
    """Makes every fault of a value one with a line, and refuses repeated keys."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[object, object]:
        met: set[tuple[str, str]] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in met:
                    raise _fault(f"{_shown(key)} stands twice", key)
                met.add((key.tag, key.value))
        mapping: dict[object, object] = super().construct_mapping(cast(yaml.MappingNode, node), deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):  # a date that is none, `!!int x` …
            raise _fault(f"{_shown(node)} is not what it looks like; put it in quotes", node) from None
        if not isinstance(value, _PLAIN):
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


def _fault(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)


def _shown(node: yaml.Node) -> str:
    value = str(node.value) if isinstance(node, yaml.ScalarNode) else node.tag.rpartition(":")[2]
    return repr(value if len(value) <= 40 else f"{value[:39]}…")
