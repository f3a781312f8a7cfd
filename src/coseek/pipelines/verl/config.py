"""verl's configuration from a recipe: a tree for verl's parser (0.9.1), and checks for what verl cannot do.
Implements `EpisodeLoop`.

Known differences that are not refused: verl clamps k3 at ± 10, whitens PPO's advantages with the sample's spread, and
counts episodes that failed in the divisors `sequence` and `constant`. It orders the questions by its own generator.
"""

from collections.abc import Callable
from pathlib import Path

from coseek.core.errors import ErrorList
from coseek.core.files import JsonObject
from coseek.core.plugins import is_function, plugin_digests, plugin_name
from coseek.core.settings import dump_settings
from coseek.hardware.device import processes_here
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import LoopTask
from coseek.rewards.reward import make_reward
from coseek.training.learner.settings import LearnerSettings
from coseek.training.rl.algorithm import CriticSettings, GroupSettings, TurnSettings, open_algorithm
from coseek.training.rl.backends.verl import verl_settings

AGENT = "coseek"
"""The name of our agent loop, and of our advantage estimator."""
LOOP = "coseek.adapters.verl.SearchAgentLoop"
HOOKS = "coseek.adapters.verl.TrainerHooks"
TRACKERS = frozenset({"tensorboard", "wandb", "trackio", "mlflow"})
NEVER = 1e9
"""A clip that no ratio and no value reaches."""
KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def check(recipe: AgentRecipe) -> None:
    """Raise one error with every setting of a stage's recipe that verl cannot follow."""
    mistakes, rl = ErrorList(), recipe.rl
    algorithm = open_algorithm(rl)
    compares_groups = isinstance(algorithm.settings, GroupSettings)
    if processes_here() > 1:
        mistakes.add("verl starts processes of its own; start coseek without torchrun")
    if recipe.rollout.servers:
        mistakes.add("verl starts servers of its own and takes none of rollout.servers; set rollout.servers=[]")
    if rl.dynamic_sampling:
        mistakes.add("verl bounds no resampling as rl.dynamic_sampling_max_factor does; set rl.dynamic_sampling=false")
    if rl.tree_roots is not None:
        mistakes.add("verl samples every trajectory from its question; leave rl.tree_roots out")
    if rl.balance_hops:
        mistakes.add("verl orders the questions itself; set rl.balance_hops=false")
    if rl.monitor.stop:
        mistakes.add("verl raises none of coseek's alarms; set rl.monitor.stop=false")
    if rl.questions_per_step % rl.num_minibatches:
        mistakes.add(
            f"verl's minibatches are equal, and rl.num_minibatches={rl.num_minibatches} does not divide "
            f"rl.questions_per_step={rl.questions_per_step}; set one that does"
        )
    if rl.policy_loss != "ppo-clip":
        mistakes.add(f"verl has PPO's clipped loss and not rl.policy_loss={rl.policy_loss}; leave it out")
    for name in filter(None, (recipe.tools and "tools", recipe.data.view and "data.view")):
        mistakes.add(f"verl's own processes do not support {name}; write it to a protocol's or retriever's file")
    if functions := [name for name in plugin_digests(dump_settings(recipe)) if is_function(name)]:
        mistakes.add(f"verl's own processes do not have the function {plugin_name(functions[0])}; write it to a file")
    if rl.loss_agg_mode == "group-mean":
        mistakes.add("verl has no loss like rl.loss_agg_mode=group-mean; set it to token-mean or seq-mean-token-mean")
    if isinstance(algorithm.settings, TurnSettings):
        mistakes.add(f"verl passes no turns to an algorithm, and {algorithm.name} reads them; take rl.backend=local")
    if compares_groups and algorithm.drops_zero_std:
        mistakes.add("verl updates with groups without spread, too; set rl.algorithm_settings.zero_std_groups=count")
    if compares_groups and rl.kl_coef > 0.0 and rl.kl_location == "reward":
        mistakes.add(f"verl gives {algorithm.name} its KL and its rewards in one number; set rl.kl_location=loss")
    if rl.kl_clamp is not None and (rl.kl_clamp != 10.0 or rl.kl_estimator != "k3"):
        mistakes.add(f"verl clamps k3 at 10 and nothing else; leave out rl.kl_clamp={rl.kl_clamp:g}")
    if isinstance(algorithm.settings, CriticSettings):
        if algorithm.name != "ppo":
            mistakes.add(f"verl trains no critic for {algorithm.name}; take rl.algorithm=ppo")
        elif not rl.algorithm_settings.get("whiten", True):
            mistakes.add("verl always whitens PPO's advantages; leave out rl.algorithm_settings.whiten=false")
        _check_learner(rl.critic, "rl.critic", mistakes)
    _check_learner(rl.policy, "rl.policy", mistakes)
    _check_parts(recipe, mistakes)
    for name in recipe.track:
        if name not in TRACKERS:
            mistakes.add(f"verl does not know the tracker {name!r} of `track`; it knows {', '.join(sorted(TRACKERS))}")
    mistakes.raise_all()


