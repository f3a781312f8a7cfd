"""Simulated: a language model plays the search engine, with a scheduled share of useless answers.

ZeroSearch (Sun et al. 2025, arXiv 2505.04588): an agent learns to search without a search engine, on documents that get
worse during training. The trainer calls `progress`.
"""

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import Field

from coseek.core.errors import ModelError, RetrieverError
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, count_words, fill_template, load_prompt, one_line
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import load_questions
from coseek.models.text_model import TextModel, TextModelSettings
from coseek.models.written import without_reasoning
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.ranking import rank_hits
from coseek.retrieval.retriever import Shortfall
from coseek.retrieval.retrievers.noisy import Curriculum, CurriculumSettings
from coseek.retrieval.views import View, find_view, render_view

_HEADING = re.compile(
    # Possessive (`*+`) to avoid backtracking: the model's text may have any number of blanks.
    r"^[ \t]*+[*#]*+[ \t]*+doc(?:ument)?[ \t]*+\[?[0-9]{1,4}\]?[ \t]*+[:.)\-–][ \t*]*+(.*)$",
    re.I | re.M,
)
_BRACKETS = re.compile("([<>])")
_TAG_START = re.compile("</?[a-zA-Z]")


class SimulatedPrompt(PromptFile):
    """The prompts of the model."""

    useful: str
    """The prompt for a useful answer; `{query}`, `{count}` and `{hint}` are filled in."""
    noisy: str
    """The prompt for a useless answer; the same fields."""
    hint: str = ""
    """The value of `{hint}` if the answer is known; `{question}` and `{answer}` are filled in."""


SIMULATED_FIELDS = {name: {"query", "count", "hint"} for name in ("useful", "noisy")} | {"hint": {"question", "answer"}}


class SimulatedSettings(CurriculumSettings):
    """The model, its prompts and its noise."""

    model: str
    """The language model that writes the documents: a shipped one, a folder, a URL or a YAML file."""
    local: TextModelSettings = TextModelSettings()
    """Limits and placement of a model folder."""
    questions: str | None = None
    """A questions file. The prompt then has the question and its first gold answer, as in the paper, so that the model
    can write about facts that it does not know."""
    query_words: int = Field(default=300, ge=1)
    """The view is truncated to this many words, but never the query itself."""
    document_tokens: int = Field(default=150, ge=1)
    """Tokens that the model may write per document."""
    prompt: str = "simulated"
    """The name of a built-in prompt, or a YAML file with `useful`, `noisy` and `hint`."""
    view: View = "query"
    """The view of a search turn for the model."""


class SimulatedRetriever(Curriculum):
    """A retriever whose passages a model writes. Scores are 1, 1/2, 1/3, … in the order of writing."""

    name = "simulated"
    corpus: Corpus | None = None

    def __init__(
        self, settings: SimulatedSettings, model: TextModel, prompt: SimulatedPrompt, answers: Mapping[str, str]
    ) -> None:
        """`answers` maps questions to the answer in the hint."""
        super().__init__(settings)
        self.settings = settings
        self.short = 0
        """Queries with fewer parsed documents than asked for, since the retriever was opened."""
        self._model = model
        self._prompt = prompt
        self._answers = answers

    @property
    def reads(self) -> ContextFields:
        """The fields of its view, and the question of the hint."""
        return find_view(self.settings.view).fields | ContextFields(question=bool(self._answers))

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"model", "local", "prompt", "questions"})
        prompt = self._prompt.model_dump_json(exclude={"about"})
        answers = json.dumps(dict(self._answers), ensure_ascii=False, sort_keys=True)
        return digest_of(self.name, settings, prompt, answers, self._model.identity, str(self._stage))

    def seen(self, query: QueryLike) -> str:
        """The untruncated view, with the question and answer if known."""
        return json.dumps(
            [render_view(self.settings.view, query), *self._question_and_answer(query)], ensure_ascii=False
        )

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        too_few = Shortfall(self.short, self.stats.searches, "searches were answered with too few documents")
        return (*super().shortfalls, too_few)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        if not queries:
            return []
        noisy = self._are_noisy(self.seen(query) for query in queries)
        prompts = [self._fill_prompt(query, k, is_noisy) for query, is_noisy in zip(queries, noisy, strict=True)]
        try:
            answers = self._model.write(prompts, self.settings.document_tokens * k)
        except ModelError as error:
            raise RetrieverError(f"the model that plays the search engine failed: {error}") from error
        lists = [parse_documents(answer, k) for answer in answers]
        self.stats.searches += len(queries)
        self.stats.noisy += sum(noisy)
        self.short += sum(len(passages) < k for passages in lists)
        return [rank_hits(passages) for passages in lists]

    def _fill_prompt(self, query: QueryLike, k: int, noisy: bool) -> str:
        text = render_view(self.settings.view, query, limit=self.settings.query_words, count=count_words)
        return simulation_prompt(self._prompt, text, k, noisy, self._question_and_answer(query))

    def _question_and_answer(self, query: QueryLike) -> tuple[()] | tuple[str, str]:
        """The question and its answer, each on one line; empty if no answer is known."""
        question = Query.of(query).question
        if question not in self._answers:
            return ()
        return one_line(question), one_line(self._answers[question])


