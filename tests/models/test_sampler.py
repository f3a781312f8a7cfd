"""Fears about sampling: what a row says must be its own, what is trained on must be what was said."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tests.models.networks import NETWORKS, SHAPE, VOCABULARY, converse, logits_of, network, request, transcript
from transformers import AutoConfig, AutoModelForCausalLM, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.models.model import Turn, TurnEnd
from coseek.models.model_folder import shape_of_config
from coseek.models.sampler import Sampler, SamplerSettings, sample_tokens, uniforms
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer, StopStrings, train_tokenizer

TOKENIZER = ByteTokenizer()


def sampler(model: PreTrainedModel, stops: Sequence[str] = (), **settings: object) -> Sampler:
    return Sampler(model, TOKENIZER, stops, SamplerSettings.model_validate(settings))


def ids(turns: dict[int, list[Turn]]) -> dict[int, list[tuple[int, ...]]]:
    return {key: [turn.ids for turn in written] for key, written in turns.items()}


def true_logprobs(
    model: PreTrainedModel, row: Sequence[int], places: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """What one plain forward pass over the whole row says of the tokens at these places."""
    logprobs = (logits_of(model, row) / temperature).log_softmax(dim=-1)
    return [float(logprobs[position - 1, row[position]]) for position in places]


def largest_gap(model: PreTrainedModel, turns: dict[int, list[Turn]], temperature: float = 1.0) -> float:
    gaps = []
    for key, written in turns.items():
        row, places = transcript(key, written)
        told = [value for turn in written for value in turn.logprobs]
        truth = true_logprobs(model, row, places, temperature)
        gaps += [abs(logprob - other) for logprob, other in zip(told, truth, strict=True)]
    return max(gaps)


@pytest.mark.medium
@pytest.mark.parametrize(("name", "temperature"), [*((name, 1.0) for name in NETWORKS), ("lfm2", 0.6)])
def test_log_probabilities_are_those_of_a_plain_forward_pass(name: str, temperature: float) -> None:
    model = network(name)
    turns = converse(sampler(model, max_rows=5, temperature=temperature), range(12))
    assert largest_gap(model, turns, temperature) < 1e-4


def test_greedy_rows_take_the_most_likely_token_and_say_its_log_probability_at_temperature_1() -> None:
    model = network("llama")
    turns = converse(sampler(model, temperature=0), range(6))
    assert largest_gap(model, turns) < 1e-4
    row, places = transcript(3, turns[3])
    best = logits_of(model, row).argmax(dim=-1)
    assert [row[position] for position in places] == [int(best[position - 1]) for position in places]
    assert not SamplerSettings(temperature=0.0).on_policy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "llama"])
def test_a_row_is_the_same_alone_and_in_any_batch_and_order(name: str) -> None:
    model = network(name)
    rows = list(range(10))
    together = ids(converse(sampler(model), rows))
    for settings in ({"max_rows": 3}, {"max_rows": 7, "patience": 0.0}, {"patience": 0.9}):
        shuffled = random.Random(str(settings)).sample(rows, k=len(rows))
        assert ids(converse(sampler(model, **settings), shuffled)) == together
    for row in (0, 9):
        assert ids(converse(sampler(model), [row])) == {row: together[row]}


def test_rows_with_the_same_prompt_and_other_seeds_differ() -> None:
    model = sampler(network("lfm2"))
    for key in range(8):
        model.start(request(key, [65, 66], max_tokens=12))
    written = {turn.ids for _ in range(8) for turn in model.step()}
    assert len(written) == 8


def test_sampling_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    converse(sampler(network("lfm2")), range(4))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.medium
@pytest.mark.parametrize(("name", "dtype"), [("lfm2", "float32"), ("lfm2", "bfloat16"), ("gpt2", "bfloat16")])
def test_the_sampler_writes_with_the_weights_that_training_left(name: str, dtype: str) -> None:
    model = network(name)
    used = sampler(model, dtype=dtype)
    before = ids(converse(used, range(4)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3)
    after = ids(converse(used, range(4)))
    assert after != before
    assert after == ids(converse(sampler(model, dtype=dtype), range(4)))


def test_a_model_in_training_mode_is_sampled_without_dropout_and_given_back_as_it_was() -> None:
    model = network("gpt2")
    model.train()
    turns = converse(sampler(model), range(4))
    assert model.training
    model.eval()
    assert largest_gap(model, turns) < 1e-4


def test_trained_weights_can_still_be_trained_after_sampling() -> None:
    model = network("lfm2")
    converse(sampler(model), range(2))
    converse(sampler(model, dtype="bfloat16"), range(2))
    ids_BT = torch.tensor([[1, 2, 3]])
    model.forward(input_ids=ids_BT, labels=ids_BT).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def turns_until_closed(model: Sampler, key: int, prompt: Sequence[int], max_tokens: int, seed: int) -> Turn:
    model.start(request(key, prompt, max_tokens, seed))
    (turn,) = model.step()
    model.close(key)
    return turn


def test_a_turn_ends_with_the_token_that_completes_a_stop_string() -> None:
    model = network("lfm2")
    free = turns_until_closed(sampler(model), 0, [65, 66], 200, seed=5)
    # The same row again, with two letters that it wrote as the stop string.
    first = next(end for end in range(8, 200) if all(32 <= ident < 127 for ident in free.ids[end - 2 : end]))
    text = bytes(free.ids[first - 2 : first]).decode()
    stopped = turns_until_closed(sampler(model, [text, "never written"]), 0, [65, 66], 200, seed=5)
    assert stopped.end is TurnEnd.STOP
    assert stopped.ids == free.ids[:first]
    assert stopped.logprobs == pytest.approx(free.logprobs[:first], abs=1e-5)


def biased(token: int) -> PreTrainedModel:
    """A network that writes nothing but one token."""
    model = network("lfm2")
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        weights = dict(model.named_parameters())
        weights["model.embed_tokens.weight"][:, 0] = 1.0
        weights["model.embed_tokens.weight"][token, 0] = 40.0
        weights["model.embedding_norm.weight"].fill_(1.0)
    return model


@pytest.mark.parametrize(
    ("token", "prompt", "max_tokens", "end", "written"),
    [
        (TOKENIZER.eos_id, [65], 9, TurnEnd.EOS, [TOKENIZER.eos_id]),
        (ord("!"), [65], 3, TurnEnd.STOP, [33, 33, 33]),  # a stop string wins over a spent budget
        (ord("!"), [33, 33, 33], 9, TurnEnd.STOP, [33, 33, 33]),  # the one in the prompt does not count
    ],
)
def test_a_turn_ends_at_the_end_of_text_or_its_own_stop_string(
    token: int, prompt: list[int], max_tokens: int, end: TurnEnd, written: list[int]
) -> None:
    turn = turns_until_closed(sampler(biased(token), ["!!!"]), 0, prompt, max_tokens, seed=1)
    assert (turn.end, [*turn.ids]) == (end, written)


def test_a_row_that_cannot_be_held_is_a_fault_and_its_neighbour_lives() -> None:
    model = sampler(network("lfm2"), max_tokens=20)
    model.start(request(0, [65] * 20))
    model.start(request(1, [65] * 18, max_tokens=9))
    turns = {turn.key: turn for _ in range(2) for turn in model.step()}
    assert turns[0].end is TurnEnd.FAULT
    assert "20" in turns[0].fault
    assert (turns[1].end, len(turns[1].ids)) == (TurnEnd.LENGTH, 2)


def test_an_output_that_is_no_number_is_a_fault_of_the_row() -> None:
    model = network("llama")  # its output layer is not its embedding
    with torch.no_grad():
        dict(model.named_parameters())["model.embed_tokens.weight"][200] = torch.nan
    broken = sampler(model)
    broken.start(request(0, [65, 200]))
    broken.start(request(1, [65, 66], max_tokens=3))
    turns = {turn.key: turn for _ in range(2) for turn in broken.step()}
    assert (turns[0].end, turns[0].ids) == (TurnEnd.FAULT, ())
    assert turns[1].end is TurnEnd.LENGTH


def test_a_closed_row_never_comes_back() -> None:
    model = sampler(network("lfm2"), max_rows=2)
    for key in range(4):
        model.start(request(key, [65], max_tokens=3))
    model.close(1)
    model.close(3)
    assert {turn.key for _ in range(4) for turn in model.step()} == {0, 2}
    model.close(0)
    model.close(2)
    assert model.step() == []


def test_a_row_that_is_closed_while_it_is_written_changes_no_other() -> None:
    model = network("lfm2")
    alone = ids(converse(sampler(model), [0, 1, 2, 3, 4]))
    disturbed = sampler(model, patience=0.0)
    disturbed.start(request(99, [70, 71, 72], max_tokens=200))
    disturbed.start(request(98, [70], max_tokens=1))
    assert [turn.key for turn in disturbed.step()] == [98]
    disturbed.close(99)
    disturbed.close(98)
    assert ids(converse(disturbed, [0, 1, 2, 3, 4])) == alone


@pytest.mark.medium
@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 20, "top_p": 0.7}])
def test_cut_distributions_draw_likely_tokens_only_and_are_not_for_training(settings: dict[str, float]) -> None:
    model = network("lfm2")
    chosen = SamplerSettings.model_validate(settings)
    assert not chosen.on_policy and SamplerSettings(temperature=0.6).on_policy
    turns = converse(Sampler(model, TOKENIZER, (), chosen), range(8))
    for key, written in turns.items():
        row, places = transcript(key, written)
        chances = logits_of(model, row).softmax(dim=-1)
        told = [value for turn in written for value in turn.logprobs]
        for position, logprob in zip(places, told, strict=True):
            truth, order = chances[position - 1].sort(descending=True)
            rank = int((order == row[position]).nonzero())
            count = min(settings.get("top_k", VOCABULARY), VOCABULARY)
            before = truth.cumsum(dim=0) - truth
            kept = (before < settings.get("top_p", 1.0)) & (torch.arange(VOCABULARY) < count)
            assert kept[rank]
            assert logprob == pytest.approx(float((truth[rank] / truth[kept].sum()).log()), abs=1e-4)


def test_a_layer_that_has_no_slots_is_refused_by_name() -> None:
    model = network("llama")
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(SettingError, match="linear_attention"):
        sampler(model)


@pytest.mark.parametrize(
    ("name", "special", "sentence"),
    [
        ("rwkv", {}, "RwkvForCausalLM keeps its past or counts positions itself"),
        ("bart", {"d_model": 32, "decoder_attention_heads": 2}, "BartForCausalLM keeps"),
        ("bloom", {}, "BloomForCausalLM keeps"),
        ("falcon", {"alibi": True}, "FalconForCausalLM keeps"),
        ("gpt_neo", {"num_layers": 2, "attention_types": [[["global", "local"], 1]]}, "of the kind 'local'"),
    ],
)
def test_a_network_that_would_write_nonsense_in_slots_is_refused(name: str, special: JsonObject, sentence: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SHAPE, **special}))
    with pytest.raises(SettingError, match=sentence):
        sampler(model)


def test_a_row_of_a_longrope_model_never_depends_on_how_long_its_neighbour_is() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 3.0, 5.0, 7.0]}
    limits = {"max_position_embeddings": 256, "original_max_position_embeddings": 32}
    config = Phi3Config(**{**SHAPE, **limits, "rope_scaling": {"type": "longrope", **factors}})  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Phi3ForCausalLM(config).eval()
    alone, beside = sampler(network), sampler(network)
    for model in (alone, beside):
        model.start(request(0, [65] * 8, max_tokens=60))
    beside.start(request(1, [66] * 40))
    turns = {turn.key: turn for _ in range(2) for turn in beside.step()}
    assert "limit is 32" in turns[1].fault
    assert alone.step() == [turns[0]] and len(turns[0].ids) == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gpt2"])
def test_a_cache_in_bytes_is_never_exceeded_and_changes_no_row(name: str) -> None:
    model = network(name)
    free = sampler(model, max_rows=12, max_tokens=64)
    if name == "gpt2":  # an architecture whose configuration uses other names
        with pytest.raises(DataError, match="leave out what needs it"):
            sampler(model, cache_gib=1.0)
        return
    row = shape_of_config(model.config.to_dict()).cache_bytes(4) * 64
    bound = sampler(model, max_rows=12, max_tokens=64, cache_gib=3.5 * row / 2**30)
    assert (free.max_rows, bound.max_rows) == (12, 3)
    assert ids(converse(bound, range(12))) == ids(converse(free, range(12)))
    cache = bound._engine.cache  # it never shrinks
    assert 0 < sum(tensor.nbytes for tensor in (*cache.keys.values(), *cache.values.values())) <= 3.5 * row


@pytest.mark.medium
@pytest.mark.parametrize(("name", "dtype"), [("lfm2", "float32"), ("deepseek_v3", "bfloat16")])
def test_a_sampler_that_was_released_holds_nothing_and_goes_on_as_before(name: str, dtype: str) -> None:
    model = network(name)
    sampling = sampler(model, max_rows=5, dtype=dtype)
    before = ids(converse(sampling, range(5)))
    sampling.release()
    cache = sampling._engine.cache
    assert not cache.keys and not cache.values and not cache.states
    assert all(weight.untyped_storage().nbytes() for weight in model.parameters())  # the module's own stay
    assert ids(converse(sampling, range(5))) == before


def test_two_samplers_of_one_engine_take_turns() -> None:
    model = network("llama")
    first = sampler(model, max_rows=4)
    second = Sampler(model, TOKENIZER, (), SamplerSettings(max_rows=6, temperature=0.0), first._engine)
    alone = ids(converse(sampler(model, max_rows=6, temperature=0.0), range(6)))
    converse(first, range(4))
    assert ids(converse(second, range(6))) == alone
    first.start(request(0, (2, 3)))
    with pytest.raises(ValueError, match="another sampler of this model has open rows"):
        second.start(request(1, (2, 3)))
    with pytest.raises(ValueError, match="rows are open"):
        second.release()
    first.close(0)
    second.release()


def test_a_row_that_is_placed_beside_others_finds_its_slot() -> None:
    """The engine had made no room yet for a row that took a slot behind one that waits."""
    model = network("lfm2")
    alone, beside = (Sampler(model, TOKENIZER, (), SamplerSettings(temperature=0.0)) for _ in range(2))
    beside.start(request(1, [40, 41], 2))
    beside.step()
    for sampling in (alone, beside):
        sampling.start(request(2, [50, 51], 4))
    assert beside.step()[0].ids == alone.step()[0].ids


# --- stop strings: one that spans tokens, or ends inside one, must be seen, at that token and no other


# Without special tokens the closings are written in pieces, and "></" is common enough to become one token.
TEXTS = ["<search> a</search><search> b</search><answer> c</answer>"] * 20
PIECES = HfTokenizer(train_tokenizer(["x></y>", "></", " a></b", ".</", "</s", "earch"] * 50, (), 300))
STOPS = ("</search>", "</answer>")


def first_stop(stops: StopStrings, ids: list[int]) -> int | None:
    """Where a sampler would halt, in tokens."""
    return next((end for end in range(1, len(ids) + 1) if stops.completed(ids[:end])), None)


def test_stops_that_end_in_part_of_a_character_are_seen() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("so。")
    assert first_stop(StopStrings(["。"], tokenizer, tokenizer.size), ids) == len(ids)


@given(text=st.lists(st.sampled_from(["</", "search", ">", "<", "></", "answer", " a", "/", "x"]), max_size=12))
def test_the_first_token_after_which_the_text_holds_a_stop_string_is_where_it_halts(text: list[str]) -> None:
    ids = PIECES.encode("".join(text))
    stops = StopStrings(STOPS, PIECES, PIECES.size)
    truth = (end for end in range(1, len(ids) + 1) if any(stop in PIECES.decode(ids[:end]) for stop in STOPS))
    assert first_stop(stops, ids) == next(truth, None)


# --- drawing: hidden correlations, a token that cannot be drawn, a batch that leaks into a row


def numbers(seeds: list[int], positions: list[int]) -> list[float]:
    return [float(number) for number in uniforms(np.array(seeds, np.uint64), np.array(positions, np.int64))]


def test_numbers_are_spread_evenly_over_seeds_and_over_positions() -> None:
    for seeds, positions in (([7] * 20_000, list(range(20_000))), (list(range(20_000)), [7] * 20_000)):
        drawn = np.array(numbers(seeds, positions))
        counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
        assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 44  # χ² with 19 degrees of freedom: p > .001
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.025


def test_seeds_that_follow_each_other_share_no_stretch() -> None:
    streams = [tuple(numbers([seed] * 50, list(range(50)))) for seed in range(50)]
    # Of 2,500 numbers among 2^23 a pair or two may coincide; shared stretches would lose dozens.
    assert len({number for stream in streams for number in stream}) > 2490


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), others=st.lists(st.integers(0, 2**64 - 1)))
def test_a_number_depends_on_its_seed_and_position_alone(seed: int, position: int, others: list[int]) -> None:
    (alone,) = numbers([seed], [position])
    assert 0 < alone < 1
    assert numbers([*others, seed], [3] * len(others) + [position])[-1] == alone


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
    uniform=st.sampled_from([2.0**-24, 0.1, 0.5, 0.9, 1 - 2.0**-24, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_what_is_drawn_is_where_the_cumulative_distribution_passes_the_number(
    logits: list[float], uniform: float, temperature: float
) -> None:
    drawn, logprob = sample_tokens(torch.tensor([logits]), torch.tensor([uniform]), temperature)
    chances = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(dim=-1)
    token = int(drawn)
    assert float(logprob) == pytest.approx(float(chances[token].log()), abs=1e-4)
    assert chances[:token].sum() <= uniform + 1e-5
    assert chances[: token + 1].sum() >= uniform - 1e-5


def test_a_token_of_no_chance_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, -1)
    drawn, _ = sample_tokens(logits, torch.tensor([2.0**-24, 0.4999, 0.5001, 1.0]), 1.0)
    assert drawn.tolist() == [1, 1, 3, 3]
