"""A tiny world and its index."""

from pathlib import Path

import pytest

from coseek.retrieval.index import build_index
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "world"
    make_world(WorldSettings(size="tiny", train=5, dev=5, test=5)).save(folder)
    return folder


@pytest.fixture(scope="session")
def index(world: Path) -> Path:
    build_index(world, "bm25", world.with_name("bm25"))
    return world.with_name("bm25")
