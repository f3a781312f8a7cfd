"""What all tests share: a place for what is found out about the machine, and how many examples hypothesis draws."""

import gc
import os

import pytest
from hypothesis import settings
from tests.examples_drawn import FULL, QUICK


def pytest_configure(config: pytest.Config) -> None:
    # Trials of the machine's speed are kept between sessions as a user's are, and not among a user's.
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache")
    settings.load_profile(QUICK if config.option.markexpr == "not slow" else FULL)


def pytest_collection_finish() -> None:
    # What libraries and test modules hold stays: looking through it for garbage took 4 % of the quick tests.
    gc.freeze()
