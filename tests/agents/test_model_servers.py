"""Each part works with each kind of server, or is refused with the setting to change; nothing is scored as wrong."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.agents.test_chat_templates import TEMPLATE, chatting, tokenizer_that_opens
from tests.models.http_site import Asked, Said, Site, site
from tests.models.model_servers import KINDS, Kind, answers

from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import limits_for, open_agent, settings_for
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import run_questions
from coseek.core.errors import RetrieverError, UserError
from coseek.core.files import JsonObject
from coseek.core.http import HttpSettings
from coseek.core.settings import make_settings
from coseek.data.digests import Identities, changed_parts
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Author, StopReason, Trajectory
from coseek.graders.factory import open_generator, open_judge
from coseek.graders.generator import GeneratorOutput, GeneratorSettings
from coseek.graders.judge import Claim, JudgeSettings
from coseek.models.model import EpisodeState, Request, Tokenizer, TurnEnd
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.text_model import RemoteTextModelSettings, named_server, open_text_model
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.audit import audit_run
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.remote import RemoteRetriever, RemoteRetrieverSettings as RetrieverSettings

QUESTION = Question("q1", "Where was Mira Castell born?", ("Orlen",))
PASSAGE = Passage("p1", "Mira Castell", "Mira Castell was born in Orlen.")
SEND = {
    "gpt-5": {"max_tokens": "max_completion_tokens", "temperature": None, "stop": None, "seed": None},
    "mistral": {"seed": None},
}
"""Settings that a kind of server needs."""
REFUSES = {"gpt-5": "send: {max_tokens: max_completion_tokens}", "mistral": "send: {seed: null}"}
"""The setting named in the fault without them."""


def writes(messages: Sequence[JsonObject]) -> str:
    """A model that thinks about Veld and means Orlen."""
    prompt = str(messages[0]["content"])
    thought = "<think>Is it Veld? Or Karst? Document 1: Veld. Yes, no.</think>"
    if "<search>" in prompt:
        return thought + ("<answer>Orlen</answer>" if len(messages) > 1 else "<search>Mira Castell born</search>")
    if "tool_call" in prompt:
        call = json.dumps({"name": "search", "arguments": {"query": ["Mira Castell born"]}})
        return thought + ("<answer>Orlen</answer>" if len(messages) > 1 else f"<tool_call>{call}</tool_call>")
    if "Document" in prompt:
        return f"{thought}Document 1: Mira Castell\nShe was born in Orlen."
    return thought + ("yes" if "Response:" in prompt else "Orlen")


NAMES = list(KINDS)


@contextmanager
def served(kind: Kind, folder: Path, **settings: object) -> Iterator[tuple[Site, str]]:
    """A server of a kind, and the YAML file of its settings."""
    with site(answers(kind, writes)) as there:
        given = {"url": there.url, "reasoning_tokens": 1000, "patience": {"attempts": 1}, **settings}
        path = folder / "server.yaml"
        path.write_text(yaml.safe_dump(given))
        yield there, str(path)


def sends(kind: Kind) -> dict[str, object]:
    return {"send": SEND[kind.name]} if kind.name in SEND else {}


def answered(name: str) -> GeneratorOutput:
    generator = open_generator(GeneratorSettings(model=name))
    return generator.answer([generator.context(QUESTION.question, (PASSAGE,))])[0]


def run_at(there: Site, folder: Path, protocol: str, **more: object) -> Trajectory:
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump({"url": there.url, "protocol": protocol, "patience": {"attempts": 1}, **more}))
    settings = settings_for(str(path))
    shelf = FixedRetriever(Corpus([PASSAGE]), {"Mira Castell born": [PASSAGE.id]})
    (run,) = rollout(open_agent(settings), shelf, [QUESTION], [0], limits_for(settings))
    return run


@pytest.mark.parametrize("kind", KINDS.values(), ids=NAMES)
def test_generator_judge_and_simulated_engine_are_read_behind_their_reasoning(kind: Kind, tmp_path: Path) -> None:
    with served(kind, tmp_path, **sends(kind)) as (_, name):
        assert answered(name).answer == "Orlen"
        (verdict,) = open_judge(JudgeSettings(model=name)).judge([Claim(QUESTION, "Orlen")])
        assert (verdict.right, verdict.fault) == (True, None)
        engine = tmp_path / "engine.yaml"
        engine.write_text(yaml.safe_dump({"retriever": "simulated", "model": name}))
        [[hit]] = open_retriever(str(engine)).search(["Mira Castell"], 1)
        assert (hit.passage.title, hit.passage.text) == ("Mira Castell", "She was born in Orlen.")


@pytest.mark.parametrize("kind", KINDS.values(), ids=NAMES)
@pytest.mark.parametrize("protocol", ["search-r1", "react"])
def test_an_agent_searches_and_answers_and_is_asked_for_text_without_a_tokenizer(
    kind: Kind, protocol: str, tmp_path: Path
) -> None:
    with served(kind, tmp_path) as (there, _):
        run = run_at(there, tmp_path, protocol, **sends(kind))
        sent = [request.body for request in there.asked if request.method == "POST"]
    assert all(body.get("max_tokens", body.get("max_completion_tokens")) == 4000 for body in sent)  # long thoughts fit
    assert (run.stop, run.answer) == (StopReason.ANSWERED, "Orlen"), run.stop_detail
    assert [search.query for search in run.searches] == ["Mira Castell born"]
    if kind.reasoning != "hidden":  # its reasoning becomes the turn's thought
        assert run.valid, run.format_error
        assert "Is it Veld?" in run.segments[1].text


@pytest.mark.parametrize("name", REFUSES)
def test_a_server_that_refuses_a_field_names_the_setting(name: str, tmp_path: Path) -> None:
    with served(KINDS[name], tmp_path) as (there, path):
        [verdict] = open_judge(JudgeSettings(model=path)).judge([Claim(QUESTION, "Orlen")])
        assert verdict.right is None and REFUSES[name] in str(verdict.fault)
        out = answered(path)
        assert out.answer is None and REFUSES[name] in str(out.fault)
        run = run_at(there, tmp_path, "search-r1")
        assert run.stop is StopReason.MODEL_ERROR and REFUSES[name] in run.stop_detail


def test_tokens_that_reasoning_used_up_are_a_fault_that_is_asked_again(tmp_path: Path) -> None:
    kind = KINDS["vllm"]
    cache = str(tmp_path / "texts.sqlite")
    with served(kind, tmp_path, reasoning_tokens=0, cache=cache, **sends(kind)) as (there, name):
        for _ in range(2):
            (verdict,) = open_judge(JudgeSettings(model=name)).judge([Claim(QUESTION, "Orlen")])
            assert verdict.right is None and "16 tokens were used up before an answer" in str(verdict.fault)
            assert "reasoning_tokens" in str(verdict.fault) and "max_tokens" in str(verdict.fault)
        assert sum(request.method == "POST" for request in there.asked) == 2
        engine = tmp_path / "engine.yaml"
        engine.write_text(yaml.safe_dump({"retriever": "simulated", "model": name, "document_tokens": 20}))
        with pytest.raises(RetrieverError, match="used up"):
            open_retriever(str(engine)).search(["Mira Castell"], 1)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": None, "refusal": "I cannot help with that."}, "refused: I cannot help"),
        ({"content": "", "reasoning_content": "It is Orlen."}, "wrote reasoning and no answer"),
        ({"content": None}, "wrote no words"),
        ({"content": "<think>It is Orlen."}, "wrote reasoning and no answer"),
        ({"content": None, "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}]}, "the tool 'find'"),
    ],
)
def test_a_reply_without_words_is_a_fault_of_the_part(message: JsonObject, why: str, tmp_path: Path) -> None:
    reply = Said({"choices": [{"message": message, "finish_reason": "stop"}]})
    path = tmp_path / "server.yaml"
    with site(lambda request: reply) as there:
        path.write_text(yaml.safe_dump({"url": there.url, "model": "m", "cache": str(tmp_path / "c.sqlite")}))
        for _ in range(2):  # a fault is not cached
            out = answered(str(path))
            assert out.answer is None and why in str(out.fault)
        assert len(there.asked) == 2


def test_tool_calls_in_a_protocol_without_tools_are_no_fault_of_the_agent(tmp_path: Path) -> None:
    def calls(messages: Sequence[JsonObject]) -> str:
        return '<think>a</think><tool_call>{"name": "search", "arguments": {"query": ["b"]}}</tool_call>'

    with site(answers(KINDS["vllm"], calls)) as there:
        run = run_at(there, tmp_path, "search-r1")
        assert run.stop is StopReason.MODEL_ERROR and "tool parser" in run.stop_detail
        assert sum(request.method == "POST" for request in there.asked) == 1
        run = run_at(there, tmp_path, "react")  # a model that never sees its results is not paid for 50 turns
        assert run.stop is StopReason.MODEL_ERROR and "3 times in a row" in run.stop_detail


@pytest.mark.parametrize("protocol", ["search-r1", "rag"])
def test_a_thought_that_the_template_opens_before_a_server_of_texts_is_valid(protocol: str, tmp_path: Path) -> None:
    tokenizer_that_opens("[THINK]").save(tmp_path / "model")
    reply = Said({"choices": [{"text": "I know it.[/THINK]<answer>Orlen</answer>", "finish_reason": "stop"}]})
    with site(lambda request: reply) as there:
        run = run_at(there, tmp_path, protocol, tokenizer=str(tmp_path / "model"), model="m", dialect="completions")
    assert (run.answer, run.valid) == ("Orlen", True), run.format_error


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/openai/v1/chat/completions", "/openai/v1/chat/completions"),
        ("/v1beta/openai/", "/v1beta/openai/chat/completions"),
        ("/team", "/team/v1/chat/completions"),
    ],
)
def test_a_server_is_reached_at_its_own_path(url: str, path: str, tmp_path: Path) -> None:
    with site(answers(KINDS["ollama"], writes)) as there:
        file = tmp_path / "server.yaml"
        file.write_text(yaml.safe_dump({"url": there.url + url, "reasoning_tokens": 1000}))
        assert open_text_model(str(file)).write(["Where?"], 16) == ["Orlen"]
        models = path.replace("/chat/completions", "/models")
        assert [request.path for request in there.asked] == [models, path]


@pytest.mark.parametrize(("name", "wanted"), [("vllm", {"repetition_penalty": 1.0, "top_k": -1}), ("ollama", {})])
@pytest.mark.parametrize("model", ["m", None])
def test_greedy_is_greedy_where_the_server_would_add_a_penalty_of_the_models_own(
    name: str, wanted: JsonObject, model: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(KINDS[name], tmp_path, model=model) as (there, path):
        assert answered(path).answer == "Orlen"
        run_at(there, tmp_path, "react", model=model)
        sent = [request.body for request in there.asked if request.method == "POST"]
        assert all({key: body[key] for key in wanted} == wanted for body in sent)
        assert ("repeat_penalty" in caplog.text) == (name == "ollama")  # a penalty that cannot be undone is reported
        file = tmp_path / "other.yaml"
        file.write_text(
            yaml.safe_dump({"url": there.url, "model": "m", "send": {"top_k": None}, "reasoning_tokens": 99})
        )
        open_text_model(str(file)).write(["a"], 9)
        assert "top_k" not in there.asked[-1].body


def test_a_limit_by_the_minute_is_waited_out_whatever_else_is_set() -> None:
    for patience in ({}, {"patience": {"concurrency": 4}}):
        assert make_settings(RemoteModelSettings, patience).patience.longest_wait_s == 90


class KnownTokenizer:
    """A tokenizer whose tokens are the server's: one for each byte."""

    eos_id = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    encode_data = encode

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()


