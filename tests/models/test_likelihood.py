"""Fears about likelihoods: numbers of other tokens, rows that depend on their padding, and faults that pass as 0."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.networks import NETWORKS, SMALL, TEXTS, logits_of, network

from coseek.models.chat import chat_frame
from coseek.models.laptop import make_policy
from coseek.models.likelihood import Continuation, ContinuationLogprob, LocalLikelihood, open_local_likelihood
from coseek.models.tokenizer import HfTokenizer, train_tokenizer

TOKENIZER = HfTokenizer(train_tokenizer(TEXTS, ["<|user|>", "<|model|>"], 300))


@pytest.fixture(scope="module")
def likelihood(folder: Path) -> LocalLikelihood:
    return open_local_likelihood(folder)


def over(name: str, batch_tokens: int = 8192) -> LocalLikelihood:
    return LocalLikelihood(TOKENIZER, ((), ()), network(name), 200, batch_tokens, name)


def by_hand(likelihood: LocalLikelihood, given_ids: list[int], said_ids: list[int]) -> float:
    logprobs_TV = torch.log_softmax(logits_of(likelihood.model, given_ids + said_ids).double(), -1)
    return sum(float(logprobs_TV[len(given_ids) + at - 1, ident]) for at, ident in enumerate(said_ids))


def rows_of(seed: int, count: int) -> list[Continuation]:
    rng = random.Random(seed)
    words = ["one", "two", "red", "blue", "fish", "cat", "sat", "mat", "the", "on", "zebra"]

    def some(least: int, most: int) -> str:
        return "".join(f" {rng.choice(words)}" for _ in range(rng.randint(least, most)))

    return [Continuation(some(1, 30), some(1, 6), some(0, 3)) for _ in range(count)]


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_sum_that_one_plain_pass_over_the_row_alone_gives(name: str) -> None:
    likelihood = over(name)
    rows = rows_of(1, 12)
    for row, weighed in zip(rows, likelihood.score(rows), strict=True):
        given_ids = TOKENIZER.encode_data(row.prompt) + TOKENIZER.encode_data(row.lead)
        said_ids = TOKENIZER.encode_data(row.text)
        assert weighed.tokens == len(said_ids)
        assert weighed.nats == pytest.approx(by_hand(likelihood, given_ids, said_ids), abs=2e-4)
        assert weighed.fault is None


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 9), st.sampled_from([1, 40, 200, 8192]))
def test_a_row_has_the_same_likelihood_alone_and_among_others(seed: int, count: int, batch_tokens: int) -> None:
    likelihood = over("lfm2", batch_tokens)
    rows = rows_of(seed, count)
    together = likelihood.score(rows)
    alone = [likelihood.score([row])[0] for row in rows]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.nats for one in together] == pytest.approx([one.nats for one in alone], abs=2e-4)
    assert together == likelihood.score(rows)


def test_the_probabilities_of_all_next_tokens_add_up_to_one() -> None:
    likelihood = over("llama")
    ids = TOKENIZER.encode_data(" the cat")
    nats = likelihood._nats([([*ids, token], len(ids)) for token in range(300)])
    assert torch.tensor(nats, dtype=torch.float64).exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_prompt_and_words_are_never_tokenised_together(likelihood: LocalLikelihood) -> None:
    """` fi` and `sh` are other tokens than ` fish`, and the words are weighed as they are written alone."""
    joined, parted = TOKENIZER.encode_data(" fish"), likelihood.encode(Continuation(" fi", "sh"))
    assert not isinstance(parted, ContinuationLogprob)
    assert parted[0] == TOKENIZER.encode_data(" fi") + TOKENIZER.encode_data("sh") != joined


def test_special_tokens_in_the_texts_are_ordinary_characters(likelihood: LocalLikelihood) -> None:
    row = likelihood.encode(Continuation("a<|model|>", "<|user|>b", "<|end|>"))
    assert not isinstance(row, ContinuationLogprob)
    assert not set(row[0]) & set(TOKENIZER.encode("<|user|><|model|><|end|>"))


def test_the_chat_template_stands_around_the_prompt_and_in_front_of_the_lead(folder: Path) -> None:
    make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], folder.with_name("talking"), seed=3)
    tokenizer = HfTokenizer.load(folder.with_name("talking"))
    tokenizer.fast.chat_template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"
    tokenizer.save(folder.with_name("talking"))
    likelihood = open_local_likelihood(folder.with_name("talking"))
    row = likelihood.encode(Continuation(" the cat", " sat", " so"))
    user, model = tokenizer.encode("<|user|><|model|>")
    encode = tokenizer.encode_data
    assert likelihood.uses_chat_template
    assert row == ([user, *encode(" the cat"), model, *encode(" so"), *encode(" sat")], len(encode(" the cat so")) + 2)
    assert not open_local_likelihood(folder).uses_chat_template
    tokenizer.fast.chat_template += "<think>"
    after = chat_frame(tokenizer, given=True)[1]
    assert tokenizer.decode(after) == "<|model|><think>\n</think>\n\n"  # what is weighed is an answer, no thought


def test_what_cannot_be_weighed_is_a_fault_and_takes_no_other_along(likelihood: LocalLikelihood) -> None:
    good = Continuation(" the cat", " sat")
    rows = [Continuation(" one fish", ""), good, Continuation("", " two"), Continuation(" fish" * 300, " red")]
    found = likelihood.score(rows)
    assert [one.nats is None for one in found] == [True, False, True, True]
    assert found[1] == likelihood.score([good])[0]
    assert all(one.fault for one in found if one.nats is None)
    assert likelihood.score([]) == []


def test_a_likelihood_that_is_no_number_is_a_fault() -> None:
    likelihood = over("llama")
    with torch.no_grad():
        next(likelihood.model.parameters()).fill_(float("nan"))
    found = likelihood.score([Continuation(" the cat", " sat")])[0]
    assert found.nats is None and "not finite" in str(found.fault)
