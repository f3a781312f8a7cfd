"""Fears about likelihoods: numbers of other tokens, rows that depend on their padding, and faults that pass as 0."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from tests.models.http_site import Asked, Said, Site, site
from tests.models.networks import NETWORKS, SMALL, TEXTS, logits_of, network
from tests.scripted import ScriptedModel
from transformers import PreTrainedModel

from coseek.core.errors import DataError, ModelError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.models.chat import chat_frame
from coseek.models.dialect import item
from coseek.models.laptop import make_policy
from coseek.models.likelihood import (
    Continuation,
    ContinuationLogprob,
    LikelihoodSettings,
    LocalLikelihood,
    RemoteLikelihood,
    open_likelihood,
    open_local_likelihood,
)
from coseek.models.text_model import (
    CUT,
    LocalTextModel,
    TextModelSettings,
    generate_each,
    open_local_text_model,
    open_text_model,
)
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer, train_tokenizer
from coseek.models.written import without_reasoning

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


BATCHES = [*((name, 8192) for name in NETWORKS), ("lfm2", 1), ("lfm2", 40), ("lfm2", 200)]


@pytest.mark.parametrize(("name", "batch_tokens"), BATCHES)
def test_it_is_the_sum_that_one_plain_pass_over_the_row_alone_gives(name: str, batch_tokens: int) -> None:
    likelihood = over(name, batch_tokens)
    rows = rows_of(1, 12)
    scores = likelihood.score(rows)
    assert scores == likelihood.score(rows)
    for row, weighed in zip(rows, scores, strict=True):
        given_ids = TOKENIZER.encode_data(row.prompt) + TOKENIZER.encode_data(row.lead)
        said_ids = TOKENIZER.encode_data(row.text)
        assert weighed.tokens == len(said_ids)
        assert weighed.nats == pytest.approx(by_hand(likelihood, given_ids, said_ids), abs=2e-4)
        assert weighed.fault is None


def test_prompt_and_words_are_never_tokenised_together(likelihood: LocalLikelihood) -> None:
    """` fi` and `sh` are other tokens than ` fish`, and the words are weighed as they are written alone."""
    joined, parted = TOKENIZER.encode_data(" fish"), likelihood.encode(Continuation(" fi", "sh"))
    assert not isinstance(parted, ContinuationLogprob)
    assert parted[0] == TOKENIZER.encode_data(" fi") + TOKENIZER.encode_data("sh") != joined


def test_special_tokens_in_the_texts_are_ordinary_characters(likelihood: LocalLikelihood) -> None:
    row = likelihood.encode(Continuation("a<|model|>", "<|user|>b", "<|end|>"))
    assert not isinstance(row, ContinuationLogprob)
    assert not set(row[0]) & set(TOKENIZER.encode("<|user|><|model|><|end|>"))


def test_the_chat_template_stands_around_the_prompt_and_in_front_of_the_lead(folder: Path, talking: Path) -> None:
    likelihood, tokenizer = open_local_likelihood(talking), HfTokenizer.load(talking)
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
    scores = likelihood.score(rows)
    assert [score.nats is None for score in scores] == [True, False, True, True]
    assert scores[1] == likelihood.score([good])[0]
    assert all(score.fault for score in scores if score.nats is None)
    assert likelihood.score([]) == []


def test_a_likelihood_that_is_no_number_is_a_fault() -> None:
    likelihood = over("llama")
    likelihood.model.get_parameter("lm_head.weight").detach().fill_(torch.nan)
    (score,) = likelihood.score([Continuation(" the cat", " sat")])
    assert score.nats is None and "not finite" in str(score.fault)


# --- from servers: other numbers than the model's own, and a refusal that passes as a number


DIALECTS = ("vllm", "sglang")


def serving(model: PreTrainedModel, tokenizer: HfTokenizer) -> Callable[[Asked], Said]:
    """A server with a real small network: answers requests for log-probabilities of a prompt, and for its models, as
    vLLM and SGLang do."""

    def answer(request: Asked) -> Said:
        body = request.body
        if request.path == "/v1/models":
            return Said({"data": [{"id": tokenizer.source, "owned_by": "vllm"}]})
        ids = ids_of(request)
        logprobs = torch.log_softmax(logits_of(model, ids).double(), -1)
        nats = [None, *(float(logprobs[at, ident]) for at, ident in enumerate(ids[1:]))]
        best = [int(row.argmax()) for row in logprobs]
        texts = [tokenizer.decode([ident]) for ident in ids]
        if request.path == "/generate":
            start = cast(int, body["logprob_start_len"])
            pairs: list[Json] = [[nats[at], ids[at], texts[at]] for at in range(start, len(ids))]
            pairs[0] = [None, ids[start], texts[start]]
            finish: JsonObject = {"type": "length", "length": 0}
            return Said({"text": "", "meta_info": {"input_token_logprobs": pairs, "finish_reason": finish}})
        if "prompt_logprobs" in body:
            rows: list[Json] = [None]
            for at in range(1, len(ids)):
                likeliest = float(logprobs[at - 1, best[at - 1]])
                row: JsonObject = {str(best[at - 1]): {"logprob": likeliest, "decoded_token": "likeliest"}}
                rows.append(row | {str(ids[at]): {"logprob": nats[at], "decoded_token": texts[at]}})
            return Said({"choices": [{"text": "!", "finish_reason": "length", "prompt_logprobs": rows}]})
        return Said({"choices": [{"text": "!", "finish_reason": "length", "logprobs": None}]})

    return answer


def ids_of(request: Asked) -> list[int]:
    """The ids of a request's prompt."""
    return cast(list[int], request.body["input_ids" if request.path == "/generate" else "prompt"])