@pytest.mark.parametrize("tokenizer", [KnownTokenizer(), ByteTokenizer()])
@pytest.mark.parametrize(("read", "fault"), [(400, True), (3_900, False), (0, False)])
def test_a_prompt_that_the_server_cut_is_a_fault_and_no_answer(read: int, fault: bool, tokenizer: Tokenizer) -> None:
    usage: JsonObject = {"prompt_tokens": read, "completion_tokens": 9}
    reply = Said({"choices": [{"message": {"content": "Orlen"}, "finish_reason": "stop"}], "usage": usage})
    fast = make_settings(RemoteModelSettings, {"dialect": "chat", "model": "m"})
    with site(lambda request: reply) as there:
        model = open_remote(there.url, fast, tokenizer, ())
        text = b"a" if isinstance(tokenizer, KnownTokenizer) else b"a "  # tokens, or words
        model.start(Request(1, tuple(text * 4000), 50, 1, EpisodeState(QUESTION)))
        (turn,) = model.step()
        model.calls.close()
    assert (turn.end is TurnEnd.FAULT) == fault
    assert not fault or ("400 tokens of the 4000" in turn.fault and "num_ctx" in turn.fault)


def test_a_chat_template_that_was_corrected_beside_a_servers_tokenizer_is_another_part_of_a_run(tmp_path: Path) -> None:
    chatting().save(tmp_path / "tokenizer")
    path = tmp_path / "agent.yaml"

    def parts() -> Identities:
        server: JsonObject = {"dialect": "vllm", "model": "m"}
        agent = {"name": "http://127.0.0.1:9", "tokenizer": str(tmp_path / "tokenizer"), "server": server}
        path.write_text(yaml.safe_dump(agent))
        return open_agent(settings_for(str(path))).identities

    before = parts()
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert changed_parts({**before}, parts()) == ["chat_template"]


