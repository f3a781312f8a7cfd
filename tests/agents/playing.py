"""What tests of protocols share: a model that writes given turns, a retriever that fails for some queries."""

from collections.abc import Callable, Sequence
from pathlib import Path

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import FOLDER, Protocol, load_protocol
from coseek.core.errors import RetrieverError
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever

ADA = Passage("p1", "Ada", "Ada Lovelace was born in 1815.")
BOB = Passage("p2", "Bob", "Bob is a cat.")
EVE = Passage("p3", "Eve", "Eve knows Bob.")
CORPUS = Corpus([ADA, BOB, EVE])
RESULTS = {"Ada": ["p1", "p2"], "Bob": ["p2", "p1"], "Eve": ["p3"], "none": []}
QUESTION = Question("q1", "When was Ada born ?", ("1815",))
WIDE = Limits(max_turns=6, passages_per_search=3, max_turn_tokens=4000, max_observation_tokens=4000, max_tokens=60000)
OURS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


class Shelf(FixedRetriever):
    """Finds what is listed; the question finds Ada; queries that hold `bad` fail. Remembers what it was asked."""

    def __init__(self, corpus: Corpus = CORPUS, results: dict[str, list[str]] | None = None) -> None:
        super().__init__(corpus, {QUESTION.question: ["p1", "p2"], **(RESULTS if results is None else results)})
        self.asked: list[QueryLike] = []

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.asked += queries
        if any("bad" in self.seen(query) for query in queries):
            raise RetrieverError("the disk is gone")
        return super().search(queries, k)


class Typist:
    """Writes its turns in order, and its notes where it is asked for them; what comes after a stop string is kept."""

    def __init__(
        self, tokenizer: Tokenizer, turns: Sequence[str], notes: str = "noted", note_end: TurnEnd = TurnEnd.EOS
    ):
        self.tokenizer = tokenizer
        self.turns, self.notes, self.note_end = turns, notes, note_end
        self.count: dict[int, int] = {}
        self.waiting: list[Request] = []
        self.read: dict[int, tuple[int, ...]] = {}

    def start(self, request: Request) -> None:
        assert request.key not in self.count
        self.count[request.key], self.read[request.key] = 0, ()
        self.extend(request)

    def extend(self, request: Request) -> None:
        self.read[request.key] += request.ids
        self.waiting.append(request)

    def step(self) -> list[Turn]:
        asked, self.waiting = self.waiting, []
        return [self._write(request) for request in asked]

    def _write(self, request: Request) -> Turn:
        number, self.count[request.key] = self.count[request.key], self.count[request.key] + 1
        text = self.notes if request.state.side_searches else self.turns[min(number, len(self.turns) - 1)]
        ids = tuple(self.tokenizer.encode(text))[: request.max_tokens]
        end = self.note_end if request.state.side_searches else TurnEnd.STOP
        end = TurnEnd.LENGTH if len(ids) == request.max_tokens else end
        if end is TurnEnd.FAULT:
            return Turn(request.key, (), (), end, "out of memory")
        self.read[request.key] += ids
        return Turn(request.key, ids, (-0.5,) * len(ids), end)

    def close(self, key: int) -> None:
        self.count.pop(key, None)


def typist(protocol: Protocol, *turns: str) -> Typist:
    return Typist(ByteTokenizer(protocol.grammar.special_tokens), turns)


def play(
    name: str,
    *turns: str,
    limits: Limits = WIDE,
    retriever: Shelf | None = None,
    make: Callable[[Protocol], Typist] | None = None,
) -> Trajectory:
    """One question under a protocol, with a model that writes these turns."""
    protocol = load_protocol(name, "default", run_files=True)
    shelf = retriever or Shelf()
    if protocol.file.retrievers:
        shelf.name = protocol.file.retrievers[0]
    model = make(protocol) if make else typist(protocol, *turns)
    trajectory = rollout(Agent(protocol, model), shelf, [QUESTION], [7], limits)[0]
    assert not model.count, "a row was left open in the model"
    return trajectory


def observations(trajectory: Trajectory) -> list[str]:
    """What the environment wrote after the prompt."""
    return [segment.text for segment in trajectory.segments[1:] if segment.author == "environment"]


def script(name: str) -> tuple[str, ...]:
    """Turns of a whole run that is valid under a protocol: it asks for Ada where it can, and says 1815."""
    return SCRIPTS[Path(name).stem.removesuffix("-code").removesuffix("-paper").removesuffix("-search")]


_TOOL = '<tool_call>{"name": "search", "arguments": {"query": "Ada"}}</tool_call>'
_O1 = ("so who is <|begin_search_query|>Ada<|end_search_query|>", "it says\\boxed{1815}")
SCRIPTS: dict[str, tuple[str, ...]] = {
    "search-r1": ("<think>a</think><search>Ada</search>", "<think>b</think><answer>1815</answer>"),
    "qagent": (
        "<plan>a</plan><search><query>Ada</query><query>Bob</query></search>",
        "<reflection>b</reflection><answer>1815</answer>",
    ),
    "s3": (
        '<important_info>[1]</important_info><search_complete>False</search_complete><query>{"query": "Ada"}</query>',
        "<important_info>[1]</important_info><search_complete>True</search_complete>",
    ),
    "s3-think": (
        "<think>a</think><important_info>[1]</important_info><search_complete>False</search_complete>"
        '<query>{"query": "Ada"}</query>',
        "<think>b</think><important_info>[1]</important_info><search_complete>True</search_complete>",
    ),
    "react": (f"<think>a</think>{_TOOL}", "<think>b</think><answer>1815</answer>"),
    "ircot": ("<thought>Ada</thought>", "<answer>1815</answer>"),
    "search-o1": _O1,
    "deepretrieval": ('<think>a</think><query>{"query": "Ada"}</query>',),
    "cited": ("<search>Ada</search>", "<answer>1815</answer>"),
    "cot": ("<think>a</think><answer>1815</answer>",),
    "direct": ("<answer>1815</answer>",),
    "rag": ("<answer>1815</answer>",),
    "rag-rerank": ("<answer>1815</answer>",),
    "r1-searcher": ("who is<|begin_of_query|>Ada<|end_of_query|>", "so</think>\n<answer>1815</answer>"),
    "simpledeepsearcher": _O1,
    "tools": (f"<think>a</think>\n{_TOOL}{_TOOL.replace('Ada', 'Eve')}", "<think>b</think>\n1815"),
    "tongyi": (f"<think>a</think>\n{_TOOL}", "<think>b</think>\n<answer>1815</answer>"),
}
