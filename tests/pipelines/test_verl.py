"""A training in verl as coseek writes it, without verl: `tests/adapters/test_verl.py` has verl read and run it."""

import json
from pathlib import Path
from typing import cast

import pytest
from pyarrow.parquet import read_table  # type: ignore[import-untyped]

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.settings import make_settings
from coseek.core.strict_json import Json
from coseek.data.question import Question
from coseek.pipelines.agent_check import check_settings
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.run_record import take_more_steps, take_weights
from coseek.pipelines.verl.config import check, verl_config
from coseek.pipelines.verl.launch import EpisodeSettings, Place, VerlTraining

NO_VERL = "rl.backend_settings={python: /no/python, overrides: [trainer.device=npu]}"


def at(tree: JsonObject, path: str) -> Json:
    *above, name = path.split(".")
    for each in above:
        tree = cast(JsonObject, tree[each])
    return tree[name]


def paper(name: str, *more: str) -> AgentRecipe:
    return load_recipe(name, ["rl.backend=verl", *more])


@pytest.mark.parametrize(
    ("setting", "way_out"),
    [
        ("rollout.servers=[http://h]", "rollout.servers=[]"),
        ("rl.dynamic_sampling=true", "rl.dynamic_sampling=false"),
        ("rl.balance_hops=true", "rl.balance_hops=false"),
        ("rl.monitor.stop=true", "rl.monitor.stop=false"),
        ("rl.num_minibatches=3", "divide"),
        ("rl.loss_agg_mode=group-mean", "token-mean or seq-mean-token-mean"),
        ("rl.algorithm_settings={zero_std_groups: drop}", "zero_std_groups=count"),
        ("rl.kl_location=reward", "rl.kl_location=loss"),
        ("rl.kl_clamp=5", "rl.kl_clamp=5"),
        ("rl.policy.optimizer.weight_decay=0.1", "rl.policy.optimizer.decay_vectors=true"),
        ("rl.policy.optimizer.algorithm=muon", "adamw"),
        ("rl.policy.optimizer.lr_scheduler_type=linear", "lr_scheduler_type=constant"),
        ("rl.policy.micro_batch_gib=4", "micro_batch_tokens"),
        ("rl.policy.lora={rank: 8}", "rl.policy.lora=null"),
        ("track=[mine.py]", "wandb"),
    ],
)
def test_what_verl_cannot_do_is_refused_by_name(setting: str, way_out: str) -> None:
    workers = ["rl.policy.strategy=ddp"] if "muon" in setting else []  # fsdp2 refuses Muon before verl does
    with pytest.raises(SettingError) as refused:
        check(paper("search-r1-grpo", setting, *workers))
    (sentence,) = refused.value.sentences
    assert "verl" in sentence and way_out in sentence


def test_a_reward_that_needs_models_in_every_worker_is_refused() -> None:
    graders = "graders={generator: {model: models/qwen}}"
    with pytest.raises(SettingError, match=r"naive-RAG.*graders\.generator\.model=models/qwen"):
        check(paper("search-r1-grpo", "reward={gbr: 1.0}", graders))


@pytest.mark.parametrize(
    "backend", [["rl.backend=verl"], ["rl.backend=tinker", "rl.backend_settings={url: http://h, reduction: sum}"]]
)
def test_a_backend_that_starts_once_is_refused_under_torchrun_before_anything_is_made(
    backend: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingError, match=r"start (coseek )?without torchrun"):
        check_settings(paper("search-r1-grpo", *backend))


def test_an_unknown_setting_of_the_backend_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match="gpus"):
        check_settings(paper("search-r1-grpo", "rl.backend_settings={gpu: 4}"))