def test_reasoning_that_a_chat_template_drops_is_no_sign_of_a_prompt_that_was_cut() -> None:
    usage: JsonObject = {"prompt_tokens": 30, "completion_tokens": 4_000}
    words = f"<think>{'Is it Veld? ' * 300}</think>\nOrlen"
    with site(lambda call: Said({"choices": [{"message": {"content": words}}], "usage": usage})) as there:
        settings = make_settings(RemoteModelSettings, {"dialect": "chat", "model": "m"})
        model = open_remote(there.url, settings, KnownTokenizer(), ())
        for send in (model.start, model.extend):
            send(Request(1, tuple(b"Where was she born?"), 9_000, 1, EpisodeState(QUESTION)))
            (turn,) = model.step()
            assert not turn.fault and len(turn.ids) > 3_000
        model.calls.close()


def test_settings_of_a_server_are_merged_wherever_they_stand_and_none_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("url: http://127.0.0.1:9#patience.attempts=2\nmodel: m\nserver: {patience: {timeout_s: 3}}\n")
    server = settings_for(str(path)).server
    assert server is not None and server.model == "m"
    assert (server.patience.attempts, server.patience.timeout_s) == (2, 3.0)
    path.write_text("url: http://127.0.0.1:9#patience.attempts=2\nmodel: m\npatience: {timeout_s: 3}\n")
    assert named_server(str(path)) == RemoteTextModelSettings(
        url="http://127.0.0.1:9", model="m", patience=server.patience
    )
    path.write_text("url: http://127.0.0.1:9\nname: m\n")
    with pytest.raises(UserError, match="write model: m for the server's model"):
        settings_for(str(path))
    path.write_text("url: http://127.0.0.1:9\nmodel: m\nserver: 3\n")
    with pytest.raises(UserError, match="server"):
        settings_for(str(path))