def train(task: LoopTask, say: Callable[[str], None]) -> Path:
    """Write the task's files and run verl; returns the folder of its last weights."""
    from coseek.pipelines.verl.launch import train_in_verl  # torch

    return train_in_verl(task, say)


def _check_learner(learner: LearnerSettings, prefix: str, mistakes: ErrorList) -> None:
    optimizer = learner.optimizer
    if optimizer.algorithm != "adamw":
        mistakes.add(f"verl has no {prefix}.optimizer.algorithm={optimizer.algorithm}; set it to adamw")
    if optimizer.weight_decay > 0.0 and not optimizer.decay_vectors:
        mistakes.add(f"verl decays vectors, too; set {prefix}.optimizer.decay_vectors=true, or weight_decay=0")
    if optimizer.max_grad_norm == 0.0:
        mistakes.add(f"verl always clips gradients; set {prefix}.optimizer.max_grad_norm above 0")
    if optimizer.lr_scheduler_type == "linear" or (
        optimizer.lr_scheduler_type == "cosine" and optimizer.decay_from > 0.0
    ):
        mistakes.add(
            f"verl's only decay is a cosine from the warm-up on; set {prefix}.optimizer.lr_scheduler_type=constant, or "
            f"cosine with {prefix}.optimizer.decay_from=0"
        )
    if learner.lora is not None:
        mistakes.add(f"coseek takes no LoRA adapter back from verl; set {prefix}.lora=null")
    if learner.micro_batch_gib is not None:
        mistakes.add(f"verl needs {prefix}.micro_batch_tokens; leave out {prefix}.micro_batch_gib")


def _check_parts(recipe: AgentRecipe, mistakes: ErrorList) -> None:
    """Refuse models that verl's workers cannot share: the workers are processes without a GPU on several machines."""
    needs = make_reward(recipe.reward).needs
    if "baseline" in needs:
        mistakes.add("verl's workers know no naive-RAG baselines, which the reward needs; take one without a gain")
    graders = {"generator": recipe.graders.generator, "judge": recipe.graders.judge}
    for role, grader in graders.items():
        if grader is not None and needs and not grader.model.startswith(("http://", "https://", "oracle")):
            mistakes.add(
                f"each of verl's workers would load graders.{role}.model={grader.model}; serve it, and give its URL"
            )


