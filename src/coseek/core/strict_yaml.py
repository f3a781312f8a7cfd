"""Strict YAML: plain values only, without language tags or repeated keys."""

import datetime
from copy import deepcopy
from functools import lru_cache
from typing import cast

import yaml
from yaml.reader import ReaderError

from coseek.core.strict_json import InvalidText

_PLAIN = (bool, int, float, str, datetime.date, type(None), list, dict)


class Replace(dict[str, object]):
    """A mapping tagged `!replace`: when settings are merged, it replaces a group instead of being merged into it."""


class InvalidYaml(InvalidText):
    """Refused YAML."""


def parse_yaml(text: str, foreign: bool = False) -> object:
    """Parse a YAML text to `None`, booleans, numbers, texts, dates, and lists and mappings of them. Raises
    `InvalidYaml`. In `foreign` YAML, such as the front matter of a document, any other scalar becomes its text.

    Results are cached, since protocols, prompts and recipes are opened repeatedly.
    """
    return deepcopy(_parse(text, foreign))


@lru_cache(maxsize=256)
def _parse(text: str, foreign: bool) -> object:
    try:
        value: object = (_ForeignLoader if foreign else _Loader)(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise InvalidYaml(f"not valid YAML ({error.problem or error.context})", line) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidYaml(f"not valid YAML (the character {chr(error.character)!r} is not allowed)", line) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"not valid YAML ({str(error).splitlines()[0]})") from None
    except RecursionError:
        raise InvalidYaml("it is nested too deeply") from None
    return value


class _Loader(yaml.SafeLoader):
    """Gives every error a line, and refuses repeated keys."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[object, object]:
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise _fault(f"{_quote_node(key)} appears twice", key)
                keys.add((key.tag, key.value))
        mapping: dict[object, object] = super().construct_mapping(cast(yaml.MappingNode, node), deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):  # an impossible date, `!!int x` …
            raise _fault(f"{_quote_node(node)} is not valid for its YAML type; put it in quotes", node) from None
        if not isinstance(value, _PLAIN):
            raise _fault(f"{node.tag.rpartition(':')[2]!r} is no plain value", node)
        return value


def _replace(loader: _Loader, node: yaml.Node) -> Replace:
    if not isinstance(node, yaml.MappingNode):
        raise _fault("`!replace` needs `name: value` settings after it", node)
    return Replace({str(name): value for name, value in loader.construct_mapping(node, deep=True).items()})


_Loader.add_constructor("!replace", _replace)


class _ForeignLoader(_Loader):
    """Falls back to a scalar's text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except yaml.MarkedYAMLError:
            if isinstance(node, yaml.ScalarNode):
                return node.value
            raise


def _fault(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)


def _quote_node(node: yaml.Node) -> str:
    value = str(node.value) if isinstance(node, yaml.ScalarNode) else node.tag.rpartition(":")[2]
    return repr(value if len(value) <= 40 else f"{value[:39]}…")
