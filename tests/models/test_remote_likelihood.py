"""Fears about likelihoods from servers: other numbers than the model's own, and a refusal that passes as a number."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.models.http_site import Asked, Said, Site, site
from tests.models.networks import SMALL, TEXTS
from tests.models.prompt_server import DIALECTS, ids_of, serving

from coseek.core.errors import SettingError
from coseek.core.files import Json
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
from coseek.models.tokenizer import HfTokenizer

PLAIN = LikelihoodSettings(precision="float32")
ROWS = [
    Continuation(" the cat sat on", " the mat"),
    Continuation(" one fish two fish", " red fish", " so :"),
    Continuation(" the mat", " è ひ"),
    Continuation(" a<|model|>", " <|user|> b"),
]


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalLikelihood:
    return open_local_likelihood(folder, PLAIN)


@pytest.fixture(scope="module")
def served(local: LocalLikelihood) -> Callable[[Asked], Said]:
    return serving(local.model, local.tokenizer)


def opened(
    there: Site, folder: Path, tmp_path: Path, dialect: str = "vllm", tokenizer: Path | None = None, slots: int = 4
) -> RemoteLikelihood:
    file = tmp_path / "likelihood.yaml"
    patience = f"{{concurrency: {slots}, first_wait_s: 0.001, longest_wait_s: 0.01, attempts: 3}}"
    lines = [f"url: {there.url}", f"dialect: {dialect}", "model: m", f"tokenizer: {tokenizer or folder}"]
    file.write_text("\n".join([*lines, f"patience: {patience}", ""]), encoding="utf-8")
    found = open_likelihood(str(file))
    assert isinstance(found, RemoteLikelihood)
    return found


def scored(remote: RemoteLikelihood, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
    try:
        return remote.score(rows)
    finally:
        remote.calls.close()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("templated", [False, True])
def test_a_server_gives_the_likelihood_that_the_same_model_has_here(
    dialect: str, templated: bool, folder: Path, tmp_path: Path
) -> None:
    if templated:
        folder = tmp_path / "templated"
        make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], folder, seed=3)
        tokenizer = HfTokenizer.load(folder)
        tokenizer.fast.chat_template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"
        tokenizer.save(folder)
    local = open_local_likelihood(folder, PLAIN)
    with site(serving(local.model, local.tokenizer)) as there:
        remote = opened(there, folder, tmp_path, dialect)
        found, own = scored(remote, ROWS), local.score(ROWS)
    assert remote.uses_chat_template is local.uses_chat_template is templated
    assert [one.fault for one in found] == [None] * len(ROWS)
    assert [one.tokens for one in found] == [one.tokens for one in own]
    assert [one.nats for one in found] == pytest.approx([one.nats for one in own], abs=1e-4)


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


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_refused_prompt_is_a_fault_of_its_own_and_no_likelihood(
    dialect: str, folder: Path, tmp_path: Path, local: LocalLikelihood, served: Callable[[Asked], Said]
) -> None:
    refused = local.tokenizer.encode_data(ROWS[1].prompt)

    def answer(asked: Asked) -> Said:
        if ids_of(asked)[: len(refused)] == refused:
            return Said({"error": "not this"}, 400)
        return served(asked)

    with site(answer) as there:
        found = scored(opened(there, folder, tmp_path, dialect), [*ROWS, Continuation(" the cat", "")])
    assert [one.nats is None for one in found] == [False, True, False, False, True]
    assert "not this" in str(found[1].fault)
    assert found[0].nats == pytest.approx(local.score(ROWS)[0].nats, abs=1e-4)


def test_an_answer_to_other_tokens_is_a_fault(folder: Path, tmp_path: Path, served: Callable[[Asked], Said]) -> None:
    """Truncated and changed prompts, probabilities of 0, and holes."""
    wrong: dict[str, list[Callable[[Json], Json]]] = {
        "vllm": [
            lambda body: cut(body, "choices", 0, "prompt_logprobs"),
            lambda body: put(body, {"1": {"logprob": -1.0}}, "choices", 0, "prompt_logprobs", -1),
            lambda body: put(body, None, "choices", 0, "prompt_logprobs", -1),
        ],
        "sglang": [
            lambda body: cut(body, "meta_info", "input_token_logprobs"),
            lambda body: put(body, [-1.0, 1, "x"], "meta_info", "input_token_logprobs", -1),
        ],
    }
    for dialect, changes in wrong.items():
        for change in changes:

            def answer(asked: Asked, change: Callable[[Json], Json] = change) -> Said:
                said = served(asked)
                assert isinstance(said.body, dict)
                changed = change(copy.deepcopy(said.body)) if asked.number else said.body  # the first one is the probe
                assert isinstance(changed, dict)
                return Said(changed)

            with site(answer) as there:
                found = scored(opened(there, folder, tmp_path, dialect), ROWS[:1])[0]
            assert found.nats is None and found.fault, dialect


def at(body: Json, *path: str | int) -> Json:
    for step in path:
        body = body[step]  # type: ignore[index]
    return body


def put(body: Json, value: Json, *path: str | int) -> Json:
    at(body, *path[:-1])[path[-1]] = value  # type: ignore[index]
    return body


def cut(body: Json, *path: str | int) -> Json:
    """Without the last token."""
    return put(body, at(body, *path)[:-1], *path)  # type: ignore[index]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_without_log_probabilities_of_prompts_is_refused_with_one_sentence(
    dialect: str, folder: Path, tmp_path: Path
) -> None:
    plain = Said({"choices": [{"text": "!", "logprobs": {"tokens": ["!"], "token_logprobs": [-1.0]}}]})
    for said in (plain, Said({"text": "!"}), Said({"error": "unknown field"}, 400)):
        with site(always(said)) as there, pytest.raises(SettingError, match="log-probabilities of prompts") as told:
            opened(there, folder, tmp_path, dialect)
        assert "\n" not in str(told.value)


def always(said: Said) -> Callable[[Asked], Said]:
    return lambda asked: said


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_tokenizer_of_another_model_is_noticed_before_any_label(
    dialect: str, folder: Path, tmp_path: Path, served: Callable[[Asked], Said]
) -> None:
    other = tmp_path / "other"
    make_policy(SMALL, [" the capital of France"], ["<|x|>"], other, seed=3)
    with site(served) as there, pytest.raises(SettingError, match="tokenizer"):
        opened(there, folder, tmp_path, dialect, tokenizer=other)
