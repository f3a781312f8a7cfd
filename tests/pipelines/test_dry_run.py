"""Fears about dry runs: another machine than the one that was started, and other data than the training sees."""

import json
from pathlib import Path

import pytest

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.models.model_folder import model_path
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe, preset_names, recipe_names
from coseek.pipelines.dry_run import dry_run, rehearse
from coseek.pipelines.estimate import FULL, check_fits, memory_of, shape_of, shape_of_folder, share_of
from coseek.pipelines.stages import stages_of
from coseek.training.trainer.settings import GIB

READER = "graders.generator.model=base"


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in recipe_names() for preset in ("paper", *preset_names(name))]
)
def test_every_recipe_fits_the_machine_that_it_names(name: str, preset: str) -> None:
    read = ["data.imported.sources=[x]"] if name == "2wiki" else [f"preset={preset}"]
    # In place of models that are trained first.
    made = {"laptop": "base", "smollm": "models/SmolLM2-135M-Instruct"}.get(preset)
    if made and name in ("s3", "qagent"):
        read.append(f"graders.generator.model={made}")
    if made and (preset == "smollm" or name == "s3"):
        read.append(f"policy.folder={made}")
    recipe = load_recipe(name, read)
    for stage in [one.recipe for one in stages_of(recipe, Path())] or [recipe]:
        assert share_of(stage, shape_of(stage)[0]) <= FULL


# --- processes


def test_one_process_of_a_recipe_for_eight_devices_is_refused_before_anything_is_loaded() -> None:
    recipe = load_recipe("search-r1-grpo")
    shape, _ = shape_of(recipe)
    assert memory_of(recipe, shape).needed / GIB < 60  # on eight
    with pytest.raises(SettingError, match=r"with 1 process .* about 15[0-9] GiB .*torchrun .*--nproc-per-node 8"):
        check_fits(recipe, 1, 80)
    check_fits(recipe, 8, 80)
    check_fits(load_recipe("search-r1-grpo", ["machine.check=false"]), 1, 80)
    check_fits(load_recipe("search-r1-grpo", ["policy.folder=models/unknown"]), 1, 80)  # of unknown shape


def test_a_training_that_cannot_fit_ends_before_its_folder_is_written(tmp_path: Path) -> None:
    training = AgentTraining(load_recipe("from-nothing", ["policy.laptop.hidden=262144"]), tmp_path / "run")
    with pytest.raises(SettingError, match=r"needs about 1\d,\d{3} GiB on each device"):
        training.begin(resume=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_dry_run_counts_the_processes_it_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = dry_run(load_recipe("r1", ["threads=1"]))
    [look] = alone.looks
    assert alone.processes == 1 and look.memory.needed / GIB > 100 and look.meant is not None
    assert look.meant.needed / GIB < 80 and "torchrun" in look.way_out
    assert "GiB with 8 processes" in str(alone.table().rows)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "agent", "r1", "threads=1", "--dry-run", "--json"]) == 2  # its files are not there
    tree = json.loads(capsys.readouterr().out)
    memory = tree["stages"][0]["memory"]
    assert tree["processes"] == 8 and memory["fits"] and memory["needed_gib"] == pytest.approx(look.meant.needed / GIB)
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "agent", "r1", "--dry-run"]) == 0 and not capsys.readouterr().out


# --- data


def rows(count: int, evidence: bool) -> str:
    """Rows as 2WikiMultihopQA publishes them: who the director of a film is, and who is married to that one."""
    made = []
    for number in range(count):
        film, person, spouse = f"Film {number}", f"Ada Berg{number}", f"Eve Holm{number}"
        triples = [[film, "director", person], [person, "spouse", spouse]] if evidence else []
        made.append({
            "_id": f"q{number}", "type": "compositional", "question": f"Who is the spouse of the director of {film}?",
            "context": [[film, [f"{film} is a film by {person}."]], [person, [f"{person} is married to {spouse}."]]],
            "supporting_facts": [[film, 0], [person, 0]], "evidences": triples, "answer": spouse,
        })  # fmt: skip
    return json.dumps(made)


@pytest.mark.slow
def test_a_dry_run_over_imported_data_sees_what_the_training_sees(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    shape = shape_of_folder(model_path("base"))[0]
    recipe = load_recipe("2wiki", [f"data.imported.sources=[{tmp_path / 'with' / 'questions.json'}]", "threads=1"])
    (tmp_path / "with" / "questions.json").write_text(rows(60, evidence=True))
    [step] = rehearse(recipe, shape, tmp_path / "with" / "dry")
    assert step["tokens"] > 0
    assert (tmp_path / "with" / "dry" / "cut" / "questions.train.jsonl").is_file()
    # Without evidence the training itself is refused, and so is its dry run.
    recipe = load_recipe("2wiki", [f"data.imported.sources=[{tmp_path / 'without' / 'questions.json'}]", "threads=1"])
    (tmp_path / "without" / "questions.json").write_text(rows(60, evidence=False))
    with pytest.raises(DataError, match="has no plan"):
        rehearse(recipe, shape, tmp_path / "without" / "dry")