def verl_config(recipe: AgentRecipe, folder: Path, policy: Path, questions: int) -> JsonObject:
    """The configuration of a stage whose files are in `folder`, trained from the model folder `policy` on `questions`
    rows. It overrides the defaults of verl's `ppo_trainer`."""
    rl, verl = recipe.rl, verl_settings(recipe.rl)
    return {
        "hydra": {
            "searchpath": ["pkg://verl.trainer.config"],
            "run": {"dir": str(folder / "hydra")},
            "output_subdir": None,
        },
        "defaults": ["ppo_trainer", "_self_"],
        "data": {
            "train_files": str(folder / "train.parquet"),
            "val_files": str(folder / "dev.parquet"),
            "train_batch_size": rl.questions_per_step,
            "max_prompt_length": recipe.limits.max_tokens,
            "max_response_length": recipe.limits.max_tokens,
            "seed": rl.seed % 2**31,
            "dataloader_num_workers": 0,
        },
        "actor_rollout_ref": {
            "model": {"path": str(policy), "enable_gradient_checkpointing": rl.policy.gradient_checkpointing},
            "actor": _actor(recipe),
            "ref": {"fsdp_config": {**_precision(rl.policy), "param_offload": "reference" in rl.policy.offload}},
            "rollout": _rollout(recipe, folder),
        },
        **({"critic": _critic(recipe, policy)} if open_algorithm(rl).needs_critic else {}),
        "algorithm": _algorithm(recipe),
        "reward": {"num_workers": 1},
        "trainer": {
            "project_name": "coseek",
            "experiment_name": folder.parent.name,
            "logger": ["console", "file", *recipe.track],
            "nnodes": verl.nodes,
            "n_gpus_per_node": verl.gpus,
            "total_training_steps": rl.steps,
            "total_epochs": -(-rl.steps // (questions // rl.questions_per_step)),  # incomplete batches are dropped
            "save_freq": rl.checkpoint_every,
            "test_freq": rl.evaluate_every or rl.steps,
            "val_before_train": False,
            "default_local_dir": str(folder / "checkpoints"),
            "max_actor_ckpt_to_keep": 2,
            "max_critic_ckpt_to_keep": 2,
            "checkpoint_callback_class": HOOKS,
        },
    }


def _actor(recipe: AgentRecipe) -> JsonObject:
    rl = recipe.rl
    return {
        **_learner(recipe, rl.policy),
        "clip_ratio": rl.clip_ratio_low,
        "clip_ratio_low": rl.clip_ratio_low,
        "clip_ratio_high": rl.clip_ratio_high,
        "clip_ratio_c": NEVER,
        "loss_agg_mode": rl.loss_agg_mode,
        "loss_scale_factor": rl.loss_scale_factor if rl.loss_agg_mode == "seq-mean-token-sum-norm" else None,
        "entropy_coeff": rl.entropy_coef,
        "calculate_entropy": rl.measure_entropy,
        "use_kl_loss": rl.kl_coef > 0.0 and rl.kl_location == "loss",
        "kl_loss_coef": rl.kl_coef,
        "kl_loss_type": KL[rl.kl_estimator],
        "checkpoint": {
            "save_contents": ["model", "optimizer", "extra", "hf_model"],
            "load_contents": ["model", "optimizer", "extra"],
        },
        "fsdp_config": {**_precision(rl.policy), **_offload(rl.policy), "seed": rl.seed % 2**31},
    }


def _critic(recipe: AgentRecipe, policy: Path) -> JsonObject:
    rl = recipe.rl
    clip = open_algorithm(rl).value_clip
    return {
        **_learner(recipe, rl.critic),
        "model": {"path": str(policy), "enable_gradient_checkpointing": rl.critic.gradient_checkpointing},
        "cliprange_value": NEVER if clip is None else clip,
        "fsdp": {**_precision(rl.critic), **_offload(rl.critic), "seed": rl.seed % 2**31},
    }


def _learner(recipe: AgentRecipe, learner: LearnerSettings) -> JsonObject:
    """Settings of actor and critic. A micro-batch must hold at least one episode, the longest row."""
    rl, optimizer = recipe.rl, learner.optimizer
    return {
        "strategy": "fsdp2" if learner.strategy == "fsdp2" else "fsdp",
        "ppo_mini_batch_size": rl.questions_per_step // rl.num_minibatches,
        "ppo_epochs": rl.epochs,
        "shuffle": True,
        "data_loader_seed": rl.seed % 2**31,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": max(learner.micro_batch_tokens, recipe.limits.max_tokens),
        "grad_clip": optimizer.max_grad_norm,
        "optim": {
            "lr": optimizer.lr,
            "betas": [*optimizer.betas],
            "weight_decay": optimizer.weight_decay,
            "clip_grad": optimizer.max_grad_norm,
            "lr_warmup_steps": -(-optimizer.warmup_of(rl.total_updates) // (rl.epochs * rl.num_minibatches)),  # steps
            "lr_scheduler_type": optimizer.lr_scheduler_type,
            "min_lr_ratio": optimizer.min_lr_ratio,
            "override_optimizer_config": {"eps": optimizer.eps},
        },
    }


def _offload(learner: LearnerSettings) -> JsonObject:
    weights = "weights" in learner.offload
    return {"param_offload": weights, "optimizer_offload": weights or "moments" in learner.offload}


def _precision(learner: LearnerSettings) -> JsonObject:
    """Weights in float32; the passes in the learner's precision."""
    passes = "fp32" if learner.precision == "float32" else "bf16"
    return {
        "model_dtype": "fp32",
        "mixed_precision": {"param_dtype": passes, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }


def _rollout(recipe: AgentRecipe, folder: Path) -> JsonObject:
    rl, verl = recipe.rl, verl_settings(recipe.rl)
    return {
        "name": verl.sampler,
        "n": rl.group_size,
        "temperature": rl.temperature,
        "top_p": rl.top_p,
        "seed": rl.seed % 2**31,
        "dtype": "float32" if recipe.precision == "float32" else "bfloat16",
        "max_model_len": recipe.limits.max_tokens,
        "tensor_model_parallel_size": verl.tensor_parallel,
        "gpu_memory_utilization": verl.gpu_memory,
        "calculate_log_probs": True,
        "val_kwargs": {"temperature": 0.0, "do_sample": False, "n": 1},
        "agent": {
            "num_workers": verl.workers,
            "default_agent_loop": AGENT,
            "agent_loop_config_path": str(folder / "agent_loops.yaml"),
        },
    }


def _algorithm(recipe: AgentRecipe) -> JsonObject:
    rl, algorithm = recipe.rl, open_algorithm(recipe.rl)
    cap = rl.rollout_is_threshold
    correction: JsonObject = {"bypass_mode": rl.old_logprobs == "rollout", "rollout_is": None}
    if rl.rollout_is != "off":
        bounds = cap if rl.rollout_is == "truncate" else f"{1.0 / cap}_{cap}"
        correction |= {"rollout_is": "token", "rollout_is_threshold": bounds}
    chosen: JsonObject = {"adv_estimator": AGENT}
    if algorithm.needs_critic:
        ppo = algorithm.settings.model_dump()
        chosen = {"adv_estimator": "gae", "gamma": ppo["gamma"], "lam": ppo["lam"]}
    return {
        **chosen,
        "use_kl_in_reward": rl.kl_coef > 0.0 and rl.kl_location == "reward",
        "kl_penalty": KL[rl.kl_estimator],
        "kl_ctrl": {"type": "fixed", "kl_coef": rl.kl_coef},
        "rollout_correction": correction,
    }