def test_the_recipes_of_search_r1_are_what_the_papers_say_in_verls_words() -> None:
    grpo = verl_config(paper("search-r1-grpo"), Path("/out/rl"), Path("/model"), 1000)
    actor, rollout = (cast(dict[str, JsonObject], grpo["actor_rollout_ref"])[name] for name in ("actor", "rollout"))
    assert (at(actor, "optim.lr"), actor["kl_loss_coef"], actor["kl_loss_type"]) == (5e-7, 0.001, "low_var_kl")
    assert (rollout["n"], rollout["max_model_len"], at(grpo, "data.train_batch_size")) == (5, 4096, 512)
    assert at(grpo, "algorithm.adv_estimator") == "coseek" and "critic" not in grpo
    trainer = cast(dict[str, int], grpo["trainer"])
    assert trainer["total_epochs"] * (1000 // 512) >= trainer["total_training_steps"] == 600
    ppo = verl_config(paper("search-r1-ppo", "preset=code"), Path("/out/rl"), Path("/model"), 1000)
    assert at(ppo, "critic.optim.lr") == 1e-5 and at(ppo, "algorithm.adv_estimator") == "gae"
    assert at(ppo, "algorithm.use_kl_in_reward") and not at(ppo, "actor_rollout_ref.actor.use_kl_loss")
    assert (at(ppo, "actor_rollout_ref.rollout.top_p"), at(ppo, "critic.cliprange_value")) == (1.0, 0.5)
    assert (at(ppo, "critic.optim.weight_decay"), at(ppo, "critic.optim.lr_warmup_steps")) == (0.01, 15)
    assert not at(ppo, "algorithm.rollout_correction.bypass_mode")


def test_without_verl_the_run_is_written_for_another_machine_and_the_script_is_named(tmp_path: Path) -> None:
    questions = [Question("a", "Who?", ("Ada",)), Question("b", "Where?", ("here", "there"))]
    recipe = paper("search-r1-grpo", "rl.questions_per_step=5", "rl.num_minibatches=1", NO_VERL)
    model, dev = Path("/models/m"), questions[:1]
    run = VerlTraining(recipe, tmp_path / "rl", model, model, "http://host:8080", None, questions, dev)
    script = run.write()
    with pytest.raises(SettingError, match=r"/no/python has no verl; start .*launch\.sh"):
        run.start(script)
    assert "'trainer.device=npu'" in script.read_text() or "trainer.device=npu" in script.read_text()
    rows = read_table(run.folder / "train.parquet").to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == [*range(6)]  # one full batch at least
    assert [Question.from_json(json.loads(row["question"])) for row in rows] == questions * 3
    opened = make_settings(EpisodeSettings, read_yaml(run.folder / "episodes.yaml", "settings"))
    assert (opened.retriever, opened.recipe.limits, opened.recipe.rl) == ("http://host:8080", recipe.limits, recipe.rl)
    noisy = paper("search-r1-grpo", "data.training_retriever={retriever: noisy}", NO_VERL)
    other = VerlTraining(noisy, tmp_path / "noisy", model, model, "http://host:8080", None, questions, dev)
    other.write()
    settings = make_settings(EpisodeSettings, read_yaml(other.folder / "episodes.yaml", "settings"))
    assert settings.training_retriever == {"over": "http://host:8080", "retriever": "noisy"}
    seeds = {Place(step, row, 0).seed(questions[0], opened) for step in (1, 2) for row in (0, 1)}
    assert len(seeds) == 4
    assert run.weights() is None and run.faults == 0


def test_only_weights_of_the_last_step_are_taken_over(tmp_path: Path) -> None:
    recipe = paper("search-r1-grpo", "rl.steps=2")
    run = VerlTraining(recipe, tmp_path, Path("/m"), Path("/m"), "http://host:8080")
    saved = tmp_path / "checkpoints" / "global_step_2" / "actor" / "huggingface"
    saved.mkdir(parents=True)
    marker = tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt"
    marker.write_text("1")
    assert run.weights() is None
    marker.write_text("2")
    assert run.weights() == saved
    with pytest.raises(DataError, match="no weights"):
        take_weights(saved, tmp_path / "trained", lambda folder: None)
    (saved / "model.safetensors").write_bytes(b"w")
    (saved / "tokenizer.json").write_text("verl's copy")
    take_weights(saved, tmp_path / "trained", lambda folder: (folder / "coseek.yaml").touch())
    assert sorted(path.name for path in (tmp_path / "trained").iterdir()) == ["coseek.yaml", "model.safetensors"]


def test_more_steps_of_a_stage_that_verl_finished_are_not_skipped(tmp_path: Path) -> None:
    few, more = (
        paper("search-r1-grpo", f"rl.steps={steps}", "rl.policy.optimizer.lr_scheduler_type=constant")
        for steps in (2, 4)
    )
    for folder in (tmp_path / "rl" / "checkpoints", tmp_path / "policy" / "trained"):
        folder.mkdir(parents=True)
    (tmp_path / "rl" / "metrics.1700000000.jsonl").write_text('{"step": 2, "data": {}}\n')
    with pytest.raises(SettingError, match="holds no checkpoint to go on from"):
        take_more_steps(few, more, tmp_path, lambda: False)
    (tmp_path / "rl" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    take_more_steps(few, more, tmp_path, lambda: False)
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["trained.2-steps"]
