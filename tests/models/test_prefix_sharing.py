"""Fears about sharing: what is read once must be what every row would have read, and nothing may be read in vain."""

import random

import pytest
from hypothesis import given, strategies as st
from tests.models.networks import NETWORKS, network, random_ids, request
from transformers import PreTrainedModel

from coseek.models.engine import MIN_SHARED, PromptPiece, plan_prefix_sharing
from coseek.models.model import Turn, TurnEnd
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def sampler(model: PreTrainedModel, **settings: object) -> Sampler:
    return Sampler(model, TOKENIZER, (), SamplerSettings.model_validate(settings))


def held(rows: list[PromptPiece], open_rows: list[PromptPiece]) -> tuple[dict[int, tuple[int, ...]], int]:
    """What every slot holds in the end when the plan is carried out, and how many tokens were read for it."""
    rounds, left = plan_prefix_sharing(rows, open_rows)
    slots: dict[int, tuple[int, ...]] = {slot: () for slot, _ in rows} | dict(open_rows)
    read = 0
    for reading in rounds:
        assert reading.copies
        for slot, ids in reading.pieces:
            slots[slot] += ids
            read += len(ids)
        for source, target, length in reading.copies:
            assert len(slots[source]) >= length
            slots[target] = slots[source][:length]
    for slot, ids in left.items():
        slots[slot] += ids
        read += len(ids)
    return slots, read


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=9), st.integers(0, 3), st.integers(0, 3))
def test_every_row_ends_up_with_its_own_tokens(words: list[list[int]], seed: int, open_count: int) -> None:
    # Each word is long enough to be shared, so rows meet and part wherever the words do.
    prompts = [tuple(token for word in row for token in [word] * (MIN_SHARED - 1 + seed)) for row in words]
    rows = list(enumerate(prompts))
    slots, read = held(rows[open_count:], rows[:open_count])
    assert slots == dict(rows)
    assert read <= sum(map(len, prompts[open_count:]))


def test_a_common_beginning_is_read_once_and_each_questions_own_part_once_a_question() -> None:
    rng = random.Random(0)
    front = tuple(random_ids(rng, 100, 100))
    prompts = [(*front, 200 + number, *random_ids(rng, 60, 60)) for number in range(3)]
    rows = [(slot, prompts[slot % 3]) for slot in range(24)]
    _, read = held(rows, [])
    assert read == 100 + 3 * 61
    _, read = held(rows[4:], rows[:1])  # the first is open already
    assert read == 2 * 61


# --- in the sampler

FRONT = random_ids(random.Random(5), 50, 50)


def prompt_of(key: int) -> list[int]:
    """Four rows a question; the questions differ after a common beginning, and some are that beginning alone."""
    group = key // 4
    return FRONT + random_ids(random.Random(f"q{group}"), 45, 60) if group else FRONT


def played(model: Sampler, keys: list[int]) -> dict[int, list[Turn]]:
    """Two turns of each row."""
    turns_of: dict[int, list[Turn]] = {key: [] for key in keys}
    for key in keys:
        model.start(request(key, prompt_of(key), max_tokens=3 + key % 3))
    while turns := model.step():
        for turn in turns:
            turns_of[turn.key].append(turn)
            if len(turns_of[turn.key]) == 2:
                model.close(turn.key)
            else:
                model.extend(request(turn.key, random_ids(random.Random(f"e{turn.key}"), 1, 9), max_tokens=4))
    return turns_of


def ids_of(turns_of: dict[int, list[Turn]]) -> dict[int, list[tuple[int, ...]]]:
    return {key: [turn.ids for turn in turns] for key, turns in turns_of.items()}


@pytest.mark.medium
@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_whose_prompt_was_read_in_another_is_the_row_that_read_it_itself(name: str) -> None:
    model, keys = network(name), list(range(12))
    shared, alone = sampler(model), sampler(model, share=False)
    shared_turns, truth = played(shared, keys), played(alone, keys)
    assert ids_of(shared_turns) == ids_of(truth)
    for key in keys:
        for mine, own in zip(shared_turns[key], truth[key], strict=True):
            assert mine.logprobs == pytest.approx(own.logprobs, abs=1e-4)
    assert alone.tokens_copied == 0
    assert shared.tokens_read + shared.tokens_copied == alone.tokens_read
    assert shared.tokens_copied > 0.5 * alone.tokens_read


