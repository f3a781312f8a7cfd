"""`coseek data synthesize`: what it prints, what it refuses."""

import json
from pathlib import Path

from tests.cli.conftest import Type


def test_a_world_gives_questions_that_other_commands_read(coseek: Type, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = coseek("data", "synthesize", world, "count=30", "hop_mix=[1,1]", "--out", out, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert sum(sum(hops.values()) for hops in told["questions"].values()) == 30
    assert coseek("index", out, "--out", tmp_path / "bm25").code == 0
    assert coseek("measure", out, tmp_path / "bm25", "--split", "train", "--metrics", "recall@5").code == 0
    assert coseek("audit", "corpus", out / "unanswerable", "--split", "train").code == 0


def test_the_data_set_that_is_read_is_never_replaced(coseek: Type, world: Path) -> None:
    done = coseek("data", "synthesize", world, "--out", world)
    assert done.code == 2
    assert "choose" in done.sentence


def test_a_setting_that_does_not_exist_is_refused(coseek: Type, world: Path, tmp_path: Path) -> None:
    done = coseek("data", "synthesize", world, "cuont=30", "--out", tmp_path / "out")
    assert done.code == 2
    assert "count" in done.sentence
