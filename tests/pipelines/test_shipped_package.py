"""Shipped models where users name models."""

from pathlib import Path

import pytest
from tests.pipelines.trainings import typed

from coseek.cli.main import main
from coseek.core.fingerprint import fingerprint
from coseek.graders.factory import open_generator, open_judge
from coseek.graders.generator import GeneratorSettings
from coseek.graders.judge import JudgeSettings
from coseek.lab.pipelines.recipes import SimulatorRecipe, check_simulator
from coseek.models.likelihood import open_likelihood
from coseek.models.model_folder import model_path
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import checked_recipe, paths_of
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.estimate import local_graders, shape_of
from coseek.pipelines.run_record import agent_identities, resolve_recipe
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.encoder.recipe import load_retriever_recipe

NAMED = [
    "policy.folder=base", "graders.generator={model: base}", "graders.judge={model: base}", "data.retriever=dense",
    "data.retriever_settings={encoder: base}",
]  # fmt: skip


@pytest.mark.slow
def test_every_place_that_names_a_model_opens_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()  # what lies in the working directory under a shipped name is not opened
    policy, encoder = model_path("base"), encoder_folder("base")
    typed("world", "make", "w", "--size", "tiny")
    typed("index", "w", "--retriever", "dense", "--encoder", "base", "--out", "dense")
    typed("search", "dense", "a name")
    run = ("run", "w", "--split", "test", "--agent", "base", "--retriever", "dense", "--out", "run", "count=2")
    typed(*run, "limits.max_turns=1", "limits.max_turn_tokens=4")

    recipe = checked_recipe("from-nothing", NAMED)
    assert [entry.path for entry in paths_of(recipe)] == [policy] * 3
    assert set(agent_identities(recipe, None).values()) == {fingerprint(policy)}
    assert shape_of(recipe)[1] == str(policy / "config.json")
    assert [*local_graders(recipe).values()] == [policy] * 2
    assert AgentTraining(recipe, Path("trained")).policy_folder("start") == policy
    assert resolve_recipe(recipe).graders.precision != "auto"
    tagged = AgentTraining(checked_recipe("quickstart", ["policy.add_word_tokens=0"]), Path("tagged"))
    tagged.make_policy()
    assert len(tagged.tokenizer.encode("<search>")) == 1
    typed("train", "agent", "quickstart", "policy.folder=base", "threads=1", "--dry-run")

    check_simulator(SimulatorRecipe(model="base", runs=("run",)))
    assert load_together_recipe("laptop", ["start=base"]).start.encoder == "base"
    small = load_retriever_recipe("base", ["encoder=base", "pooling=mean"])
    assert RetrieverTraining(small, Path("trained")).identities()["encoder"] == fingerprint(encoder)
    assert open_generator(GeneratorSettings(model="base")).model.identity
    open_judge(JudgeSettings(model="base"))
    assert open_likelihood("base").identity
    assert open_retriever({"retriever": "pointwise", "model": "base", "over": "dense"}).name == "pointwise"

    capsys.readouterr()
    assert main(["train", "agent", "quickstart", "policy.folder=bse"]) == 2
    assert main(["index", "w", "--retriever", "dense", "--encoder", "bas", "--out", "other"]) == 2
    assert main(["ask", "who?", "--agent", "bse", "--retriever", "dense"]) == 2
    assert capsys.readouterr().err.count("did you mean 'base'") == 3
