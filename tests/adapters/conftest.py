"""The tiny world of the command line's tests, and its index."""

from tests.cli.conftest import index, world

__all__ = ["index", "world"]
