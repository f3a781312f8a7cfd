"""What `test_placement.py` runs in a process with an accelerator: everything that opens a model.

Prints, for each by name, the kinds of devices on which modules were run, the operations that met tensors of two
devices, and what it failed with.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.accelerator import DEVICE, NAME, Module
from tests.models.networks import converse, network
from tests.models.tiny_policy import SMALL, TAGS, TEXTS, tiny_policy
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.echo import QUESTIONS, reward, sampling
from tests.training.test_workers import ALGORITHMS, settings_for
from tests.training.tiny import tiny_model
from tests.training.tiny_labels import write_labels

from coseek.cli.commands.doctor import placement
from coseek.cli.main import main
from coseek.core.errors import SettingError
from coseek.core.progress import NoProgress
from coseek.hardware.device import device_of
from coseek.hardware.placement import Use, described
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.laptop import make_policy
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.training.learner.policy import Policy
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl

ran_on: set[str] = set()
"""Kinds of devices of the layers that have run."""
SHORT = ("limits.max_turns=1", "limits.max_turn_tokens=8", "limits.max_observation_tokens=64", "limits.max_tokens=1024")


def noted(layer: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A layer of torch that writes down where its weights are: modules call it, and so do engines without modules."""

    def run(given: torch.Tensor, weight: torch.Tensor, *more: object, **named: object) -> torch.Tensor:
        ran_on.add(weight.device.type)
        return layer(given, weight, *more, **named)

    return run


def typed(*words: object) -> None:
    """A command that must succeed."""
    code = main([str(word) for word in words])
    assert code == 0, f"{words} ended with {code}"


