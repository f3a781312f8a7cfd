"""Sources: the passages that support an answer and that a run serves to a generator, and the reply for a person or a
chat client.

An agent of the protocol `cited` cites the passages of its answer by number. Any other answer is supported by the
passages that contain it word for word. The stored answer, tokens and grades of a run are never changed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coseek.agents.episode import numbered_documents
from coseek.agents.protocol import known_protocol
from coseek.agents.tag import NOT_FOUND
from coseek.core.errors import SettingError
from coseek.core.text import as_written, counted, has_loop, sentence_spans
from coseek.data.passage import Passage
from coseek.data.trajectory import (
    Author,
    Search,
    StopReason,
    Trajectory,
    Visit,
    evidence_of,
    met_passages,
    rank_evidence,
)
from coseek.retrieval.lexical.analyzer import has_words

CITED = "cited"
"""The protocol whose answers, and those of protocols that extend it, cite passages by number."""
MOST = 5
"""Maximum number of sources of an answer without citations."""
MOST_SENTENCES = 4
"""Maximum number of consecutive sentences that an answer may span."""
_CITATIONS = re.compile(r"([ \t]?)((?:\[[0-9]{1,3}(?:[ \t]?[,;][ \t]?[0-9]{1,3}){0,20}\])++)")
"""Adjacent citations, with the blank before them. `[1995]` is text."""


@dataclass(frozen=True, slots=True)
class CitedAnswer:
    """An answer with its citations, renumbered in the order of first use."""

    text: str
    passages: tuple[Passage, ...]
    """Passage of citation n at n − 1."""
    dropped: int
    """Number of citations without a passage in the run."""


def cited_answer(trajectory: Trajectory) -> CitedAnswer | None:
    """The answer of a run of `cited` or a protocol that extends it; `None` for other runs and without an answer."""
    protocol = known_protocol(trajectory.agent_protocol)
    if protocol is None or protocol.root != CITED or trajectory.declined or trajectory.answer is None:
        return None
    documents, dropped = numbered_documents(trajectory.searches), 0
    cited_passages: dict[str, Passage] = {}

    def renumber(citations: re.Match[str]) -> str:
        nonlocal dropped
        marks: list[str] = []
        for number in map(int, re.findall("[0-9]+", citations[2])):
            if not 1 <= number <= len(documents):
                dropped += 1
                continue
            passage = documents[number - 1]
            cited_passages.setdefault(passage.id, passage)
            marks.append(f"[{[*cited_passages].index(passage.id) + 1}]")
        return citations[1] + "".join(dict.fromkeys(marks)) if marks else ""

    text = _CITATIONS.sub(renumber, trajectory.answer).strip()
    return CitedAnswer(text, tuple(cited_passages.values()), dropped)


def reply_of(trajectory: Trajectory) -> str:
    """The answer to show for a run: `NOT_FOUND` if the agent declined, "" if the run has no answer."""
    if (cited := cited_answer(trajectory)) is not None:
        return cited.text
    return NOT_FOUND if trajectory.declined else trajectory.answer or ""


def sources_of(trajectory: Trajectory) -> list[Passage]:
    """The passages that an answer cites, in the order of its citations. Without citations: at most `MOST` passages that
    contain it word for word, best first, or else the passages that the run served. Empty if the agent declined."""
    if trajectory.declined:
        return []
    if (cited := cited_answer(trajectory)) is not None and cited.passages:
        return list(cited.passages)
    served = served_context(trajectory)
    return ([passage for passage in served if holds(passage, trajectory.answer or "")] or served)[:MOST]


def holds(passage: Passage, answer: str) -> bool:
    """Whether a passage contains the words of an answer in sequence. False for an answer without words."""
    return has_words(f"{passage.title} . {passage.text}", answer)


def used_sentences(trajectory: Trajectory, passages: Sequence[Passage]) -> list[str]:
    """For each passage the sentence that supports the answer: a sentence with the answer, else a sentence with the
    title of a passage that contains the answer, which is a step towards it. "" for a passage without either."""
    answer = trajectory.answer or ""
    titles = [passage.title for passage in passages if holds(passage, answer)]
    return [
        first_with(passage, [answer, *(title for title in titles if title != passage.title)]) for passage in passages
    ]


def first_with(passage: Passage, wanted: Sequence[str]) -> str:
    """The shortest sequence of sentences of a passage that contains the first of these texts that occurs in it; "" if
    none occurs."""
    spans = sentence_spans(passage.text)
    for text in wanted:
        if not has_words(passage.text, text):  # as in most passages: skips the search by sentences
            continue
        for count in range(1, MOST_SENTENCES + 1):
            for (start, _), (_, end) in zip(spans, spans[count - 1 :], strict=False):
                if has_words(passage.text[start:end], text):
                    return passage.text[start:end].strip()
    return ""


SELECTED, ALL_FOUND, ROUNDS = "selected", "all", "rounds:"
SERVINGS = (SELECTED, ALL_FOUND, "no-opening", "no-opening-all", f"{ROUNDS}N")
"""What a stored run can serve: the agent's selection; all passages found; either without the search that opens a run
(s3, table 6); only the first N rounds (QAgent, figure 5)."""


def check_serving(serving: str) -> None:
    """Raise `SettingError` for a serving that is not among `SERVINGS`."""
    if serving not in SERVINGS[:-1] and not re.fullmatch(rf"{ROUNDS}0*[1-9]\d*", serving):
        known = ", ".join(SERVINGS)
        raise SettingError(f"{serving!r} cannot be served; choose from {known}, with a whole number above 0 for N")


def served_context(trajectory: Trajectory, serving: str = SELECTED) -> list[Passage]:
    """Return the union of the passages that the agent selected, in the order served (s3, appendix A.5).

    A search without a selection contributes all its passages, a search with an empty selection nothing. Passages with
    equal title and text are merged. A trajectory without any selection serves its `selected_ids` if it has some
    (rule-based agents rank afterwards), else its evidence, best first.

    Other servings (`SERVINGS`) apply this rule to a part of the run, which shows what a generator would have read:
    `all` ignores selections and serves all passages in the order of the searches; `no-opening` and `no-opening-all`
    leave out the search that opens a run (turn 0), if there is one; `rounds:N` keeps the first N turns that searched or
    visited, including the opening search. Raises `SettingError` for an unknown serving.
    """
    check_serving(serving)
    searches, visits = _part_of(trajectory, serving)
    if serving.endswith(ALL_FOUND):
        passages = [hit.passage for search in searches for hit in search.hits]
        passages += [passage for visit in visits for passage in visit.passages]
    else:
        passages = _chosen_passages(trajectory, searches, visits)
    unique_passages: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        unique_passages.setdefault((passage.title, passage.text), passage)
    return list(unique_passages.values())


def _part_of(trajectory: Trajectory, serving: str) -> tuple[Sequence[Search], Sequence[Visit]]:
    """The searches and visits of a run that a serving includes."""
    if serving.startswith("no-opening"):
        return [search for search in trajectory.searches if search.turn != 0], trajectory.visits
    if not serving.startswith(ROUNDS):
        return trajectory.searches, trajectory.visits
    numbers = {search.turn for search in trajectory.searches} | {visit.turn for visit in trajectory.visits}
    turns = sorted(numbers)[: int(serving.removeprefix(ROUNDS))]
    return (
        [search for search in trajectory.searches if search.turn in turns],
        [visit for visit in trajectory.visits if visit.turn in turns],
    )


def _chosen_passages(trajectory: Trajectory, searches: Sequence[Search], visits: Sequence[Visit]) -> list[Passage]:
    """The selected passages of these searches; without any selection, the passages of searches and visits, best
    first."""
    if any(search.selected is not None for search in trajectory.searches):
        hits = [(search, hit.passage) for search in searches for hit in search.hits]
        return [passage for search, passage in hits if search.selected is None or passage.id in search.selected]
    passages = met_passages((), visits)
    passages |= {hit.passage.id: hit.passage for search in searches for hit in search.hits}
    best = trajectory.selected_ids or evidence_of(trajectory)
    if best == rank_evidence(trajectory.searches, (), trajectory.visits):  # the default ranking: apply it to the part
        best = rank_evidence(searches, (), visits)
    return [passages[ident] for ident in best if ident in passages]


OUTSIDE = (
    "I have no answer: I began to repeat myself. The question may lie outside what I was trained on; ask it in other "
    "words, or ask another one."
)
"""The reply of a run that repeats itself."""
_WITHOUT_ANSWER = {
    StopReason.TOKEN_LIMIT: "I have no answer: I wrote as much as I may and had not come to one.",
    StopReason.TURN_LIMIT: "I have no answer: I searched as often as I may and did not come to one.",
    StopReason.INVALID: "I have no answer: what I wrote last was neither a search nor an answer.",
    StopReason.RETRIEVER_ERROR: "I have no answer: the search failed.",
    StopReason.MODEL_ERROR: "I have no answer: the language model failed.",
    StopReason.TOOL_ERROR: "I have no answer: a tool failed.",
}


def reply_in_words(trajectory: Trajectory) -> str:
    """The answer as people write it, or a sentence for a run without an answer. Never empty."""
    written_texts = (segment.text for segment in reversed(trajectory.segments) if segment.author is Author.AGENT)
    if has_loop(next(written_texts, "") if trajectory.answer is None else trajectory.answer):
        return OUTSIDE
    if trajectory.stop is StopReason.COMPLETE:
        count = len(served_context(trajectory))
        verb = "is" if count == 1 else "are"
        return f"I only search and do not answer; {counted(count, 'passage')} {verb} ready for a generator."
    return as_written(reply_of(trajectory)) or _WITHOUT_ANSWER.get(trajectory.stop, "I have no answer.")
