"""Shipped models where users name models: run in copies of the package that hold some.

A copy is a folder of links to the package's parts, with a `weights` of its own, as a second installation would be.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.networks import halve
from tests.retrieval.tiny_encoder import make_encoder

import coseek
from coseek.core.fingerprint import fingerprint
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model_folder import WEIGHTS

TINY = LaptopSettings(
    hidden=16, layers=("conv", "full_attention"), heads=2, kv_heads=1, feed_forward=16, vocabulary=300
)
USE = """
import json
from pathlib import Path
from coseek.cli.main import main
from coseek.graders.factory import open_generator, open_judge
from coseek.graders.generator import GeneratorSettings
from coseek.graders.judge import JudgeSettings
from coseek.models.likelihood import open_likelihood
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import checked_recipe
from coseek.pipelines.agent_check import paths_of
from coseek.pipelines.estimate import local_graders, shape_of
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.run_record import agent_identities
from coseek.pipelines.run_record import resolve_recipe
from coseek.lab.pipelines.recipes import SimulatorRecipe, check_simulator
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.retrieval.factory import open_retriever
from coseek.training.encoder.recipe import load_retriever_recipe

assert main(["world", "make", "w", "--size", "tiny"]) == 0
assert main(["index", "w", "--retriever", "dense", "--encoder", "base", "--out", "dense"]) == 0
assert main(["search", "dense", "a name"]) == 0
run = ["run", "w", "--split", "test", "--agent", "base", "--retriever", "dense", "--out", "run", "count=2"]
assert main([*run, "limits.max_turns=1", "limits.max_turn_tokens=4"]) == 0

names = ["policy.folder=base", "graders.generator={model: base}", "graders.judge={model: base}"]
recipe = checked_recipe("from-nothing", [*names, "data.retriever=dense", "data.retriever_settings={encoder: base}"])
found = {"paths": [str(one.path) for one in paths_of(recipe)], "identities": agent_identities(recipe, None)}
found["shape"] = shape_of(recipe)[0].hidden
found["graders"] = sorted(map(str, local_graders(recipe).values()))
found["start"] = str(AgentTraining(recipe, Path("trained")).policy_folder("start"))
tagged = checked_recipe("from-nothing", ["policy.folder=base", "policy.add_tag_tokens=true"])
with_tags = AgentTraining(tagged, Path("tagged"))
with_tags.make_policy()
assert with_tags.tokenizer.encode("<search>")
check_simulator(SimulatorRecipe(model="base", runs=("run",)))
assert load_together_recipe("laptop", ["start=base"]).start.encoder == "base"
assert main(["train", "agent", "quickstart", "policy.folder=base", "--dry-run"]) == 0
assert resolve_recipe(recipe).graders.precision != "auto"
small = load_retriever_recipe("base", ["encoder=base", "pooling=mean"])
found["encoder"] = RetrieverTraining(small, Path("trained")).identities()["encoder"]
assert open_generator(GeneratorSettings(model="base")).model.identity
assert open_judge(JudgeSettings(model="base")).model.identity and open_likelihood("base").identity
engine = {"retriever": "pointwise", "model": "base", "over": "dense"}
assert open_retriever(engine).name == "pointwise"
json.dump(found, open("found.json", "w"))
assert main(["train", "agent", "quickstart", "policy.folder=bse"]) == 2
assert main(["index", "w", "--retriever", "dense", "--encoder", "bas", "--out", "other"]) == 2
assert main(["ask", "who?", "--agent", "bse", "--retriever", "dense"]) == 2
"""
RESUME = """
from coseek.cli.main import main
run = ["run", "w", "--split", "test", "--agent", "base", "--retriever", "dense", "--out", "run", "count=2", "--resume"]
assert main([*run, "limits.max_turns=1", "limits.max_turn_tokens=4"]) == 2
"""


def installed(folder: Path, seed: int) -> Path:
    """A copy of the package with a policy and an encoder; returns its weights."""
    (folder / "coseek").mkdir(parents=True)
    for path in Path(str(coseek.__file__)).parent.iterdir():
        if path != WEIGHTS:
            (folder / "coseek" / path.name).symlink_to(path)
    weights = folder / "coseek" / "weights"
    make_policy(TINY, ["a few words"], (), weights / "policy" / "base", seed)
    make_encoder(weights / "encoder" / "base", seed=seed)
    for kind in ("policy", "encoder"):
        halve(weights / kind / "base" / "model.safetensors")
    return weights


def python(code: str, package: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_every_place_that_names_a_model_opens_a_shipped_one(tmp_path: Path) -> None:
    weights, here = installed(tmp_path / "first", seed=1), tmp_path / "here"
    (here / "base").mkdir(parents=True)  # what lies in the working directory under a shipped name is not opened
    done = python(USE, tmp_path / "first", here)
    policy, encoder = weights / "policy" / "base", weights / "encoder" / "base"
    report = json.loads((here / "found.json").read_text())
    assert report["paths"] == [str(policy)] * 3 and report["graders"] == [str(policy)] * 2
    assert set(report["identities"].values()) == {fingerprint(policy)}
    assert report["start"] == str(policy)
    assert report["shape"] == TINY.hidden and report["encoder"] == fingerprint(encoder)
    assert done.stderr.count("did you mean 'base'") == 3, done.stderr

    installed(tmp_path / "newer", seed=2)  # other weights of the same name: the run does not go on
    other = python(RESUME, tmp_path / "newer", here)
    assert "base" in other.stderr