@pytest.mark.parametrize("name", ["lfm2", "llama"])
def test_a_row_that_joins_open_ones_reads_nothing_that_they_began_with(name: str) -> None:
    model, keys = network(name), list(range(12))
    few, truth = sampler(model, max_rows=3), sampler(model, share=False)
    assert ids_of(played(few, keys)) == ids_of(played(truth, keys))
    # A layer with a state knows the end of a row's past alone.
    assert (few.tokens_copied > 0.4 * truth.tokens_read) == (name == "llama")


def read_whole(model: PreTrainedModel, key: int, ids: list[int], max_tokens: int) -> Turn:
    """The turn of a row that reads its whole past itself."""
    fresh = sampler(model)
    fresh.start(request(key, ids, max_tokens))
    (turn,) = fresh.step()
    return turn


@pytest.mark.parametrize("name", ["lfm2", "llama"])
def test_a_fork_goes_on_as_a_row_that_read_the_whole_past_itself(name: str) -> None:
    model = network(name)
    used = sampler(model, max_rows=8)
    used.start(request(0, prompt_of(8), max_tokens=5))
    (trunk,) = used.step()
    read = used.tokens_read
    for key in range(1, 5):
        used.fork(0, request(key, FRONT[:3], max_tokens=6))
    branches = {turn.key: turn for _ in range(4) for turn in used.step()}
    assert used.tokens_read - read == 4 * 3  # of its past a fork reads what was pending, as a row that is extended does
    assert len({turn.ids for turn in branches.values()}) == 4
    whole = [*prompt_of(8), *trunk.ids, *FRONT[:3]]
    for key, branch in branches.items():
        truth = read_whole(model, key, whole, 6)
        assert branch.ids == truth.ids
        assert branch.logprobs == pytest.approx(truth.logprobs, abs=1e-4)
    used.extend(request(0, FRONT[:3], max_tokens=6, seed=1))  # the trunk is as it was
    assert used.step()[0].ids == branches[1].ids


@pytest.mark.parametrize("name", ["lfm2", "llama"])
def test_a_row_that_is_only_to_be_read_stops_at_once_and_can_be_forked_and_read_on(name: str) -> None:
    model = network(name)
    used = sampler(model, max_rows=8)
    used.start(request(9, FRONT[:5], max_tokens=3))  # somebody else, who writes meanwhile
    used.start(request(0, prompt_of(8), max_tokens=0))
    turn_of = {turn.key: turn for turn in used.step()}
    assert turn_of[0] == Turn(0, (), (), TurnEnd.LENGTH)
    used.fork(0, request(1, FRONT[:3], max_tokens=6))
    used.extend(request(0, FRONT[:4], max_tokens=0))
    turn_of |= {turn.key: turn for _ in range(4) for turn in used.step()}
    used.fork(0, request(2, FRONT[:3], max_tokens=6))
    turn_of |= {turn.key: turn for _ in range(4) for turn in used.step()}
    for key, ids in ((9, FRONT[:5]), (1, prompt_of(8) + FRONT[:3]), (2, prompt_of(8) + FRONT[:4] + FRONT[:3])):
        truth = read_whole(model, key, ids, 3 if key == 9 else 6)
        assert turn_of[key].ids == truth.ids
        assert turn_of[key].logprobs == pytest.approx(truth.logprobs, abs=1e-4)


@pytest.mark.parametrize("name", ["lfm2", "llama"])
def test_forks_that_are_opened_while_others_are_closed_keep_their_past(name: str) -> None:
    model = network(name)
    used = sampler(model, max_rows=32)
    for key in (0, 4):
        used.start(request(key, prompt_of(key), max_tokens=0))
    used.step()
    for key in range(10, 22):  # more rows than the cache has slots so far
        used.fork(4, request(key, FRONT[:3], max_tokens=5))
    used.close(0)  # its slot is taken by the last fork
    used.fork(4, request(30, FRONT[:3], max_tokens=5))
    used.close(4)
    turns = {turn.key: turn.ids for _ in range(4) for turn in used.step()}
    assert turns.keys() == {*range(10, 22), 30}
    for key, ids in turns.items():
        assert ids == read_whole(model, key, prompt_of(4) + FRONT[:3], 5).ids


def test_a_row_that_is_opened_where_another_was_shared_remembers_nothing_of_it() -> None:
    model = network("lfm2")
    used = sampler(model, max_rows=4)
    played(used, list(range(8, 12)))
    after = ids_of(played(used, [13]))
    assert after == ids_of(played(sampler(model), [13]))
