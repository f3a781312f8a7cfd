"""Hand-made trajectories, small enough to check by eye. Ids are the text's code points, so `decode` is exact."""

from collections.abc import Sequence
from dataclasses import replace

from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory

QUESTION = Question(
    "q1", "where was the founder of Orbo born?", ("Velora",), ("orbo", "mira"), 2, {"kind": "composition"}
)
ORBO = Passage("orbo", "Orbo", "Orbo is a company founded by Mira Tan.")
MIRA = Passage("mira", "Mira Tan", "Mira Tan is a person born in Velora.")
OTHER = Passage("other", "Orbo (film)", "Orbo is a film from Zun.")


def decode(ids: Sequence[int]) -> str:
    """The tokenizer of these samples: one code point, one token."""
    return "".join(map(chr, ids))


def written(author: Author, tag: str, text: str) -> Segment:
    """A segment whose ids are its text's code points; the agent was rather sure of every one."""
    ids = tuple(map(ord, text))
    return Segment(author, tag, text, ids, (-0.25,) * len(ids) if author is Author.AGENT else ())


def search_of(query: str, *passages: Passage) -> Search:
    """A search with falling scores."""
    return Search(query, tuple(Hit(passage, float(9 - rank)) for rank, passage in enumerate(passages)))


def run(
    *searches: Search,
    answer: str | None = "Velora",
    question: Question = QUESTION,
    stop: StopReason | None = None,
    valid: bool = True,
    seed: int = 0,
    selected_ids: tuple[str, ...] = (),
) -> Trajectory:
    """A search-r1 run that makes these searches and then gives this answer, or ends without one."""
    segments = [written(Author.ENVIRONMENT, "prompt", f"Question: {question.question}\n")]
    for search in searches:
        segments.append(written(Author.AGENT, "search", f"<think>hm</think><search>{search.query}</search>"))
        shown = " ".join(hit.passage.contents for hit in search.hits)
        if search.fault is None:
            segments.append(written(Author.ENVIRONMENT, "information", f"<information>{shown}</information>"))
    if answer is not None:
        segments.append(written(Author.AGENT, "answer", f"<think>so</think><answer>{answer}</answer>"))
    return Trajectory(
        question=question,
        protocol="search-r1",
        segments=tuple(segments),
        searches=tuple(replace(search, turn=search.turn or turn) for turn, search in enumerate(searches, start=1)),
        stop=stop or (StopReason.INVALID if answer is None else StopReason.ANSWERED),
        answer=answer,
        valid=valid,
        format_error="" if valid else "the run ends after think",
        selected_ids=selected_ids,
        seed=seed,
    )


def fault(question: Question = QUESTION, seed: int = 0) -> Trajectory:
    """A run whose only search failed."""
    failed = Search("orbo", fault="the server is away")
    return run(failed, answer=None, question=question, stop=StopReason.RETRIEVER_ERROR, valid=False, seed=seed)