# --- servers that fail, stall and talk nonsense


PROTOCOL = load_protocol("search-r1", "laptop")
TOKENIZER = ByteTokenizer(PROTOCOL.grammar.special_tokens)
SEARCH = "<think> look </think><search> who </search>"
ANSWER = "<think> seen </think><answer> Ada </answer>"
EVIDENCE = "the one true passage"
BUDGET = Limits(max_tokens=4000, max_turn_tokens=1000, max_observation_tokens=1000)


def flaky(honest: Callable[[Asked], Said], rng: random.Random, gate: threading.Event) -> Callable[[Asked], Said]:
    """Of every twenty calls two fail, one stalls and one answers garbage."""
    deck: list[int] = []
    lock = threading.Lock()

    def answer(request: Asked) -> Said:
        with lock:
            if not deck:
                deck.extend(rng.sample(range(20), 20))
            card = deck.pop()
        if card < 2:
            return Said({"error": "out of memory"}, 500)
        if card < 3:
            return Said(b"{}", hold=gate)
        return Said(b"<html>a proxy's page</html>") if card < 4 else honest(request)

    return answer


def model(request: Asked) -> Said:
    """Searches once, then answers."""
    prompt = request.body["prompt"]
    assert isinstance(prompt, list)
    ids = TOKENIZER.encode(ANSWER if TOKENIZER.encode("</information>")[0] in prompt else SEARCH)
    choice: JsonObject = {"text": TOKENIZER.decode(ids), "finish_reason": "stop", "token_ids": [*ids]}
    choice["logprobs"] = {"token_logprobs": [-0.1] * len(ids)}
    return Said({"choices": [choice]})


