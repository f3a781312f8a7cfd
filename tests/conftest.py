"""What all tests share: a place for what is found out about the machine, and how many examples hypothesis draws."""

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from tests.examples_drawn import FULL, QUICK

from coseek.core.errors import EXTRA_OF, MissingExtra


def pytest_configure(config: pytest.Config) -> None:
    # Trials of the machine's speed are kept between sessions as a user's are, and not among a user's.
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache")
    settings.load_profile(QUICK if "not slow" in config.option.markexpr else FULL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # `--dist loadfile` deals whole files, in this order: long ones at the end would leave a worker alone with them.
    if hasattr(config, "workerinput"):
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


CORE = "COSEEK_CORE_ONLY"
"""Set by `make test-core`: what needs an extra is skipped. Without it, a missing library is an error."""


_OF_TESTS = {"accelerate", "atif", "bm25s", "httpcore", "ir_measures", "openai", "requests"}
"""Libraries that tests alone ask for."""


def needs_an_extra(error: BaseException | None) -> bool:
    """Whether an error says that a library is missing which an extra brings."""
    missing = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return isinstance(error, MissingExtra) or missing in EXTRA_OF or missing in _OF_TESTS


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    missing = re.search(r"ModuleNotFoundError: |cannot import name .* from 'tests", str(report.longrepr)) is not None
    if CORE in os.environ and report.failed and missing:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, "it needs an extra")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if CORE in os.environ and report.failed and call.excinfo is not None and needs_an_extra(call.excinfo.value):
        report.outcome, report.longrepr = "skipped", (str(report.fspath), 0, "it needs an extra")
    return report


@pytest.fixture(autouse=True)
def usual_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what libraries and shells leave behind: torch's launcher handles signals itself, a background job ignores
    Ctrl-C, and pytest-xdist sets a width of 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    # What libraries and test modules hold stays: looking through it for garbage took 4 % of the quick tests.
    gc.freeze()
