"""Fears about an agent whose rollouts are sampled by servers: that its recipe is not carried to them, that an
evaluation and the rollouts ahead of it get into each other's way, and that a recipe which cannot work is found late."""

import json
from pathlib import Path

import pytest
from tests.models.vllm_server import vllm_server
from tests.pipelines.test_agent import TINY
from tests.pipelines.typed_run import trained

from coseek.core.errors import SettingError
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe


@pytest.mark.slow
def test_a_recipe_trains_with_servers_that_sample_ahead(tmp_path: Path) -> None:
    first = AgentTraining(load_recipe("quickstart", TINY), tmp_path / "warm")
    first.begin(resume=False)
    first.prepare_data()
    first.make_policy()
    first.warm_start()
    warm = first.policy_folder("warm")
    with vllm_server(warm) as server:
        settings = [
            *TINY, "learn=rl", "warm_start=null", f"policy.folder={warm}", "rl.steps=4",
            f"rollout={{servers: [{server.url}], weights: {tmp_path / 'served'}, max_steps_behind: 1}}",
        ]  # fmt: skip
        trained(AgentTraining(load_recipe("from-nothing", settings), tmp_path / "run"))
        assert server.written_tokens > 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["faults"], row["servers"]) for row in rows] == [(step, 0, 1) for step in range(1, 5)]
    assert all("eval/reward" in row and 0 <= row["steps_behind_max"] <= 1 for row in rows)
    assert (tmp_path / "run" / "policy" / "trained" / "model.safetensors").exists()


def test_a_recipe_that_cannot_sample_ahead_is_refused_before_anything_is_made() -> None:
    ahead = "rollout={servers: ['http://127.0.0.1:9'], max_steps_behind: 1}"
    assert load_recipe("from-nothing", [ahead]).rollout.max_steps_behind == 1
    with pytest.raises(SettingError, match="set max_steps_behind=0 or dynamic_sampling=false"):
        load_recipe("from-nothing", [ahead, "rl.dynamic_sampling=true"])
    with pytest.raises(SettingError, match="needs servers"):
        load_recipe("from-nothing", ["rollout.max_steps_behind=1"])