PLAIN = LikelihoodSettings(precision="float32")
ROWS = [
    Continuation(" the cat sat on", " the mat"),
    Continuation(" one fish two fish", " red fish", " so :"),
    Continuation(" the mat", " è ひ"),
    Continuation(" a<|model|>", " <|user|> b"),
]


def always(reply: Said) -> Callable[[Asked], Said]:
    return lambda request: reply


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalLikelihood:
    return open_local_likelihood(folder, PLAIN)


@pytest.fixture(scope="module")
def served(local: LocalLikelihood) -> Callable[[Asked], Said]:
    return serving(local.model, local.tokenizer)


def opened(
    there: Site, folder: Path, tmp_path: Path, dialect: str = "vllm", send: JsonObject | None = None
) -> RemoteLikelihood:
    patience: JsonObject = {"concurrency": 4, "first_wait_s": 0.001, "longest_wait_s": 0.01, "attempts": 3}
    server = {"url": there.url, "dialect": dialect, "model": "m", "tokenizer": str(folder), "patience": patience}
    file = tmp_path / "likelihood.yaml"
    file.write_text(json.dumps({**server, "send": send or {}}), encoding="utf-8")
    client = open_likelihood(str(file))
    assert isinstance(client, RemoteLikelihood)
    return client


def scored(remote: RemoteLikelihood, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
    try:
        return remote.score(rows)
    finally:
        remote.calls.close()


@pytest.mark.medium
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("templated", [False, True])
def test_a_server_gives_the_likelihood_that_the_same_model_has_here(
    dialect: str, templated: bool, folder: Path, talking: Path, tmp_path: Path
) -> None:
    folder = talking if templated else folder
    local = open_local_likelihood(folder, PLAIN)
    with site(serving(local.model, local.tokenizer)) as there:
        remote = opened(there, folder, tmp_path, dialect)
        scores, own = scored(remote, ROWS), local.score(ROWS)
    assert remote.uses_chat_template is local.uses_chat_template is templated
    assert [score.fault for score in scores] == [None] * len(ROWS)
    assert [score.tokens for score in scores] == [score.tokens for score in own]
    assert [score.nats for score in scores] == pytest.approx([score.nats for score in own], abs=1e-4)


def test_a_url_suffices_where_the_served_model_is_a_folder_here(
    local: LocalLikelihood, served: Callable[[Asked], Said]
) -> None:
    with site(served) as there:
        remote = open_likelihood(there.url)
        assert isinstance(remote, RemoteLikelihood)
        assert scored(remote, ROWS)[0].nats == pytest.approx(local.score(ROWS)[0].nats, abs=1e-4)
    unknown = Said({"data": [{"id": "acme/large", "owned_by": "vllm"}]})
    with site(always(unknown)) as there, pytest.raises(SettingError, match="tokenizer of 'acme/large'"):
        open_likelihood(there.url)


def test_scores_of_another_request_or_chat_template_are_not_taken_from_a_cache(talking: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(talking, tmp_path / "copy")
    model = open_local_likelihood(talking, PLAIN)

    def identity(there: Site, send: JsonObject | None = None) -> str:
        remote = opened(there, copy, tmp_path, send=send)
        remote.calls.close()
        return remote.identity

    with site(serving(model.model, model.tokenizer)) as there:
        first = [identity(there), identity(there)]
        sent = identity(there, send={"priority": 1})
        (copy / "chat_template.jinja").write_text(
            "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|> :"
        )
        assert len({*first, sent, identity(there)}) == 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_refused_prompt_is_a_fault_of_its_own_and_no_likelihood(
    dialect: str, folder: Path, tmp_path: Path, local: LocalLikelihood, served: Callable[[Asked], Said]
) -> None:
    refused = local.tokenizer.encode_data(ROWS[1].prompt)

    def answer(request: Asked) -> Said:
        if ids_of(request)[: len(refused)] == refused:
            return Said({"error": "not this"}, 400)
        return served(request)

    with site(answer) as there:
        scores = scored(opened(there, folder, tmp_path, dialect), [*ROWS, Continuation(" the cat", "")])
    assert [score.nats is None for score in scores] == [False, True, False, False, True]
    assert "not this" in str(scores[1].fault)
    assert scores[0].nats == pytest.approx(local.score(ROWS)[0].nats, abs=1e-4)


TOKENS_AT: dict[str, list[str | int]] = {
    "vllm": ["choices", 0, "prompt_logprobs"], "sglang": ["meta_info", "input_token_logprobs"],
}  # fmt: skip
"""Dialect → where an answer has the tokens."""


@pytest.mark.parametrize(
    ("dialect", "replacement"),
    [
        ("vllm", []),
        ("vllm", [{"1": {"logprob": -1.0}}]),
        ("vllm", [None]),
        ("sglang", []),
        ("sglang", [[-1.0, 1, "x"]]),
    ],
)
def test_an_answer_to_other_tokens_is_a_fault(
    dialect: str, replacement: list[Json], folder: Path, tmp_path: Path, served: Callable[[Asked], Said]
) -> None:
    """Truncated and changed prompts, probabilities of 0, and holes, in place of the last token."""

    def answer(request: Asked) -> Said:
        reply = served(request)
        if request.number:  # the first request is the probe
            cast(list[Json], item(cast(JsonObject, reply.body), *TOKENS_AT[dialect]))[-1:] = replacement
        return reply

    with site(answer) as there:
        score = scored(opened(there, folder, tmp_path, dialect), ROWS[:1])[0]
    assert score.nats is None and score.fault


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_without_log_probabilities_of_prompts_is_refused_with_one_sentence(
    dialect: str, folder: Path, tmp_path: Path
) -> None:
    plain = Said({"choices": [{"text": "!", "logprobs": {"tokens": ["!"], "token_logprobs": [-1.0]}}]})
    for reply in (plain, Said({"text": "!"}), Said({"error": "unknown field"}, 400)):
        with site(always(reply)) as there, pytest.raises(SettingError, match="log-probabilities of prompts") as told:
            opened(there, folder, tmp_path, dialect)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_tokenizer_of_another_model_is_noticed_before_any_label(
    dialect: str, folder: Path, tmp_path: Path, served: Callable[[Asked], Said]
) -> None:
    other = tmp_path / "other"
    make_policy(SMALL, [" the capital of France"], ["<|x|>"], other, seed=3)
    with site(served) as there, pytest.raises(SettingError, match="tokenizer"):
        opened(there, other, tmp_path, dialect)


# --- a local model that writes texts: prompts that forge special tokens, rows that depend on their batch


@pytest.fixture(scope="module")
def writer(folder: Path) -> LocalTextModel:
    return open_local_text_model(folder)


def test_a_text_depends_on_its_prompt_alone(writer: LocalTextModel) -> None:
    prompts = ["one fish", "the cat sat on", "one fish", "two"]
    together = writer.write(prompts, 12)
    assert together == [writer.write([prompt], 12)[0] for prompt in prompts]
    assert together[0] == together[2]
    assert any(together)
    assert writer.write([], 12) == []


def test_the_chat_template_stands_around_a_prompt_whose_special_tokens_are_ordinary_characters(talking: Path) -> None:
    writer = open_local_text_model(talking)
    user, model = writer.model.tokenizer.encode("<|user|><|model|>")
    ids = writer._framed_ids("say <|user|>", 4)
    assert (ids[0], ids[-1]) == (user, model)
    assert ids.count(user) == ids.count(model) == 1
    assert writer.model.tokenizer.decode(ids[1:-1]) == "say <|user|>"


def test_a_template_that_drops_the_prompt_is_refused(talking: Path) -> None:
    tokenizer = HfTokenizer.load(talking)
    tokenizer.fast.chat_template = "{{ 'hello' }}"
    with pytest.raises(DataError, match="drops what the user says"):
        chat_frame(tokenizer)


def test_a_prompt_that_is_too_long_keeps_its_beginning_and_its_end(writer: LocalTextModel) -> None:
    prompt = "BEGIN " + "fish " * 400 + "END"
    ids = writer._framed_ids(prompt, 32)
    text = writer.model.tokenizer.decode(ids)
    assert len(ids) == 256 - 32
    assert text.startswith("BEGIN fish")
    assert text.endswith("fish END")
    assert text.count(CUT) == 1
    assert writer.cut_prompts == 1
    assert len(writer.write([prompt], 32)) == 1


def test_another_model_or_context_is_another_identity(folder: Path, talking: Path) -> None:
    kinds = [
        open_text_model(str(folder)).identity,
        open_local_text_model(talking).identity,
        open_text_model(str(folder), TextModelSettings(max_context=64)).identity,
    ]
    assert len(set(kinds)) == 3
    assert open_text_model(str(folder)).identity == kinds[0]


def test_a_prompt_that_fails_costs_its_siblings_nothing(writer: LocalTextModel) -> None:
    one, empty, two = generate_each(writer, ["one fish", "", "two"], 4)
    assert [one, two] == writer.write(["one fish", "two"], 4)
    assert isinstance(empty, ModelError) and "empty" in str(empty)
    with pytest.raises(ModelError, match="no room"):
        writer.write(["one fish two fish " * 20], 250)


@pytest.mark.parametrize(
    ("written", "shown"), [("Veld? No.</think>Karst", "Karst"), ("Karst", ""), ("Veld? Or perhaps", None)]
)
def test_reasoning_that_the_chat_template_opened_is_no_part_of_a_text(written: str, shown: str | None) -> None:
    """What the template opened and the model never closed is no answer, and a fault where the tokens ran out."""
    tokenizer = ByteTokenizer()
    frame = tuple(tokenizer.encode("<|user|>")), tuple(tokenizer.encode("<|model|><think>\n"))
    model = LocalTextModel(ScriptedModel(lambda state: written, tokenizer), frame, 1000, "m")
    if shown is None:
        with pytest.raises(ModelError, match="8 tokens were used up before an answer"):
            model.write(["Where?"], 8)
    else:
        assert without_reasoning(model.write(["Where?"], 100)[0]) == shown