def simulation_prompt(
    prompt: SimulatedPrompt, query: str, count: int, noisy: bool, hint_fields: tuple[()] | tuple[str, str]
) -> str:
    """The prompt for `count` documents, useful or noisy. `hint_fields`: the question and its answer, or empty."""
    hint = ""
    if hint_fields:
        hint = fill_template(prompt.hint, question=hint_fields[0], answer=hint_fields[1]).rstrip("\n")
    return fill_template(prompt.noisy if noisy else prompt.useful, query=one_line(query), count=str(count), hint=hint)


def parse_documents(answer: str, count: int) -> list[Passage]:
    """Parse at most `count` passages, one per `Document n: title` heading. Any text is accepted.

    Reasoning is skipped. A text without headings is one passage. Text before the first heading, documents without
    words and repeated documents are dropped. Tags are removed, so that the model cannot write tags of the agent's
    protocol. The id is a digest of title and text, the same in every run.
    """
    text = without_tags(without_reasoning(answer))
    headings = list(_HEADING.finditer(text))
    if not headings:
        pieces = [("", text)]
    else:
        ends = [*(heading.start() for heading in headings[1:]), len(text)]
        pieces = [(heading.group(1), text[heading.end() : end]) for heading, end in zip(headings, ends, strict=True)]
    passages: dict[str, Passage] = {}
    for title, body in pieces:
        title, body = " ".join(title.split()).strip("*# "), " ".join(body.split())
        if not body:  # the document is on the heading's own line
            title, body = "", title
        if body:
            ident = f"simulated-{digest_of(title, body)[:16]}"
            passages.setdefault(ident, Passage(ident, title, body))
    return list(passages.values())[:count]


def without_tags(text: str) -> str:
    """Remove `<tags>`, including those that a removal creates. Runs in linear time."""
    result: list[str] = []
    open_positions: list[int] = []  # positions of unclosed `<` in `result`
    for piece in _BRACKETS.split(text):
        result.append(piece)
        if piece == "<":
            open_positions.append(len(result) - 1)
        elif piece == ">" and open_positions:
            if _TAG_START.match("".join(result[open_positions[-1] :])):
                del result[open_positions.pop() :]
            else:
                open_positions.clear()  # no tag spans this `>`
    return "".join(result)


SETTINGS = SimulatedSettings


def open(settings: SimulatedSettings, opening: OpenContext) -> SimulatedRetriever:
    """Open the model, the prompt and the questions file."""
    prompt = load_prompt(SimulatedPrompt, settings.prompt, opening.folder, SIMULATED_FIELDS, PROMPTS)
    questions = load_questions(opening.path(settings.questions)) if settings.questions else []
    answers = {question.searched: question.answers[0] for question in questions if question.answers}
    return SimulatedRetriever(settings, opening.open_model(settings.model, settings.local), prompt, answers)
