"""Shared by the tests of the command line: a tiny world, its index, a run, and a way to type commands."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from coseek.cli.main import main
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.library import run_agent
from coseek.retrieval.index import build_index


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The sentence of a refusal, which must be the only output."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("coseek: "), self.err
        assert not self.out
        return lines[0].removeprefix("coseek: ")


Type = Callable[..., Outcome]
"""Type a command: `coseek("search", folder, "words")`."""


@pytest.fixture
def coseek(capsys: pytest.CaptureFixture[str]) -> Type:
    def type_in(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return type_in


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 30 questions per split."""
    folder = tmp_path_factory.mktemp("cli") / "world"
    make_world(WorldSettings(size="tiny", train=30, dev=30, test=30)).save(folder)
    return folder


@pytest.fixture(scope="session")
def index(world: Path) -> Path:
    folder = world.with_name("world-bm25")
    build_index(world, "bm25", folder)
    return folder


@pytest.fixture(scope="session")
def run(world: Path, index: Path) -> Path:
    """A run of the expert over twelve questions. Tests must not change it; `run_to_spoil` is a copy."""
    folder = world.with_name("expert")
    run_agent(world, "expert", index, folder, split="test", count=12)
    return folder


@pytest.fixture
def run_to_spoil(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))
