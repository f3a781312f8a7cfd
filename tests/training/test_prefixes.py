"""Fears about rows that share what they begin with: another gradient than of the rows apart, a network that cannot."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import VOCABULARY, agent, environment, seeded, tiny_model, trajectory
from transformers import AutoConfig, LlamaForCausalLM, MistralForCausalLM, PretrainedConfig, PreTrainedModel

from coseek.core.errors import SettingError
from coseek.data.trajectory import Trajectory
from coseek.training.learner.batch import make_batch
from coseek.training.learner.logprobs import Entropy
from coseek.training.learner.policy import Policy
from coseek.training.learner.prefixes import PrefixTree, tree_micro_batches
from coseek.training.learner.settings import LearnerSettings


def network(name: str = "llama") -> PreTrainedModel:
    config: PretrainedConfig = AutoConfig.for_model(
        name, vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.3,
    )  # fmt: skip
    return seeded({"llama": LlamaForCausalLM, "mistral": MistralForCausalLM}[name], config, 1)


def forks(rng: random.Random) -> list[Trajectory]:
    """Two questions with one instruction, four runs each, which fork at different turns."""

    def ids(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    instruction, runs = ids(5), []
    for question in range(2):
        prompt, turn, found = environment(*instruction, *ids(3)), agent(*ids(4)), environment(*ids(6))
        for _ in range(2):
            runs.append(trajectory(prompt, turn, found, agent(*ids(3)), question=str(question)))
            runs.append(
                trajectory(prompt, agent(*ids(2)), environment(*ids(2)), agent(*ids(5)), question=str(question))
            )
    return runs


@pytest.mark.parametrize("entropy", ["off", "detached", "with_grad"])
@pytest.mark.parametrize("tokens", [24, 1000])
def test_shared_rows_have_the_outputs_and_gradients_of_the_rows_apart(entropy: Entropy, tokens: int) -> None:
    batch = make_batch(forks(random.Random(0)))
    weights_BT = torch.rand(batch.ids_BT.shape, generator=torch.Generator().manual_seed(0))
    outputs, gradients = [], []
    for shares in (False, True):
        learner = LearnerSettings(share_prefixes=shares, micro_batch_tokens=tokens)
        policy = Policy(network(), learner, 1, temperature=0.7)
        target_mask_BT = batch.agent_BT.clone()
        target_mask_BT[3] = False  # a row that is left out of the loss
        outputs.append(policy.forward(batch, target_mask_BT))
        policy.forward_backward(
            batch, target_mask_BT, lambda out, rows: (out * weights_BT[rows, : out.shape[-1]]).sum(), entropy
        )
        gradients.append([weight.grad for weight in policy.model.parameters()])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-5)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_a_tree_holds_every_beginning_once_and_every_row_is_a_path(rows: list[list[int]], most: int) -> None:
    ids_BT = torch.tensor([row + [0] * (9 - len(row)) for row in rows])
    ends_B = torch.tensor([len(row) for row in rows])
    tree = PrefixTree.of(ids_BT, ends_B)
    paths = [path[: len(row)] for row, path in zip(rows, tree.nodes_BT.tolist(), strict=True)]
    beginnings = {tuple(row[: at + 1]) for row in rows for at in range(len(row))}
    assert {place for path in paths for place in path} == set(range(len(beginnings)))
    for row, path in zip(rows, paths, strict=True):
        for at, place in enumerate(path):
            assert int(tree.nodes_BT.flatten()[tree.tokens_U[place]]) == place
            assert int(tree.ids_1U[0, place]) == row[at] and int(tree.positions_1U[0, place]) == at
    parts = [part.tolist() for part in tree_micro_batches(ids_BT, ends_B, torch.arange(len(rows)), most)]
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    for part in parts:
        held = {tuple(rows[row][: at + 1]) for row in part for at in range(len(rows[row]))}
        assert len(part) == 1 or len(held) <= most


def test_a_network_whose_layers_mix_neighbours_is_refused() -> None:
    with pytest.raises(SettingError, match="share_prefixes needs a network of full attention"):
        Policy(tiny_model(), LearnerSettings(share_prefixes=True), 1)
    with pytest.raises(SettingError, match="share_prefixes needs a network of full attention"):
        Policy(network("mistral"), LearnerSettings(share_prefixes=True), 1)
