"""What all tests share: a place for what is found out about the machine, beside what pytest keeps."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Trials of the machine's speed are kept between sessions as a user's are, and not among a user's.
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache")