class Material:
    """Small real things in a folder, all made on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = tiny_policy(folder / "policy")
        self.reader = folder / "reader"
        make_policy(SMALL.model_copy(update={"max_positions": 8192}), TEXTS, TAGS, self.reader, 3)
        self.encoder = make_encoder(folder / "given" / "encoder")
        write_labels(folder / "given" / "labels", count=12)
        self.world, self.index, self.run = folder / "world", folder / "bm25", folder / "run"
        make_world(WorldSettings(size="tiny", train=6, dev=4, test=4)).save(self.world)
        typed("index", self.world, "--retriever", "bm25", "--out", self.index)
        typed("run", self.world, "--split", "test", "--agent", "rules", "--retriever", self.index, "--out", self.run)

    def out(self, name: str) -> Path:
        return self.folder / "out" / name


def searched(retriever: Retriever) -> None:
    assert retriever.search(["who founded it", "where"], 3)


def an_agent_folder_runs(given: Material) -> None:
    given_to = ("--retriever", given.index, "--out", given.out("run"), *SHORT)
    typed("run", given.world, "--split", "dev", "--agent", given.policy, *given_to)


def a_generator_and_a_judge_score(given: Material) -> None:
    typed("score", given.run, "--answer-with", given.policy, "--judge", given.policy)


def a_scorer_labels(given: Material) -> None:
    few = ("--count", 1, "max_tokens=8", "max_words=3")
    words = ("label", given.run, "--method", "agentic-r", "--scorer", given.reader, "--out", given.out("scored"), *few)
    main([str(word) for word in words])  # what it writes means nothing, so no turn has a label


def an_agent_and_a_likelihood_label(given: Material) -> None:
    given_to = ("--method", "replug", "--likelihood", given.policy, "--out", given.out("weighed"), "candidates=3")
    typed("label", given.run, *given_to)


def an_encoder_indexes_and_searches(given: Material) -> None:
    typed("index", given.world, "--retriever", "dense", "--encoder", given.encoder, "--out", given.out("dense"))
    typed("search", given.out("dense"), "who founded it")


def a_cross_encoder_reranks(given: Material) -> None:
    from tests.retrieval.test_rerank import make_cross_encoder

    folder = make_cross_encoder(given.out("cross-encoder"))
    searched(open_retriever({"retriever": "rerank", "over": str(given.index), "model": str(folder), "max_tokens": 48}))


def an_agent_is_trained_and_measured(given: Material) -> None:
    from tests.pipelines.test_agent import TINY

    from coseek.pipelines.agent_recipe import load_recipe
    from coseek.pipelines.agent_results import train_and_measure

    less = (
        "data.unseen=null", "data.world={train: 12, dev: 4, test: 4}", "warm_start.sft={steps: 2, repeat_steps: 1}",
        "rl={steps: 1, questions_per_step: 2, evaluate_every: 0}", "table={questions: 2, dev_questions: 2}",
        "table={dev: false, sampled: false}",
        "limits={max_turns: 2, max_turn_tokens: 8, max_observation_tokens: 64}", "rl.algorithm=ppo", "rl.kl_coef=0.01",
    )  # fmt: skip
    train_and_measure(load_recipe("from-nothing", [*TINY, *less]), given.out("agent"), False, NoProgress())


def a_retriever_is_trained_and_measured(given: Material) -> None:
    from tests.training.retriever_run import train

    more = ("training.steps=2", "held_out.every=1", "held_out.keep=best")
    training = train(given.folder / "given", given.out("retriever"), *more)
    assert training.results() is not None


def a_sampler_writes_what_it_writes_on_the_cpu(given: Material) -> None:
    for name in ("lfm2", "llama"):
        written = []
        for device in ("cpu", DEVICE):
            model = network(name)
            torch.nn.Module.to(model, device)
            settings = SamplerSettings(max_rows=2, dtype="float32")
            written.append(converse(Sampler(model, ByteTokenizer(), ("\n",), settings), range(3), turns=2))
            ran_on.clear()
        ours, theirs = ([turn for key in sorted(rows) for turn in rows[key]] for rows in written)
        assert [turn.ids for turn in ours] == [turn.ids for turn in theirs]
        # A processor packs the matrices of a Llama, which rounds otherwise.
        gaps = [
            abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x.logprobs, y.logprobs, strict=True)
        ]
        assert max(gaps) < (1e-4 if name == "llama" else 1e-12)
    ran_on.add(model.device.type)


def an_update_is_that_of_the_cpu(given: Material) -> None:
    """Advantages, losses, KL, critic, adapters and optimizer."""
    for algorithm in ALGORITHMS:
        settings, weights = settings_for(algorithm, "ddp").model_copy(update={"steps": 1, "group_size": 3}), []
        for device in ("cpu", DEVICE):
            ran_on.clear()
            model = tiny_model()
            torch.nn.Module.to(model, device)
            policy = Policy(model, settings.policy, settings.total_updates)
            backend, out = LocalBackend(policy, settings), given.out(f"{algorithm}-{device}".replace(":", "-"))
            train_rl(backend, QUESTIONS[:3], sampling(policy), reward, settings, out)
            weights.append({name: weight.cpu() for name, weight in model.state_dict().items()})
        for name, weight in weights[0].items():
            assert torch.allclose(weight, weights[1][name], atol=1e-5), (algorithm, name)


def a_process_that_sees_eight_trains_on_one(given: Material) -> None:
    from tests.training.retriever_run import recipe_of

    from coseek.hardware.device import idle_devices
    from coseek.training.encoder.loop import arguments

    recipe = recipe_of(given.folder / "given")
    assert idle_devices(recipe.torch_device()) == ""
    Module.count, torch.cuda.device_count = 8, lambda: 8  # the library below counts GPUs
    try:
        args = arguments(given.out("eight"), recipe, 2, evaluates=False)
        assert (args.n_gpu, args.device) == (1, DEVICE), (args.n_gpu, args.device)
        assert "training on accel:0, one of 8 devices; start it with `torchrun" in idle_devices(args.device)
        ran_on.add(args.device.type)
    finally:
        Module.count = 1


def a_worker_has_the_device_of_its_rank_and_no_other(given: Material) -> None:
    Module.count, os.environ["LOCAL_RANK"] = 2, "1"
    try:
        assert device_of() == device_of(NAME) == torch.device(NAME, 1)
        assert device_of(f"{NAME}:0") == DEVICE and device_of("cpu").type == "cpu"
        os.environ["LOCAL_RANK"] = "2"
        with pytest.raises(SettingError, match="worker 2 of this machine: torch sees 2 of accel here; start fewer"):
            device_of()
        with pytest.raises(SettingError, match="device 'cuda': torch sees 2 of accel here; take device=cpu, or auto"):
            device_of("cuda")
    finally:
        Module.count = 1
        del os.environ["LOCAL_RANK"]
    ran_on.add(device_of().type)


def a_device_that_is_named_is_taken(given: Material) -> None:
    """All but this one: on the CPU, by name."""
    typed("ask", "who?", "--agent", given.policy, "--retriever", given.index, "--device", "cpu", *SHORT)
    assert ran_on == {"cpu"}, ran_on
    ran_on.clear()
    ran_on.add(device_of().type)


def the_doctor_says_where(given: Material) -> None:
    assert placement() == "models open on accel:0 (torch sees 1 of accel), with sdpa attention"
    assert str(described(Use.SAMPLING)[1]) == "accel:0 multiplies bfloat16 natively"
    ran_on.add(device_of().type)


CASES: dict[str, Callable[[Material], None]] = {
    name: case
    for name, case in list(globals().items())
    if name.startswith(("a_", "an_", "the_")) and callable(case) and getattr(case, "__module__", "") == __name__
}
WHOLE = an_agent_is_trained_and_measured
"""As slow as all others together, so it has a process of its own."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(
        DEVICE
    )  # which a library below looks for no other accelerator than GPUs
    F.linear, F.embedding = noted(F.linear), noted(F.embedding)
    wanted = [name for name in CASES if (name == WHOLE.__name__) is (sys.argv[2] == "whole")]
    material = Material(Path(sys.argv[1]))
    results = {}
    for name in wanted:
        ran_on.clear()
        Module.mixed.clear()
        failure = ""
        try:
            CASES[name](material)
        except BaseException:  # noqa: BLE001 (any failure is the result of its case alone)
            failure = traceback.format_exc()
        results[name] = {"ran_on": sorted(ran_on), "mixed": Module.mixed[:5], "failure": failure}
    print("\n" + json.dumps(results))
