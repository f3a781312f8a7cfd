"""Branches: a continuation must equal the run that would have happened, even if little of it is read again."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.agents.playing import EVE, LOOPS, QUESTION, RESULTS, WIDE, Shelf, play, script, typist
from tests.scripted import ScriptedModel
from tests.training.tiny import VOCABULARY, tiny_model

from coseek.agents.branching import Branch, branch, rollout_groups
from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits, Tree
from coseek.agents.protocol import Protocol, load_protocol
from coseek.core.errors import DataError, RetrieverError
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, StopReason, Trajectory
from coseek.models.model import Model, Tokenizer
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever

CALLS = {
    "search-r1": ("<search>a</search>", "<search>bc</search>", "<search>d", "e</search>", "<answer>a</answer>"),
    "qagent": (
        "<search><query>a</query><query>bc</query></search>",
        "<search><query>de</query></search>",
        "<search><query>a</query><query>b</query><query>a</query></search>",
        "<answer>a</answer>",
    ),
    "s3": (
        "<important_info>[1]</important_info>",
        '<search_complete>False</search_complete><query>{"query": "a"}</query>',
        '<search_complete>False</search_complete><query>{"query": "bc"}</query>',
        "<search_complete>True</search_complete>",
    ),
    "search-o1": (
        "<|begin_search_query|>a<|end_search_query|>",
        "<|begin_search_query|>bc<|end_search_query|>",
        "<|begin_search_query|>d",
        "e<|end_search_query|>",
        "\\boxed{a}$",
    ),
}
"""Protocol → the text of single tokens."""


class Pieces:
    """A tokenizer whose tokens are whole calls, so that a network of random weights searches. Letters share ids."""

    eos_id = 1

    def __init__(self, calls: Sequence[str]) -> None:
        self.pieces = ["_", "$", *calls[:-1], *calls]
        self.letters = len(self.pieces)
        self.pieces += "abcdefghijklmnopqrstuvw"[: VOCABULARY - self.letters]

    def encode(self, text: str) -> list[int]:
        return [self.letters + ord(letter) % (VOCABULARY - self.letters) for letter in text]

    encode_data = encode

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[ident] for ident in ids)


@dataclass
class Anything(FixedRetriever):
    """Finds passages for every query, but queries with an f, and the query b, fail."""

    name: str = "fixed"
    corpus: Corpus = field(
        default_factory=lambda: Corpus([Passage(f"p{n}", f"T{n}", f"some text {n * n}") for n in range(40)])
    )

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if any("f" in self.seen(query) or self.seen(query) == "b" for query in queries):
            raise RetrieverError("the disk is gone")
        numbers = [zlib.crc32(self.seen(query).encode()) for query in queries]
        return [[Hit(self.corpus[(number + rank) % 40], -float(rank)) for rank in range(k)] for number in numbers]


def talker(name: str) -> tuple[Protocol, Tokenizer]:
    """A protocol in which a network of random weights takes many turns, because its mistakes are retried."""
    protocol = load_protocol(name)
    tokenizer: Tokenizer = Pieces(CALLS[name])
    words = {"prompt": "{question} ", "retry": "{problem}", "document": "{title}{text}", "notes": "{documents}"}
    prompt_template = replace(protocol.template, file=protocol.template.file.model_copy(update=words))
    file = protocol.file.model_copy(update={"retries": True})
    return replace(protocol, template=prompt_template, file=file), tokenizer


def sampler(name: str, temperature: float = 1.0, **settings: object) -> tuple[Agent, Sampler]:
    protocol, tokenizer = talker(name)
    chosen = SamplerSettings.model_validate({"temperature": temperature, **settings})
    model = Sampler(tiny_model(seed=3), tokenizer, protocol.grammar.stops, chosen)
    return Agent(protocol, model), model


LIMITS = Limits(max_turns=5, passages_per_search=2, max_turn_tokens=12, max_observation_tokens=40, max_tokens=300)
QUESTIONS = [Question(str(number), f"question {number}") for number in range(5)]


def finished(agent: Agent) -> list[Trajectory]:
    return rollout(agent, Anything(), QUESTIONS, range(len(QUESTIONS)), LIMITS)


def branches_of(runs: Sequence[Trajectory], count: int = 2) -> list[Branch]:
    """Branches with another passage for every search of every run."""
    corpus = Anything().corpus
    return [
        Branch(run, position, (corpus[(7 * position + 11 * number + run.seed) % 40],), seed=100 * run.seed + number)
        for run in runs
        for position in range(len(run.searches))
        for number in range(count)
    ]


class Unforked:
    """A model that hides that it can fork."""

    def __init__(self, model: Model) -> None:
        self.tokenizer = model.tokenizer
        self.start, self.extend, self.step, self.close = model.start, model.extend, model.step, model.close


def assert_same(trajectory: Trajectory, other: Trajectory) -> None:
    """Equal except for times and the last bits of log-probabilities."""

    def plain(run: Trajectory) -> Trajectory:
        def bare(segment: object) -> object:
            return replace(segment, logprobs=(0.0,) * len(segment.logprobs))  # type: ignore[type-var, attr-defined]

        asides = tuple(tuple(map(bare, aside)) for aside in run.side_contexts)
        return replace(run, timings={}, segments=tuple(map(bare, run.segments)), side_contexts=asides)  # type: ignore[arg-type]

    assert plain(trajectory) == plain(other)
    for mine, theirs in zip(trajectory.segments, other.segments, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "temperature"), [("search-r1", 0.0), *((name, 1.0) for name in CALLS)])
def test_a_branch_is_token_for_token_the_branch_that_reads_everything_anew(name: str, temperature: float) -> None:
    agent, model = sampler(name)
    branches = branches_of(finished(agent))
    agent, model = sampler(name, temperature, share=False)
    forked = branch(agent, Anything(), branches, LIMITS)
    assert not model._table.slot_of, "a row was left open in the model"
    slow = branch(Agent(agent.protocol, Unforked(model)), Anything(), branches, LIMITS)
    for run, reread in zip(forked, slow, strict=True):
        assert_same(run, reread)
    assert len(branches) > 10 and len({run.ids for run in forked}) > 5
    assert len({told.trajectory.searches[told.search].turn for told in branches}) > 1


@pytest.mark.parametrize("name", [name for name in LOOPS if name not in ("direct", "cot")])
def test_a_branch_is_what_the_ordinary_driver_makes_of_a_retriever_that_finds_its_passages(name: str) -> None:
    protocol = load_protocol(name)
    agent = Agent(protocol, ScriptedModel({QUESTION.id: script(name)}, typist(protocol).tokenizer))

    def driven(results: dict[str, list[str]]) -> tuple[Shelf, Trajectory]:
        shelf = Shelf(results={**RESULTS, **results}).fit(protocol)
        return shelf, replace(rollout(agent, shelf, [QUESTION], [7], WIDE)[0], timings={})

    shelf, truth = driven({})
    assert truth.searches
    queries = [search.query for search in truth.searches]
    for position, search in enumerate(truth.searches):
        own = Branch(truth, position, tuple(hit.passage for hit in search.hits), seed=7)
        (again,) = branch(agent, shelf, [own], WIDE)
        assert replace(again, timings={}) == truth
        if queries.count(search.query) == 1:  # a later search with this query would find the other passage, too
            (other,) = branch(agent, shelf, [replace(own, passages=(EVE,))], WIDE)
            _, wanted = driven({search.query: [EVE.id]})
            assert (other.segments, other.side_contexts) == (wanted.segments, wanted.side_contexts)
            assert (other.stop, other.answer, other.evidence) == (wanted.stop, wanted.answer, wanted.evidence)


def test_turns_before_a_branch_count_in_its_budget() -> None:
    """Trap 37: round + extra ≤ budget."""
    agent, _ = sampler("search-r1")
    branches = branches_of(finished(agent), count=8)
    for most in (2, 4):
        limits = LIMITS.model_copy(update={"max_turns": most})
        runs = branch(agent, Anything(), branches, limits)
        extras = set()
        for told, run in zip(branches, runs, strict=True):
            turn = told.trajectory.searches[told.search].turn or 0
            answered = sum(segment.author is Author.ENVIRONMENT for segment in run.segments) - 1
            if turn > most:
                assert run.stop is StopReason.TURN_LIMIT and len(run.searches) == told.search
                continue
            assert turn <= answered <= most
            if run.stop is StopReason.TURN_LIMIT:
                assert answered == most
                extras.add(most - turn)
        assert extras == set(range(most))


def test_tokens_before_a_branch_count_in_its_budget() -> None:
    agent, _ = sampler("search-r1")
    branches = branches_of(finished(agent))
    limits = LIMITS.model_copy(update={"max_tokens": 90})
    runs, whole = (branch(agent, Anything(), branches, bound) for bound in (limits, LIMITS))
    assert {_before(told) < 90 for told in branches} == {False, True}
    for told, run, free in zip(branches, runs, whole, strict=True):
        assert run.ids == free.ids[: len(run.ids)] and len(run.ids) <= max(90, _before(told))
        if _before(told) >= 90:
            assert run.stop is StopReason.TOKEN_LIMIT and len(run.ids) == _before(told)


def _before(told: Branch) -> int:
    """Tokens of a run up to the end of the turn that searched."""
    return told.trajectory.turn_spans[(told.trajectory.searches[told.search].turn or 0) - 1][1]


def test_a_branch_that_cannot_be_is_refused_with_a_sentence() -> None:
    run = play("search-r1", *script("search-r1"))
    for told, protocol, complaint in (
        (Branch(run, 1, (), 0), "search-r1", "made 1 searches; there is no search 1"),
        (Branch(run, 0, (), 0), "qagent", "name an agent of the run's own protocol"),
    ):
        named = load_protocol(protocol)
        with pytest.raises(DataError, match=complaint):
            branch(Agent(named, typist(named)), Shelf(), [told], WIDE)


# --- trees of runs


def common_turns(trajectory: Trajectory, other: Trajectory) -> int:
    """Number of leading turns that two runs have in common, with everything before them."""
    ends = zip(trajectory.turn_spans, other.turn_spans, strict=False)
    return sum(trajectory.ids[:end] == other.ids[:end] for (_, end), _ in ends)


@pytest.mark.medium
def test_the_runs_of_a_tree_share_a_root_up_to_a_search_and_go_on_by_themselves() -> None:
    agent, _ = sampler("search-r1")
    repeated = [question for question in QUESTIONS for _ in range(6)]
    seeds = range(100, 100 + len(repeated))
    runs = rollout_groups(agent, Anything(), repeated, seeds, LIMITS, Tree(6, 2))
    assert [run.question.id for run in runs] == [question.id for question in repeated]
    assert [run.seed for run in runs] == [*seeds]
    roots = [index for index in range(len(repeated)) if index % 6 < 2]
    alone = rollout(agent, Anything(), [repeated[index] for index in roots], [seeds[index] for index in roots], LIMITS)
    assert [runs[index].segments for index in roots] == [run.segments for run in alone]
    forked = 0
    for index, run in enumerate(runs):
        if index % 6 >= 2:
            root = runs[index - index % 6 + (index % 6) % 2]
            if any(search.turn for search in root.searches) and not root.fault:
                assert common_turns(root, run) >= 1
                forked += run.ids != root.ids
        for segment in run.segments:
            assert segment.author is Author.ENVIRONMENT or len(segment.logprobs) == len(segment.ids)
    assert forked > 5
    again = rollout_groups(agent, Anything(), repeated, seeds, LIMITS, Tree(6, 2))
    assert [run.segments for run in again] == [run.segments for run in runs]
