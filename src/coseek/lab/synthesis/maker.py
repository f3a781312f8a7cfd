"""Maker: draws chains of a hop graph, or takes what a model proposes, and keeps the questions that pass the gates.

A document belongs to the split of the first question that is kept of it, and a chain that crosses splits is dropped, so
that no passage of a test path is in a path of another split.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from coseek.core.errors import DataError, RunError
from coseek.core.files import Json, JsonObject
from coseek.data.passage import Passage
from coseek.data.question import Question, plain_name
from coseek.graders.generator import Generator
from coseek.lab.synthesis.gates import GateVerdict, closed_book, edge, follows, model_verdicts, one_search
from coseek.lab.synthesis.graph import Chain, HopGraph
from coseek.lab.synthesis.names import key_of
from coseek.lab.synthesis.passage_groups import linked_passages, single_passages
from coseek.lab.synthesis.proposal_gates import proposal_verdicts
from coseek.lab.synthesis.proposals import MANY_FAULTS, Proposal, QuestionProposer
from coseek.lab.synthesis.question_text import question_of, reads_naturally, single_questions
from coseek.lab.synthesis.settings import Split, SynthesisSettings
from coseek.lab.synthesis.solver import Solver
from coseek.retrieval.lexical.analyzer import has_words
from coseek.training.encoder.examples import document_of

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_ROUNDS = 8
"""Draws from every name for one number of hops."""
_BATCH = 64
"""Questions that a model is given together."""
_TRIED = 20
"""Questions that a solver tries, at most, for each one that is asked for."""

Tell = Callable[[str, int, int], None]
"""(what is done, how many are done, of how many)."""


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A chain or a proposal with its question, which passed the gates by rules."""

    rows: tuple[int, ...]
    """The passages of the path."""
    question: str
    verdicts: dict[str, GateVerdict]
    chain: Chain = ()
    """The hops of a drawn question; empty for a proposal."""
    proposal: Proposal | None = None


