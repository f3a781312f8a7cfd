"""What one of several workers runs in `test_shared_run.py`."""

import os
import signal
from pathlib import Path

from tests.pipelines.test_agent import TINY

from coseek.agents.drivers import Agent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.data.run import Run
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.models.pretrained import load_model
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.agent_run import share_run

LIMITS = {"max_turn_tokens": 4000, "max_observation_tokens": 8000, "max_tokens": 64000}


def expert(training: AgentTraining) -> Agent:
    protocol = training.protocol
    scripted = ExpertAgent(ExpertSettings(bad_query=0.2, blind_guess=0.2))
    return Agent(protocol, ScriptedAgentModel(scripted, protocol, ByteTokenizer(protocol.grammar.special_tokens)))


def policy(training: AgentTraining) -> Agent:
    model = load_model(training.policy_folder("start"), training.recipe.in_float32())
    limits = training.recipe.limits
    return Agent(training.protocol, training.sampler(model, training.protocol, 1.0, limits))


def shared(mode: str, folder: Path) -> Run:
    """The run of 20 questions, each three times, by these workers. `die` kills all but the first after nine rows."""
    training = AgentTraining(load_recipe("from-nothing", TINY), folder)
    if training.workers.is_main:
        training.prepare_data()
        training.make_policy()
    training.workers.barrier()

    def tell(ended: int, _: int) -> None:
        if mode == "die" and not training.workers.is_main and ended >= 9:
            os.kill(os.getpid(), signal.SIGKILL)

    return share_run(
        training.workers,
        folder / "run",
        {"mode": "shared"},
        policy(training) if mode == "policy" else expert(training),
        training.retrievers["data"],
        training.questions("dev"),
        training.recipe.limits if mode == "policy" else training.recipe.limits.model_copy(update=LIMITS),
        seed=5,
        samples=3,
        concurrency=7,
        tell=tell,
    )
