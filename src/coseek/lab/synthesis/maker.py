"""Maker: draws chains of a hop graph, or takes what a model proposes, and keeps the questions that pass the gates.

A document belongs to the split of the first question that is kept of it, and a question whose path crosses splits is
dropped, so that no passage of a test path is in a path of another split.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from coseek.core.errors import DataError, RunError
from coseek.core.files import Json, JsonObject
from coseek.data.question import Question, plain_name
from coseek.graders.generator import Generator
from coseek.lab.synthesis.gates import (
    Solver,
    Verdicts,
    chain_gates,
    edge,
    model_verdicts,
    proposal_gates,
    verdicts_of,
)
from coseek.lab.synthesis.graph import Chain, HopGraph, question_of
from coseek.lab.synthesis.proposals import MANY_FAULTS, Proposal, QuestionProposer, linked_passages, single_passages
from coseek.lab.synthesis.settings import Split, SynthesisSettings
from coseek.lab.synthesis.statements import key_of
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
class CandidateQuestion:
    """A question that passed the gates by rules."""

    rows: tuple[int, ...]
    """The passages of the path."""
    question: str
    answers: tuple[str, ...]
    path: tuple[JsonObject, ...]
    """The steps, as `gold_path` reads them; empty for a proposal whose model wrote none."""
    kind: str
    """`chain` or `proposal`."""
    verdicts: Verdicts


class QuestionMaker:
    """Makes the questions of a corpus."""

    def __init__(
        self, graph: HopGraph, settings: SynthesisSettings,
        proposer: QuestionProposer | None = None, reader: Generator | None = None, solver: Solver | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._settings, self._proposer, self._reader = graph, settings, proposer, reader
        self._solver = solver
        # A model proposes questions of one and two hops.
        mix = settings.hop_mix if proposer is None else settings.hop_mix[:2]
        self._quotas = {hops: round(settings.count * share / sum(mix)) for hops, share in enumerate(mix, start=1)}
        self._documents = [document_of(passage) for passage in graph.passages]
        self._owners: dict[str, Split] = {}
        self._used: Counter[int] = Counter()
        self._dealt: defaultdict[int, Counter[Split]] = defaultdict(Counter)
        """Hops → questions of each split."""
        self._asked: set[str] = set()
        self.dropped: Counter[str] = Counter()
        """`gate: reason` → questions."""

    def make(self, tell: Tell) -> dict[Split, list[Question]]:
        """The questions of every split that has any."""
        made: defaultdict[Split, list[Question]] = defaultdict(list)
        total = sum(self._quotas.values())
        for candidate in self._chosen() if self._solver is None else islice(self._at_edge(self._solver), total):
            split = self._owners[self._documents[candidate.rows[0]]]
            made[split].append(self._question(f"s{self._settings.seed}-{split}-{len(made[split]):05}", candidate))
            tell("questions", sum(map(len, made.values())), total)
        for split, questions in made.items():
            random.Random(f"{self._settings.seed} order {split}").shuffle(questions)
        return {split: made[split] for split in SPLITS if made[split]}

    def _chosen(self) -> Iterator[CandidateQuestion]:
        """The questions of every number of hops; long chains, which are rare, are drawn first. What a model cannot
        propose of two hops it proposes of one."""
        missing = 0
        for hops, quota in reversed(self._quotas.items()):
            missing = quota and quota + missing
            for candidate in islice(self._kept(hops), missing):
                missing -= 1
                yield candidate
            missing *= self._proposer is not None

    def _at_edge(self, solver: Solver) -> Iterator[CandidateQuestion]:
        """What the solver can answer now and then, from batches in which every number of hops has its share."""
        draws = {hops: self._kept(hops) for hops, quota in self._quotas.items() if quota}
        tried = 0
        while tried < _TRIED * self._settings.count:
            total = sum(map(self._quotas.__getitem__, draws))
            shares = {hops: max(1, round(_BATCH * self._quotas[hops] / total)) for hops in draws}
            drawn = {hops: list(islice(draws[hops], count)) for hops, count in shares.items()}
            draws = {hops: draws[hops] for hops, count in shares.items() if len(drawn[hops]) == count}
            batch = [candidate for candidates in drawn.values() for candidate in candidates]
            if not batch:
                return
            tried += len(batch)
            rates = solver.solved([self._question("", candidate) for candidate in batch])
            if all(rate is None for rate in rates):
                raise DataError(f"the solver failed in every try of {len(batch)} questions; try it with `coseek run`")
            for candidate, rate in zip(batch, rates, strict=True):
                verdict = {"edge": edge(rate, *self._settings.edge)}
                if self._passes(verdict):
                    yield replace(candidate, verdicts=candidate.verdicts | verdict)

    def _kept(self, hops: int) -> Iterator[CandidateQuestion]:
        """Candidates that pass all gates; their documents then belong to one split."""
        batches = self._drawn(hops) if self._proposer is None else self._proposed(hops, self._proposer)
        for batch in batches:
            for candidate in self._read(batch):
                split = self._split_of(candidate.rows)
                if split is None:
                    self.dropped["split: the path crosses splits"] += 1
                elif not all(map(self._is_free, candidate.rows)):
                    self.dropped["reuse: enough questions of this passage"] += 1
                else:
                    self._owners |= dict.fromkeys((self._documents[row] for row in candidate.rows), split)
                    self._used.update(candidate.rows)
                    self._dealt[len(candidate.rows)][split] += 1
                    yield candidate

    def _proposed(self, hops: int, proposer: QuestionProposer) -> Iterator[list[CandidateQuestion]]:
        """What a model proposes and the gates by rules keep, in batches."""
        settings, graph = self._settings, self._graph
        limits = settings.proposals, settings.limit or 2 * self._quotas[hops], settings.reply_tokens
        groups = single_passages(graph.corpus) if hops == 1 else list(linked_passages(graph.passages))
        for batch in proposer.propose(graph.corpus, groups, f"{settings.seed} proposals {hops}", *limits):
            candidates: list[CandidateQuestion] = []
            for proposal in batch:
                verdicts = verdicts_of(proposal_gates(graph, proposal, settings.depth))
                if self._passes(verdicts) and self._is_new(proposal.question):
                    answers, steps = (proposal.answer,), proposal_steps(graph, proposal)
                    candidates.append(
                        CandidateQuestion(proposal.rows, proposal.question, answers, steps, "proposal", verdicts)
                    )
            yield candidates

    def _drawn(self, hops: int) -> Iterator[list[CandidateQuestion]]:
        """Chains that pass the gates by rules: batches for a model that reads them, else one by one."""
        graph, batch, rng = self._graph, list[CandidateQuestion](), random.Random(f"{self._settings.seed} {hops}")
        starts = sorted(graph.hops)
        for _ in range(_ROUNDS):
            rng.shuffle(starts)
            for start in starts:
                chain = graph.draw(start, hops, rng, self._is_free)
                rows = tuple(hop.row for hop in chain or ())
                question = question_of(graph, chain) if chain and self._split_of(rows) else ""
                if not chain or not question or key_of(question) in self._asked or not self._is_new(question):
                    continue
                verdicts = verdicts_of(chain_gates(graph, chain, question, self._settings.depth))
                if self._passes(verdicts):
                    answers = tuple(graph.names_of(chain[-1].key))
                    batch.append(
                        CandidateQuestion(rows, question, answers, chain_steps(graph, chain), "chain", verdicts)
                    )
                if len(batch) == (_BATCH if self._reader else 1):
                    yield batch
                    batch = []
        yield batch

    def _is_new(self, question: str) -> bool:
        key, count = key_of(question), len(self._asked)
        self._asked.add(key)
        if len(self._asked) == count:
            self.dropped["duplicate: the same question again"] += 1
        return len(self._asked) > count

    def _is_free(self, row: int) -> bool:
        return self._used[row] < self._settings.reuse

    def _split_of(self, rows: Sequence[int]) -> Split | None:
        """The split of the path's documents, else the one that lacks most of its share; `None` for a path that crosses
        splits."""
        owners = {self._owners[document] for row in rows if (document := self._documents[row]) in self._owners}
        if owners:
            return next(iter(owners)) if len(owners) == 1 else None
        dev, test, dealt = self._settings.dev, self._settings.test, self._dealt[len(rows)]
        shares: dict[Split, float] = {"train": 1 - dev - test, "dev": dev, "test": test}
        splits = [split for split in SPLITS if shares[split]]
        return max(splits, key=lambda split: shares[split] * (dealt.total() + 1) - dealt[split])

    def _passes(self, verdicts: Verdicts) -> bool:
        """Whether all gates are passed; the first that is not is counted."""
        failed = next((f"{name}: {verdict.reason}" for name, verdict in verdicts.items() if not verdict.passed), None)
        self.dropped.update([failed] if failed else [])
        return failed is None

    def _read(self, batch: Sequence[CandidateQuestion]) -> list[CandidateQuestion]:
        """The candidates that a model answers from their path alone."""
        if self._reader is None or not batch:
            return list(batch)
        questions, corpus = [self._question("", candidate) for candidate in batch], self._graph.corpus
        hits = self._graph.bm25.search([candidate.question for candidate in batch], self._settings.depth)
        found = [[hit.passage for hit in hit_list] for hit_list in hits]
        paths = [[corpus[row] for row in candidate.rows] for candidate in batch]
        read = model_verdicts(self._reader, questions, paths, found)
        if len(batch) >= MANY_FAULTS and all(verdict.fault for verdicts in read for verdict in verdicts.values()):
            raise RunError(
                f"the reader failed for all of {len(batch)} questions in a row; nothing is written, and the same "
                "command resumes from the replies in its cache"
            )
        marked: list[CandidateQuestion] = []
        for candidate, verdicts in zip(batch, read, strict=True):
            by_model = {f"{name} (model)": verdict for name, verdict in verdicts.items()}
            marked.append(replace(candidate, verdicts=candidate.verdicts | by_model))
        return [candidate for candidate in marked if self._passes(candidate.verdicts)]

    def _question(self, ident: str, candidate: CandidateQuestion) -> Question:
        gates: JsonObject = {name: verdict.to_json() for name, verdict in candidate.verdicts.items()}
        path: JsonObject = {"path": [*candidate.path]} if candidate.path else {}
        meta: JsonObject = {"kind": candidate.kind, **path, "gates": gates}
        if ident:
            meta["negatives"] = list[Json](self._negatives(candidate))
        gold = tuple(self._graph.corpus[row].id for row in candidate.rows)
        return Question(ident or "q", candidate.question, candidate.answers, gold, len(gold), meta)

    def _negatives(self, candidate: CandidateQuestion) -> Iterator[str]:
        """Passages near the path that do not answer: what searches with the question and with its steps find first."""
        graph, count = self._graph, self._settings.negatives
        excluded = {graph.corpus[row].id for row in {*candidate.rows, *graph.holding(key_of(candidate.answers[0]))}}
        queries = [candidate.question, *(str(step["question"]) for step in candidate.path)]
        ranked = graph.bm25.search(queries, count + len(candidate.rows))
        ids = (hit.passage.id for hits in zip_longest(*ranked) for hit in hits if hit is not None)
        yield from islice((ident for ident in dict.fromkeys(ids) if ident not in excluded), count)


def chain_steps(graph: HopGraph, chain: Chain) -> tuple[JsonObject, ...]:
    """The steps of a chain, as `gold_path` reads them."""
    return tuple(
        {
            "passage": graph.corpus[hop.row].id, "from": graph.names_of(hop.subject)[0],
            "to": graph.names_of(hop.key)[0], "written": hop.name, "phrase": hop.phrase, "back": False,
            "question": question_of(graph, (hop,)),
            "rest": question_of(graph, chain[number:]) if chain[number:] else "",
        }
        for number, hop in enumerate(chain, start=1)
    )  # fmt: skip


def proposal_steps(graph: HopGraph, proposal: Proposal) -> tuple[JsonObject, ...]:
    """The steps of a proposal, where the model wrote a question for each and these name and hide what they must."""
    if len(proposal.rows) != 2 or len(proposal.steps) != 2:
        return ()
    first, last = proposal.steps
    if has_words(first, proposal.link) or not has_words(last, proposal.link) or has_words(last, proposal.answer):
        return ()
    names = (plain_name(graph.passages[proposal.rows[0]].title), proposal.link, proposal.answer)
    return tuple(
        {
            "passage": graph.corpus[row].id, "from": names[number], "to": names[number + 1],
            "written": names[number + 1], "phrase": "", "back": False, "question": proposal.steps[number],
            "rest": (*proposal.steps, "")[number + 1],
        }
        for number, row in enumerate(proposal.rows)
    )  # fmt: skip
