"""Simulated: a language model plays the search engine, and does so badly as often as it is told to.

    retriever: simulated
    model: models/engine
    noise: {start: 0.0, end: 0.5}

ZeroSearch (Sun et al. 2025, arXiv 2505.04588): an agent learns to search without a search engine, and the documents get
worse while it learns. The trainer says how far it is with `progress`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from coseek.core.errors import ModelError, RetrieverError
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, count_words, fill_template, load_prompt, one_line
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import load_questions
from coseek.models.text_model import TextModel
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.llm.noise import NoiseSchedule, TrainingProgress
from coseek.retrieval.llm.simulated_documents import parse_documents
from coseek.retrieval.query import Query, QueryLike, as_queries
from coseek.retrieval.views import View, render_view


class SimulatedPrompt(PromptFile):
    """What the model is told."""

    useful: str
    """When it is to help; `{query}`, `{count}` and `{hint}` are filled in."""
    noisy: str
    """When it is to be of no use; the same fields."""
    hint: str = ""
    """Stands for `{hint}` where the answer is known; `{question}` and `{answer}` are filled in."""


_FIELDS = {name: {"query", "count", "hint"} for name in ("useful", "noisy")} | {"hint": {"question", "answer"}}


class SimulatedSettings(Settings):
    """Which model plays, and how well."""

    model: str
    """The language model that writes the documents."""
    noise: NoiseSchedule = NoiseSchedule()
    """How many searches are answered with noise, and from when on."""
    step: int = Field(default=0, ge=0)
    """How far training is when the retriever is opened; the trainer goes on from there with `progress`."""
    steps: int = Field(default=1, ge=1)
    """Steps in all."""
    questions: str | None = None
    """A questions file. The model is then told the question of the run and its first gold answer, as in the paper: it
    writes documents about things that it does not know."""
    query_words: int = Field(default=300, ge=1)
    """The view is cut to this many words, never the query itself."""
    document_tokens: int = Field(default=150, ge=1)
    """Tokens that the model may write for each document."""
    prompt: str = "simulated"
    """One of our prompts, or a YAML file with your own: `useful`, `noisy` and `hint`."""
    view: View = "query"
    """What the model is shown of a search turn."""


@dataclass
class SimulatedStats:
    """What the model wrote since the retriever was opened."""

    searches: int = 0
    """Queries answered."""
    noisy: int = 0
    """Those of them that were answered with noise."""
    short: int = 0
    """Those for which fewer documents could be read than were asked for."""


class Simulated:
    """A retriever that makes its passages up. Scores are 1, 1/2, 1/3, … in the order of writing."""

    name = "simulated"
    corpus: Corpus | None = None

    def __init__(
        self, settings: SimulatedSettings, model: TextModel, prompt: SimulatedPrompt, answers: Mapping[str, str]
    ) -> None:
        """`answers`: question → an answer, for the hint."""
        self.settings = settings
        self.stats = SimulatedStats()
        self._model = model
        self._prompt = prompt
        self._answers = answers
        self._at = TrainingProgress(settings.step, settings.steps)

    def progress(self, step: int, steps: int) -> None:
        """Say that training is at `step` of `steps`: from now on the noise is that of this step."""
        self._at = TrainingProgress(step, steps)

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"model", "prompt", "questions", "step", "steps"})
        prompt = self._prompt.model_dump_json(exclude={"about"})
        answers = json.dumps(dict(self._answers), ensure_ascii=False, sort_keys=True)
        return digest_of(self.name, settings, prompt, answers, self._model.identity, str(self._at))

    def seen(self, query: QueryLike) -> str:
        """What the model is shown: the view before it is cut, and the question where its answer is known."""
        return json.dumps([render_view(self.settings.view, query), *self._known(query)], ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        if not queries:
            return []
        noisy = [self.settings.noise.strikes(self.seen(query), self._at) for query in queries]
        prompts = [self._asked(query, k, bad) for query, bad in zip(queries, noisy, strict=True)]
        try:
            answers = self._model.write(prompts, self.settings.document_tokens * k)
        except ModelError as error:
            raise RetrieverError(f"the model that plays the search engine failed: {error}") from error
        found = [parse_documents(answer, k) for answer in answers]
        self.stats.searches += len(queries)
        self.stats.noisy += sum(noisy)
        self.stats.short += sum(len(passages) < k for passages in found)
        return [_ranked(passages) for passages in found]

    def _asked(self, query: QueryLike, k: int, noisy: bool) -> str:
        known = self._known(query)
        hint = fill_template(self._prompt.hint, question=known[0], answer=known[1]).rstrip("\n") if known else ""
        template = self._prompt.noisy if noisy else self._prompt.useful
        shown = render_view(self.settings.view, query, limit=self.settings.query_words, count=count_words)
        return fill_template(template, query=one_line(shown), count=str(k), hint=hint)

    def _known(self, query: QueryLike) -> tuple[()] | tuple[str, str]:
        """The question and its answer, each on one line; empty when no answer is known."""
        question = Query.of(query).question
        if question not in self._answers:
            return ()
        return one_line(question), one_line(self._answers[question])


def _ranked(passages: Sequence[Passage]) -> list[Hit]:
    return [Hit(passage, 1.0 / rank) for rank, passage in enumerate(passages, start=1)]


SETTINGS = SimulatedSettings


def open(settings: SimulatedSettings, opening: OpenContext) -> Simulated:
    """Open the model, the prompt, and the questions whose answers it is told."""
    prompt = load_prompt(SimulatedPrompt, settings.prompt, opening.folder, _FIELDS, PROMPTS)
    questions = load_questions(opening.path(settings.questions)) if settings.questions else []
    answers = {question.question: question.answers[0] for question in questions if question.answers}
    return Simulated(settings, opening.writer(settings.model), prompt, answers)
