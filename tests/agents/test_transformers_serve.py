"""The client against a foreign server: `transformers serve` with a laptop policy, offline."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.agents.playing import QUESTION, Shelf
from tests.scripted import ScriptedModel

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.core.http import HttpSettings
from coseek.data.trajectory import Author, StopReason, Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model import Model
from coseek.models.pretrained import load_model, save_model
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = load_protocol("search-r1", "laptop")
TURNS = ("<think> who </think><search> Ada </search>", "<think> seen </think><answer> 1815 </answer>")
LIMITS = Limits(passages_per_search=1, max_turn_tokens=60)
PATIENCE = HttpSettings(attempts=1, timeout_s=50)
SMALL = LaptopSettings(hidden=64, feed_forward=96, vocabulary=400)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True)
class Served:
    """A server, the folder of its policy, and the run that the policy has memorised."""

    url: str
    folder: Path
    known: Trajectory

    @property
    def tokenizer(self) -> HfTokenizer:
        return HfTokenizer.load(self.folder)


def played(model: Model) -> Trajectory:
    return rollout(Agent(PROTOCOL, model), Shelf(), [QUESTION], [0], LIMITS)[0]


def turns(run: Trajectory) -> list[tuple[str, str]]:
    """The text before each turn, and the turn."""
    texts = [segment.text for segment in run.segments]
    places = [index for index, segment in enumerate(run.segments) if segment.author is Author.AGENT]
    return [("".join(texts[:index]), texts[index]) for index in places]


def learn_by_heart(run: Trajectory, folder: Path) -> None:
    """Train a policy to write only this run. Its tags are plain text, since the server drops special tokens."""
    make_policy(SMALL, [segment.text for segment in run.segments], [], folder, seed=0)
    network, tokenizer = load_model(folder, FLOAT32), HfTokenizer.load(folder)
    rows = [torch.tensor([tokenizer.encode(before) + tokenizer.encode(turn)]) for before, turn in turns(run)]
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    network.train()
    for _ in range(80):
        losses = [network(input_ids=ids_1T, labels=ids_1T).loss for ids_1T in rows]
        if sum(losses).item() < 0.02:
            break
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    save_model(network, tokenizer, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    (root / "hub").mkdir()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.agents.transformers_server"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=environment
    ) as server:
        try:
            # While the server starts, which takes longer.
            known = played(ScriptedModel({QUESTION.id: TURNS}, ByteTokenizer(PROTOCOL.grammar.special_tokens)))
            learn_by_heart(known, root / "policy")
            assert server.stdout is not None
            yield Served(server.stdout.readline().strip(), root / "policy", known)
        finally:
            server.kill()


def test_a_rollout_over_another_server_is_the_run_that_its_policy_has_learnt(served: Served) -> None:
    settings = RemoteModelSettings(dialect="completions", model=str(served.folder), patience=PATIENCE)
    grammar = PROTOCOL.grammar
    model = open_remote(served.url, settings, served.tokenizer, grammar.stops, 0.0)
    model.lost_stop = grammar.lost_stop
    run = played(model)
    model.calls.close()
    assert (run.stop, run.answer, run.stop_detail) == (StopReason.ANSWERED, "1815", "")
    assert turns(run) == turns(served.known)
    assert run.searches == served.known.searches
    assert not run.exact and "text only" in model.inexact
    assert model.usage.answers == 2 and model.usage.written_tokens > 10
