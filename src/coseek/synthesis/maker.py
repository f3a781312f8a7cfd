"""Maker: draws chains of a hop graph and keeps the questions that pass the gates.

A document belongs to the split of the first question that is kept of it, and a chain that crosses splits is dropped, so
that no passage of a test path is in a path of another split.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.generator import Generator
from coseek.synthesis.gates import GateVerdict, closed_book, edge, follows, model_verdicts, one_search
from coseek.synthesis.graph import Chain, HopGraph, random_hop
from coseek.synthesis.names import key_of
from coseek.synthesis.question_text import question_of, single_questions
from coseek.synthesis.question_writer import Draft, QuestionWriter
from coseek.synthesis.self_play import Proposer, Solver
from coseek.synthesis.settings import Split, SynthesisSettings

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
    """A chain with its question, which passed the gates by rules."""

    chain: Chain
    question: str
    verdicts: dict[str, GateVerdict]
    draft: str = ""
    """The question before a model wrote it anew."""


class QuestionMaker:
    """Makes the questions of a corpus."""

    def __init__(
        self, graph: HopGraph, settings: SynthesisSettings,
        writer: QuestionWriter | None = None, reader: Generator | None = None, solver: Solver | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._settings, self._writer, self._reader = graph, settings, writer, reader
        self._solver, self._proposer = solver, Proposer(settings.hop_mix)
        self._documents = [document_of(passage) for passage in graph.passages]
        self._owners: dict[str, Split] = {}
        self._used: Counter[int] = Counter()
        self._asked: set[str] = set()
        self.dropped: Counter[str] = Counter()
        """`gate: reason` → questions."""

    def make(self, tell: Tell) -> dict[Split, list[Question]]:
        """The questions of every split that has any."""
        made: defaultdict[Split, list[Question]] = defaultdict(list)
        total = sum(self._quota(hops) for hops in range(1, len(self._settings.hop_mix) + 1))
        for candidate in self._chosen() if self._solver is None else islice(self._at_edge(self._solver), total):
            split = self._owners[self._documents[candidate.chain[0].row]]
            ident = f"s{self._settings.seed}-{split}-{len(made[split]):05}"
            made[split].append(self._question(ident, candidate))
            tell("questions", sum(map(len, made.values())), total)
        for split, questions in made.items():
            random.Random(f"{self._settings.seed} order {split}").shuffle(questions)
        return {split: made[split] for split in SPLITS if made[split]}

    def _chosen(self) -> Iterator[DrawnQuestion]:
        """The questions of every number of hops; long chains, which are rare, are drawn first."""
        for hops in range(len(self._settings.hop_mix), 0, -1):
            yield from islice(self._kept(hops), self._quota(hops))

    def _at_edge(self, solver: Solver) -> Iterator[DrawnQuestion]:
        """What the solver can answer now and then, from batches that the proposer draws; it learns from each."""
        least, most = self._settings.edge
        draws = {hops: self._kept(hops) for hops in range(1, len(self._settings.hop_mix) + 1) if self._quota(hops)}
        tried_so_far = 0
        while draws and tried_so_far < _TRIED * self._settings.count:
            batch: list[DrawnQuestion] = []
            for hops, count in self._proposer.shares(draws, _BATCH).items():
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
            self._proposer.learn([(one.chain, least <= rate <= most) for one, rate in tried if rate is not None])
            for one, rate in tried:
                verdict = edge(rate, least, most)
                if self._passes({"edge": verdict}):
                    yield replace(one, verdicts={**one.verdicts, "edge": verdict})

    def _quota(self, hops: int) -> int:
        """Questions of so many hops, at most."""
        mix = self._settings.hop_mix
        return round(self._settings.count * mix[hops - 1] / sum(mix))

    def _kept(self, hops: int) -> Iterator[DrawnQuestion]:
        """Candidates that pass all gates; models are given batches."""
        candidates = self._candidates(hops) if self._quota(hops) else iter(())
        if self._writer is None and self._reader is None:
            yield from candidates
            return
        while batch := list(islice(candidates, _BATCH)):
            yield from self._read(self._rewrite(batch))

    def _candidates(self, hops: int) -> Iterator[DrawnQuestion]:
        """Chains that pass the gates by rules; their documents then belong to one split."""
        rng = random.Random(f"{self._settings.seed} {hops}")
        starts = list(self._graph.starts)
        choose = random_hop if self._solver is None else self._proposer.choose
        dealt: Counter[Split] = Counter()
        for _ in range(_ROUNDS):
            rng.shuffle(starts)
            for start in starts:
                chain = self._graph.draw(start, hops, rng, self._is_free, choose)
                split = None if chain is None else self._split_of(chain, dealt)
                candidate = None if chain is None or split is None else self._tested(chain)
                if candidate is not None and split is not None:
                    self._owners |= dict.fromkeys((self._documents[hop.row] for hop in candidate.chain), split)
                    self._used.update(hop.row for hop in candidate.chain)
                    dealt[split] += 1
                    yield candidate

    def _is_free(self, row: int) -> bool:
        return self._used[row] < self._settings.reuse

    def _split_of(self, chain: Chain, dealt: Counter[Split]) -> Split | None:
        """The split of the path's documents, else the one that lacks most of its share; `None` for a path that crosses
        splits."""
        owners = {self._owners[one] for hop in chain if (one := self._documents[hop.row]) in self._owners}
        dev, test = self._settings.dev, self._settings.test
        shares: dict[Split, float] = {"train": 1 - dev - test, "dev": dev, "test": test}
        if len(owners) == 1:
            return next(iter(owners))
        if owners:
            return None
        wanting = [split for split in SPLITS if shares[split]]
        return max(wanting, key=lambda one: shares[one] * (dealt.total() + 1) - dealt[one])

    def _tested(self, chain: Chain) -> DrawnQuestion | None:
        question = question_of(self._graph, chain)
        if question in self._asked:
            return None
        self._asked.add(question)
        verdicts = {"follows": follows(self._graph, chain)}
        if verdicts["follows"].passed:
            verdicts |= self._asked_verdicts(chain, question)
        return DrawnQuestion(chain, question, verdicts) if self._passes(verdicts) else None

    def _asked_verdicts(self, chain: Chain, question: str) -> dict[str, GateVerdict]:
        """The verdicts that depend on the words of the question."""
        return {
            "closed_book": closed_book(self._graph, chain, question),
            "one_search": one_search(self._graph, chain, question, self._settings.depth),
        }

    def _passes(self, verdicts: dict[str, GateVerdict], by: str = "") -> bool:
        """Whether all gates are passed; the first that is not is counted."""
        for name, verdict in verdicts.items():
            if not verdict.passed:
                self.dropped[f"{name}{by}: {verdict.reason}"] += 1
                return False
        return True

    def _rewrite(self, batch: Sequence[DrawnQuestion]) -> list[DrawnQuestion]:
        """Questions in a model's words, tested again by rules."""
        if self._writer is None:
            return list(batch)
        names = [self._graph.names_of(one.chain[0].source) for one in batch]
        drafts = [
            Draft(one.question, self._graph.names_of(one.chain[-1].target)[0], known[0], self._path(one.chain))
            for one, known in zip(batch, names, strict=True)
        ]
        found: list[DrawnQuestion] = []
        for one, known, written in zip(batch, names, self._writer.write(drafts), strict=True):
            if written is None or not any(f" {key_of(name)} " in f" {key_of(written)} " for name in known):
                self.dropped["written: nothing, or without the name that it starts from"] += 1
                continue
            verdicts = {"follows": one.verdicts["follows"], **self._asked_verdicts(one.chain, written)}
            if self._passes(verdicts):
                found.append(replace(one, question=written, draft=one.question, verdicts=verdicts))
        return found

    def _read(self, batch: Sequence[DrawnQuestion]) -> list[DrawnQuestion]:
        """The candidates that a model answers from their path alone."""
        if self._reader is None or not batch:
            return list(batch)
        questions = [self._question("", one) for one in batch]
        hits = self._graph.bm25.search([one.question for one in batch], self._settings.depth)
        found = [[hit.passage for hit in each] for each in hits]
        read = model_verdicts(self._reader, questions, [self._path(one.chain) for one in batch], found)
        marked = (
            replace(one, verdicts={**one.verdicts, **{f"{name} (model)": said for name, said in verdicts.items()}})
            for one, verdicts in zip(batch, read, strict=True)
        )
        return [one for one in marked if self._passes(one.verdicts)]

    def _path(self, chain: Chain) -> tuple[Passage, ...]:
        return tuple(self._graph.corpus[hop.row] for hop in chain)

    def _question(self, ident: str, candidate: DrawnQuestion) -> Question:
        chain, graph = candidate.chain, self._graph
        asked = single_questions(graph, chain)
        path: list[Json] = [
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
            for place, (hop, single) in enumerate(zip(chain, asked, strict=True), start=1)
        ]
        gates: JsonObject = {name: verdict.to_json() for name, verdict in candidate.verdicts.items()}
        meta: JsonObject = {"kind": "chain", "path": path, "gates": gates}
        if candidate.draft:
            meta["draft"] = candidate.draft
        if ident:
            meta["negatives"] = list(self._negatives(chain, [candidate.question, *asked]))
        answers = tuple(graph.names_of(chain[-1].target))
        gold = tuple(graph.corpus[hop.row].id for hop in chain)
        return Question(ident or "q", candidate.question, answers, gold, len(chain), meta)

    def _negatives(self, chain: Chain, queries: Sequence[str]) -> Iterator[str]:
        """Passages near the path that do not answer: what searches with the question and with its steps find first."""
        own, answer = {hop.row for hop in chain}, self._graph.holding(chain[-1].target)
        out = {self._graph.corpus[row].id for row in own | answer}
        ranked = self._graph.bm25.search(list(queries), self._settings.negatives + len(own))
        ids = (hit.passage.id for hits in zip_longest(*ranked) for hit in hits if hit is not None)
        yield from islice((ident for ident in dict.fromkeys(ids) if ident not in out), self._settings.negatives)


def document_of(passage: Passage) -> str:
    """What a passage was cut from: its file, else its title, else itself."""
    path = passage.meta.get("path")
    return f"path {path}" if isinstance(path, str) else f"title {key_of(passage.title) or passage.id}"


def by_hops(questions: Sequence[Question]) -> dict[int, int]:
    """Hops → questions."""
    counts: defaultdict[int, int] = defaultdict(int)
    for question in questions:
        counts[question.hops or 0] += 1
    return dict(sorted(counts.items()))