class QuestionMaker:
    """Makes the questions of a corpus."""

    def __init__(
        self, graph: HopGraph, settings: SynthesisSettings,
        proposer: QuestionProposer | None = None, reader: Generator | None = None, solver: Solver | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._settings, self._proposer, self._reader = graph, settings, proposer, reader
        self._solver = solver
        self._documents = [document_of(passage) for passage in graph.passages]
        self._owners: dict[str, Split] = {}
        self._used: Counter[int] = Counter()
        self._dealt: Counter[Split] = Counter()
        """Proposed questions of each split."""
        self._asked: set[str] = set()
        self.dropped: Counter[str] = Counter()
        """`gate: reason` → questions."""

    def make(self, tell: Tell) -> dict[Split, list[Question]]:
        """The questions of every split that has any."""
        made: defaultdict[Split, list[Question]] = defaultdict(list)
        total = sum(self._quota(hops) for hops in range(1, len(self._mix) + 1))
        for candidate in self._chosen() if self._solver is None else islice(self._at_edge(self._solver), total):
            split = self._owners[self._documents[candidate.rows[0]]]
            ident = f"s{self._settings.seed}-{split}-{len(made[split]):05}"
            made[split].append(self._question(ident, candidate))
            tell("questions", sum(map(len, made.values())), total)
        for split, questions in made.items():
            random.Random(f"{self._settings.seed} order {split}").shuffle(questions)
        return {split: made[split] for split in SPLITS if made[split]}

    def _chosen(self) -> Iterator[DrawnQuestion]:
        """The questions of every number of hops; long chains, which are rare, are drawn first. What a model cannot
        propose of two hops it proposes of one."""
        missing = 0
        for hops in range(len(self._mix), 0, -1):
            wanted = self._quota(hops) and self._quota(hops) + missing
            missing = wanted
            for candidate in islice(self._kept(hops), wanted):
                missing -= 1
                yield candidate
            missing *= self._proposer is not None

    def _at_edge(self, solver: Solver) -> Iterator[DrawnQuestion]:
        """What the solver can answer now and then, from batches in which every number of hops has its share."""
        least, most = self._settings.edge
        draws = {hops: self._kept(hops) for hops in range(1, len(self._mix) + 1) if self._quota(hops)}
        tried_so_far = 0
        while draws and tried_so_far < _TRIED * self._settings.count:
            batch: list[DrawnQuestion] = []
            total = sum(self._mix[hops - 1] for hops in draws)
            for hops in [*draws]:
                count = max(1, round(_BATCH * self._mix[hops - 1] / total))
                drawn = list(islice(draws[hops], count))
                batch += drawn
                if len(drawn) < count:
                    del draws[hops]
            tried_so_far += len(batch)
            if not batch:
                return
            tried = list(zip(batch, solver.solved([self._question("", one) for one in batch]), strict=True))
            if all(rate is None for _, rate in tried):
                raise DataError(f"the solver failed in every try of {len(batch)} questions; try it with `coseek run`")
            for one, rate in tried:
                verdict = edge(rate, least, most)
                if self._passes({"edge": verdict}):
                    yield replace(one, verdicts={**one.verdicts, "edge": verdict})

    @property
    def _mix(self) -> tuple[float, ...]:
        """Weights of the numbers of hops; a model proposes questions of one and two."""
        mix = self._settings.hop_mix
        return mix if self._proposer is None else mix[:2]

    def _quota(self, hops: int) -> int:
        """Questions of so many hops, at most."""
        mix = self._mix
        return round(self._settings.count * mix[hops - 1] / sum(mix))

    def _kept(self, hops: int) -> Iterator[DrawnQuestion]:
        """Candidates that pass all gates; models are given batches."""
        if self._proposer is not None:
            for batch in self._proposed(hops, self._proposer):
                yield from self._owned(self._read(batch))
            return
        candidates = self._candidates(hops)
        if self._reader is None:
            yield from candidates
            return
        while batch := list(islice(candidates, _BATCH)):
            yield from self._read(batch)

    def _proposed(self, hops: int, proposer: QuestionProposer) -> Iterator[list[DrawnQuestion]]:
        """What a model proposes and the gates by rules keep, in batches."""
        settings, graph = self._settings, self._graph
        seed = f"{settings.seed} proposals {hops}"
        limits = settings.proposals, settings.limit or 2 * self._quota(hops), settings.reply_tokens
        groups = single_passages(graph.corpus) if hops == 1 else list(linked_passages(graph.passages))
        for batch in proposer.propose(graph.corpus, groups, seed, *limits):
            kept: list[DrawnQuestion] = []
            for one in batch:
                verdicts, key = proposal_verdicts(graph, one, settings.depth), key_of(one.question)
                if not self._passes(verdicts):
                    continue
                if key in self._asked:
                    self.dropped["duplicate: the same question again"] += 1
                    continue
                self._asked.add(key)
                kept.append(DrawnQuestion(one.rows, one.question, verdicts, proposal=one))
            yield kept

    def _owned(self, batch: Sequence[DrawnQuestion]) -> Iterator[DrawnQuestion]:
        """The questions of a batch whose documents can belong to one split and are not used up."""
        for one in batch:
            split = self._split_of(one.rows, self._dealt)
            if split is None:
                self.dropped["split: the path crosses splits"] += 1
            elif all(map(self._is_free, one.rows)):
                self._take(one, split, self._dealt)
                yield one
            else:
                self.dropped["reuse: enough questions of this passage"] += 1

    def _candidates(self, hops: int) -> Iterator[DrawnQuestion]:
        """Chains that pass the gates by rules; their documents then belong to one split."""
        rng = random.Random(f"{self._settings.seed} {hops}")
        starts = list(self._graph.starts)
        dealt: Counter[Split] = Counter()
        for _ in range(_ROUNDS):
            rng.shuffle(starts)
            for start in starts:
                chain = self._graph.draw(start, hops, rng, self._is_free)
                split = None if chain is None else self._split_of([hop.row for hop in chain], dealt)
                candidate = None if chain is None or split is None else self._tested(chain)
                if candidate is not None and split is not None:
                    self._take(candidate, split, dealt)
                    yield candidate

    def _take(self, candidate: DrawnQuestion, split: Split, dealt: Counter[Split]) -> None:
        """Give the documents of a candidate to a split."""
        self._owners |= dict.fromkeys((self._documents[row] for row in candidate.rows), split)
        self._used.update(candidate.rows)
        dealt[split] += 1

    def _is_free(self, row: int) -> bool:
        return self._used[row] < self._settings.reuse

    def _split_of(self, rows: Sequence[int], dealt: Counter[Split]) -> Split | None:
        """The split of the path's documents, else the one that lacks most of its share; `None` for a path that crosses
        splits."""
        owners = {self._owners[one] for row in rows if (one := self._documents[row]) in self._owners}
        dev, test = self._settings.dev, self._settings.test
        shares: dict[Split, float] = {"train": 1 - dev - test, "dev": dev, "test": test}
        if len(owners) == 1:
            return next(iter(owners))
        if owners:
            return None
        wanting = [split for split in SPLITS if shares[split]]
        return max(wanting, key=lambda one: shares[one] * (dealt.total() + 1) - dealt[one])

    def _tested(self, chain: Chain) -> DrawnQuestion | None:
        if not reads_naturally(self._graph, chain):
            self.dropped["wording: the phrases make no natural question"] += 1
            return None
        question = question_of(self._graph, chain)
        if question in self._asked:
            return None
        self._asked.add(question)
        verdicts = {"follows": follows(self._graph, chain)}
        if verdicts["follows"].passed:
            verdicts["closed_book"] = closed_book(self._graph, chain, question)
            verdicts["one_search"] = one_search(self._graph, chain, question, self._settings.depth)
        rows = tuple(hop.row for hop in chain)
        return DrawnQuestion(rows, question, verdicts, chain) if self._passes(verdicts) else None

    def _passes(self, verdicts: dict[str, GateVerdict]) -> bool:
        """Whether all gates are passed; the first that is not is counted."""
        for name, verdict in verdicts.items():
            if not verdict.passed:
                self.dropped[f"{name}: {verdict.reason}"] += 1
                return False
        return True

    def _read(self, batch: Sequence[DrawnQuestion]) -> list[DrawnQuestion]:
        """The candidates that a model answers from their path alone."""
        if self._reader is None or not batch:
            return list(batch)
        questions = [self._question("", one) for one in batch]
        hits = self._graph.bm25.search([one.question for one in batch], self._settings.depth)
        found = [[hit.passage for hit in each] for each in hits]
        read = model_verdicts(self._reader, questions, [self._path(one.rows) for one in batch], found)
        if len(batch) >= MANY_FAULTS and all(verdict.fault for verdicts in read for verdict in verdicts.values()):
            raise RunError(
                f"the reader failed for all of {len(batch)} questions in a row; nothing is written, and the same "
                "command resumes from the replies in its cache"
            )
        marked = (
            replace(one, verdicts={**one.verdicts, **{f"{name} (model)": said for name, said in verdicts.items()}})
            for one, verdicts in zip(batch, read, strict=True)
        )
        return [one for one in marked if self._passes(one.verdicts)]

    def _path(self, rows: Sequence[int]) -> tuple[Passage, ...]:
        return tuple(self._graph.corpus[row] for row in rows)

    def _question(self, ident: str, candidate: DrawnQuestion) -> Question:
        chain, graph, proposal = candidate.chain, self._graph, candidate.proposal
        gates: JsonObject = {name: verdict.to_json() for name, verdict in candidate.verdicts.items()}
        path = chain_steps(graph, chain) if proposal is None else proposal_steps(graph, proposal)
        answers = tuple(graph.names_of(chain[-1].target)) if proposal is None else (proposal.answer,)
        meta: JsonObject = {"kind": "chain" if proposal is None else "proposal"}
        if path:
            meta["path"] = list[Json](path)
        meta["gates"] = gates
        if ident:
            queries = [candidate.question, *(str(step["question"]) for step in path)]
            holding = graph.holding(chain[-1].target if proposal is None else key_of(proposal.answer))
            meta["negatives"] = list(self._negatives(candidate.rows, holding, queries))
        gold = tuple(graph.corpus[row].id for row in candidate.rows)
        return Question(ident or "q", candidate.question, answers, gold, len(gold), meta)

    def _negatives(self, rows: Sequence[int], holding: Set[int], queries: Sequence[str]) -> Iterator[str]:
        """Passages near the path that do not answer: what searches with the question and with its steps find first."""
        out = {self._graph.corpus[row].id for row in {*rows, *holding}}
        ranked = self._graph.bm25.search(list(queries), self._settings.negatives + len(rows))
        ids = (hit.passage.id for hits in zip_longest(*ranked) for hit in hits if hit is not None)
        yield from islice((ident for ident in dict.fromkeys(ids) if ident not in out), self._settings.negatives)


def chain_steps(graph: HopGraph, chain: Chain) -> list[JsonObject]:
    """The steps of a chain, as `gold_path` reads them."""
    return [
        {
            "passage": graph.corpus[hop.row].id,
            "from": graph.names_of(hop.source)[0],
            "to": graph.names_of(hop.target)[0],
            "written": graph.names_of(hop.target)[0] if hop.back else hop.statement.name,
            "phrase": str(hop.phrase),
            "back": hop.back,
            "question": single,
            "rest": question_of(graph, chain[place:]) if place < len(chain) else "",
        }
        for place, (hop, single) in enumerate(zip(chain, single_questions(graph, chain), strict=True), start=1)
    ]


def proposal_steps(graph: HopGraph, proposal: Proposal) -> list[JsonObject]:
    """The steps of a proposal, where the model wrote a question for each and these name and hide what they must."""
    if len(proposal.rows) != 2 or len(proposal.steps) != 2:
        return []
    first, last = proposal.steps
    if has_words(first, proposal.link) or not has_words(last, proposal.link) or has_words(last, proposal.answer):
        return []
    start = plain_name(graph.passages[proposal.rows[0]].title)
    names, questions = (start, proposal.link, proposal.answer), (first, last, "")
    return [
        {
            "passage": graph.corpus[row].id,
            "from": names[place],
            "to": names[place + 1],
            "written": names[place + 1],
            "phrase": "",
            "back": False,
            "question": questions[place],
            "rest": questions[place + 1],
        }
        for place, row in enumerate(proposal.rows)
    ]


def by_hops(questions: Sequence[Question]) -> dict[int, int]:
    """Hops → questions."""
    counts: defaultdict[int, int] = defaultdict(int)
    for question in questions:
        counts[question.hops or 0] += 1
    return dict(sorted(counts.items()))