def retriever(request: Asked) -> Said:
    queries = request.body["queries"]
    assert isinstance(queries, list)
    row: JsonObject = {"document": {"id": "p", "title": "T", "text": EVIDENCE}, "score": 1.0}
    return Said({"result": [[row] for _ in queries]})


@pytest.mark.slow
def test_questions_survive_servers_that_fail_a_fifth_of_all_calls(tmp_path: Path) -> None:
    gate = threading.Event()
    questions = [Question(f"q{number}", f"Who is {number} ?", ("Ada",)) for number in range(40)]
    rng = random.Random(11)
    with site(flaky(model, rng, gate)) as brain, site(flaky(retriever, rng, gate)) as shelf:
        patience = HttpSettings(attempts=2, timeout_s=1.5, first_wait_s=0.001, concurrency=32, break_after=1_000)
        settings = RemoteModelSettings(dialect="vllm", model="m", patience=patience)
        written = open_remote(brain.url, settings, TOKENIZER, PROTOCOL.grammar.stops)
        remote_retriever = RemoteRetriever(
            RetrieverSettings(url=shelf.url, retries=1, timeout_s=1.5, backoff_s=0.001, break_after=999)
        )
        run = Run.create(tmp_path / "run", {"limits": {"max_tokens": 4000}})

        def stop_early(ended: int, total: int) -> None:
            if ended >= 15:
                raise KeyboardInterrupt

        agent = Agent(PROTOCOL, written)
        with pytest.raises(KeyboardInterrupt):
            run_questions(run, agent, remote_retriever, questions, BUDGET, tell=stop_early)
        first = {trajectory.question.id: trajectory.to_json() for trajectory in run.trajectories()}
        run_questions(run, agent, remote_retriever, questions, BUDGET)
        gate.set()
        written.calls.close()
        remote_retriever.close()
    kept = list(run.trajectories())
    assert len(first) == 15
    by_id = {trajectory.question.id: trajectory.to_json() for trajectory in kept}
    assert {ident: by_id[ident] for ident in first} == first  # they were not repeated
    assert [trajectory.question.id for trajectory in kept] == [question.id for question in questions]
    ends = Counter(trajectory.stop for trajectory in kept)
    assert set(ends) <= {StopReason.ANSWERED, StopReason.MODEL_ERROR, StopReason.RETRIEVER_ERROR}
    assert ends[StopReason.ANSWERED] >= 25
    for trajectory in kept:
        assert (trajectory.answer is None) == trajectory.stop.is_fault == bool(trajectory.stop_detail)
        for segment in trajectory.segments[1:]:
            assert "proxy" not in segment.text and "memory" not in segment.text
            assert segment.author is Author.AGENT or EVIDENCE in segment.text
    assert audit_run(tmp_path / "run").violations == ()
