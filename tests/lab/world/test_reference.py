"""Reference worlds: one name, one world, in every version."""

import json
from pathlib import Path

import pytest

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.settings import dump_settings
from coseek.lab.world import world
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import World, make_world, reference_world
from coseek.library import make_world as make_in_folder
from coseek.pipelines.agent_recipe import load_recipe


def test_the_digest_is_of_passages_and_questions(tmp_path: Path) -> None:
    settings = WorldSettings(size="tiny", train=20, dev=5, test=5)
    made = make_world(settings)
    fewer = make_world(settings.model_copy(update={"test": 4}))
    other = make_world(settings.model_copy(update={"outdated": 0.2}))
    assert len({made.digest, fewer.digest, other.digest}) == 3
    made.save(tmp_path / "w")
    assert World.load(tmp_path / "w").digest == make_world(settings).digest == made.digest


def test_a_reference_world_that_came_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = WorldSettings(size="tiny", train=5, dev=0, test=0)
    changed = reference_world("world-1").model_copy(update={"settings": tiny})
    monkeypatch.setattr(world, "reference_worlds", lambda: {"world-1": changed})
    with pytest.raises(DataError, match="makes another world-1"):
        make_world(tiny)
    make_world(tiny.model_copy(update={"seed": 1}))


@pytest.mark.slow
def test_world_1_is_what_it_was_by_recipes_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe("quickstart", ["data.world=world-1"])
    assert recipe.data.world is not None
    assert dump_settings(recipe.data.world) == dump_settings(reference_world("world-1").settings)
    assert recipe.data.unseen == load_recipe("quickstart").data.unseen
    with pytest.raises(UnknownName, match="did you mean 'world-1'"):
        load_recipe("quickstart", ["data.world=world1"])
    assert main(["world", "make", str(tmp_path / "w"), "--name", "world-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == {"train": 6000, "dev": 500, "test": 2000}
    assert World.load(tmp_path / "w").digest == reference_world("world-1").sha256
    assert main(["world", "make", str(tmp_path / "w"), "--name", "world-2"]) == 2
    assert "world-1" in capsys.readouterr().err


def test_a_reference_world_takes_no_other_settings(tmp_path: Path) -> None:
    assert main(["world", "make", str(tmp_path / "w"), "--name", "world-1", "--size", "tiny"]) == 2
    with pytest.raises(SettingError, match="fixed"):
        make_in_folder(tmp_path / "w", seed=3, name="world-1")
    assert not (tmp_path / "w").exists()
