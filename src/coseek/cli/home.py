"""Home: `~/` in the paths of options and arguments, where no shell has expanded it (`--out=~/runs`, quotes)."""

import os
from pathlib import Path

from coseek.cli.volume import C, leaves
from coseek.core.files import as_path, expand_home


def with_home(program: C) -> C:
    """Let every command of a program take `~/` in its paths."""
    for command in leaves(program):
        for one in command.params:
            if one.callback is None:
                one.callback = lambda _context, _parameter, value: _at_home(value)
    return program


def _at_home(value: object) -> object:
    """The value with its paths expanded. A text, which may be a query, is a path where that exists."""
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    if isinstance(value, Path):
        return as_path(value, "a path")
    if isinstance(value, str) and (found := expand_home(value)) != value and os.path.exists(found):
        return found
    return value
