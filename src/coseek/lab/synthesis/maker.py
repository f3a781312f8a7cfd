"""Maker: reads the proposals of a writer and keeps those that pass the gates.

A document belongs to the split of its first kept question. Questions whose path crosses splits are dropped, so that no
passage of a test path is in a path of another split. Nor is a gold passage of a held-out question in a path of train.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from coseek.core.errors import DataError, RunError
from coseek.core.files import Json, JsonObject
from coseek.data.dataset import Dataset
from coseek.data.question import Question, plain_name
from coseek.graders.generator import Generator
from coseek.lab.parts.synthesis import Split, SynthesisSettings
from coseek.lab.synthesis.gates import Solver, Verdicts, edge, model_verdicts, rule_verdicts
from coseek.lab.synthesis.graph import HopGraph, key_of
from coseek.lab.synthesis.proposals import MANY_FAULTS, Proposal, QuestionWriter
from coseek.retrieval.lexical.analyzer import has_words
from coseek.training.encoder.examples import document_of

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_BATCH = 64
"""Questions per batch of a solver."""
_TRIED = 20
"""Maximum number of questions that a solver tries, per wanted question."""

Tell = Callable[[str, int, int], None]
"""Reports progress: (what is done, number done, total)."""


@dataclass(frozen=True, slots=True)
class CandidateQuestion:
    """A proposal that has passed all gates so far."""

    proposal: Proposal
    verdicts: Verdicts


def owned_passages(dataset: Dataset, train: str | None = None) -> dict[str, Split]:
    """Gold passage of a set's own questions → the split of made questions about it: `train` for those of its split
    `train`, if it is trained on, `dev` for `dev`, `test` for all others. A passage of several splits is held out."""
    names: dict[str, Split] = {"dev": "dev"} if train is None else {"dev": "dev", train: "train"}
    splits = sorted(set(dataset.splits) - ({"train"} if train is None else set()), key=lambda split: split != train)
    gold_ids = ((split, question.gold_ids) for split in splits for question in dataset.questions(split))
    return {ident: names.get(split, "test") for split, idents in gold_ids for ident in idents}


class QuestionMaker:
    """Makes the questions of a corpus."""

    def __init__(
        self, graph: HopGraph, settings: SynthesisSettings, writer: QuestionWriter,
        reader: Generator | None = None, solver: Solver | None = None, owned: Mapping[str, Split] | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._settings, self._writer, self._reader = graph, settings, writer, reader
        self._solver = solver
        mix = settings.hop_mix
        self._quotas = {hops: round(settings.count * share / sum(mix)) for hops, share in enumerate(mix, start=1)}
        owned = owned or {}
        # An owned passage counts as a document, so that the other passages of a long file are free.
        self._documents = [f"own {each.id}" if each.id in owned else document_of(each) for each in graph.passages]
        self._owners: dict[str, Split] = {f"own {ident}": split for ident, split in owned.items()}
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
        for candidate in self._choose() if self._solver is None else islice(self._at_edge(self._solver), total):
            split = self._owners[self._documents[candidate.proposal.rows[0]]]
            made[split].append(self._question(f"s{self._settings.seed}-{split}-{len(made[split]):05}", candidate))
            tell("questions", sum(map(len, made.values())), total)
        for split, questions in made.items():
            random.Random(f"{self._settings.seed} order {split}").shuffle(questions)
        return {split: made[split] for split in SPLITS if made[split]}

    def _choose(self) -> Iterator[CandidateQuestion]:
        """The questions of two hops, which are rare, then those of one hop, which also replace missing ones."""
        missing = 0
        for hops, quota in reversed(self._quotas.items()):
            missing = quota and quota + missing
            for candidate in islice(filter(self._claim, self._passing_candidates(hops)), missing):
                missing -= 1
                yield candidate

    def _at_edge(self, solver: Solver) -> Iterator[CandidateQuestion]:
        """The questions that the solver answers sometimes, from batches with each number of hops in its share."""
        draws = {hops: self._passing_candidates(hops) for hops, quota in self._quotas.items() if quota}
        tried_count = 0
        while tried_count < _TRIED * self._settings.count:
            total = sum(map(self._quotas.__getitem__, draws))
            shares = {hops: max(1, round(_BATCH * self._quotas[hops] / total)) for hops in draws}
            candidates_by_hops = {hops: list(islice(draws[hops], count)) for hops, count in shares.items()}
            draws = {hops: draws[hops] for hops, count in shares.items() if len(candidates_by_hops[hops]) == count}
            batch = [candidate for candidates in candidates_by_hops.values() for candidate in candidates]
            if not batch:
                return
            tried_count += len(batch)
            rates = solver([self._question("", candidate) for candidate in batch])
            if all(rate is None for rate in rates):
                raise DataError(f"the solver failed in every try of {len(batch)} questions; try it with `coseek run`")
            for candidate, rate in zip(batch, rates, strict=True):
                verdict = {"edge": edge(rate, *self._settings.edge)}
                if self._passes(verdict) and self._claim(candidate):
                    yield replace(candidate, verdicts=candidate.verdicts | verdict)

    def _passing_candidates(self, hops: int) -> Iterator[CandidateQuestion]:
        """Candidates that pass the gates by rules and reader."""
        for batch in self._writer.propose(self._graph, hops, self._settings):
            yield from self._pass_reader(list(self._pass_rules(batch)))

    def _claim(self, candidate: CandidateQuestion) -> bool:
        """Keep a question, whose documents then belong to its split, unless they belong to several or its passages have
        enough."""
        rows = candidate.proposal.rows
        split = self._split_of(rows)
        if split is None:
            self.dropped["split: the path crosses splits, or is held out"] += 1
            return False
        if any(self._used[row] >= self._settings.reuse for row in rows):
            self.dropped["reuse: enough questions of this passage"] += 1
            return False
        self._owners |= dict.fromkeys((self._documents[row] for row in rows), split)
        self._used.update(rows)
        self._dealt[len(rows)][split] += 1
        return True

    def _pass_rules(self, proposals: Sequence[Proposal]) -> Iterator[CandidateQuestion]:
        """The new proposals that pass the gates by rules."""
        for proposal in proposals:
            verdicts = rule_verdicts(self._graph, proposal, self._settings.depth)
            if self._passes(verdicts):
                key = key_of(proposal.question)
                if key in self._asked:
                    self.dropped["duplicate: the same question again"] += 1
                else:
                    self._asked.add(key)
                    yield CandidateQuestion(proposal, verdicts)

    def _split_of(self, rows: Sequence[int]) -> Split | None:
        """The split of the path's documents, else the one that lacks most of its share; `None` for a path that crosses
        splits, or belongs to one without a share."""
        owners = {self._owners[document] for row in rows if (document := self._documents[row]) in self._owners}
        dev, test, dealt = self._settings.dev, self._settings.test, self._dealt[len(rows)]
        shares: dict[Split, float] = {"train": 1 - dev - test, "dev": dev, "test": test}
        splits = [split for split in SPLITS if shares[split]]
        if owners:
            return next(iter(owners.intersection(splits)), None) if len(owners) == 1 else None
        return max(splits, key=lambda split: shares[split] * (dealt.total() + 1) - dealt[split])

    def _passes(self, verdicts: Verdicts) -> bool:
        """Whether all gates are passed; counts the first failed one."""
        failed = next((f"{name}: {verdict.reason}" for name, verdict in verdicts.items() if not verdict.passed), None)
        self.dropped.update([failed] if failed else [])
        return failed is None

    def _pass_reader(self, batch: Sequence[CandidateQuestion]) -> list[CandidateQuestion]:
        """The candidates that pass the gates by the reader, if there is one."""
        if self._reader is None or not batch:
            return list(batch)
        questions, corpus = [self._question("", candidate) for candidate in batch], self._graph.corpus
        hits = self._graph.bm25.search([question.question for question in questions], self._settings.depth)
        retrieved = [[hit.passage for hit in hit_list] for hit_list in hits]
        paths = [[corpus[row] for row in candidate.proposal.rows] for candidate in batch]
        checks = model_verdicts(self._reader, questions, paths, retrieved)
        if len(batch) >= MANY_FAULTS and all(verdict.fault for verdicts in checks for verdict in verdicts.values()):
            raise RunError(
                f"the reader failed for all of {len(batch)} questions in a row; nothing is written, and the same "
                "command resumes from the replies in its cache"
            )
        judged_candidates: list[CandidateQuestion] = []
        for candidate, verdicts in zip(batch, checks, strict=True):
            by_model = {f"{name} (model)": verdict for name, verdict in verdicts.items()}
            judged_candidates.append(replace(candidate, verdicts=candidate.verdicts | by_model))
        return [candidate for candidate in judged_candidates if self._passes(candidate.verdicts)]

    def _question(self, ident: str, candidate: CandidateQuestion) -> Question:
        proposal, steps = candidate.proposal, path_of(self._graph, candidate.proposal)
        gates: JsonObject = {name: verdict.to_json() for name, verdict in candidate.verdicts.items()}
        path: JsonObject = {"path": [*steps]} if steps else {}
        meta: JsonObject = {"kind": "proposal", **path, "gates": gates}
        if ident:
            meta["negatives"] = list[Json](self._negatives(proposal, [str(step["question"]) for step in steps]))
        gold = tuple(self._graph.corpus[row].id for row in proposal.rows)
        return Question(ident or "q", proposal.question, (proposal.answer,), gold, len(gold), meta)

    def _negatives(self, proposal: Proposal, steps: Sequence[str]) -> Iterator[str]:
        """Top passages of searches with the question and its steps that neither are gold nor contain the answer."""
        graph, count = self._graph, self._settings.negatives
        excluded_ids = {graph.corpus[row].id for row in {*proposal.rows, *graph.holding(proposal.answer)}}
        ranked = graph.bm25.search([proposal.question, *steps], count + len(proposal.rows))
        ids = (hit.passage.id for hits in zip_longest(*ranked) for hit in hits if hit is not None)
        yield from islice((ident for ident in dict.fromkeys(ids) if ident not in excluded_ids), count)


def path_of(graph: HopGraph, proposal: Proposal) -> list[JsonObject]:
    """The steps of a proposal, in the form that `gold_path` reads. Empty unless each step has a question; of two
    questions the first must not contain the link, and the second must contain it and not the answer."""
    rows, steps, link = proposal.rows, proposal.steps, proposal.link
    if len(steps) != len(rows):
        return []
    if link and (has_words(steps[0], link) or not has_words(steps[1], link) or has_words(steps[1], proposal.answer)):
        return []
    title = graph.passages[rows[0]].title.strip()
    start = title if title in steps[0] else plain_name(title)
    names = (start, link, proposal.answer) if link else (start, proposal.answer)
    phrases = proposal.phrases or ("",) * len(rows)
    return [
        {
            "passage": graph.corpus[row].id, "from": names[number], "to": names[number + 1],
            "written": names[number + 1], "phrase": phrases[number], "back": False, "question": steps[number],
            "rest": (*steps, "")[number + 1],
        }
        for number, row in enumerate(rows)
    ]  # fmt: skip
