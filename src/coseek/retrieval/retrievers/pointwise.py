"""Pointwise: reorders the candidates of any retriever with a language model that judges one passage at a time.

The model writes a score, or reasons and writes true or false (in the manner of Rank1, which ranks by the probability
of `true`; models behind a text interface give the word alone). A passage whose judgement cannot be read keeps its
place: it is counted, and never ranked as if it were of no use.
"""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from coseek.core.prompt_file import PromptFile, fill_template, one_line
from coseek.data.passage import Hit
from coseek.models.judge_text import read_verdict, unfenced
from coseek.models.text_model import CutText, whole_words
from coseek.models.written import repeatable
from coseek.retrieval.llm import ModelRetriever, ModelRetrieverSettings
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.ranking import rank_hits

_SCORE = re.compile(r"(?:[A-Za-z ]{1,40}:\s*+)?([0-9]{1,3})(?:\s?/\s?100)?\.?")
HIGHEST = 100


class PointwisePrompt(PromptFile):
    """The prompt of a model that judges one passage, and the form of its answer."""

    prompt: str
    """`{query}`, `{title}` and `{text}` are filled in."""
    form: Literal["score", "verdict"] = "score"
    """A whole number from 0 to 100, or true or false (yes or no)."""


class PointwiseSettings(ModelRetrieverSettings):
    """The retriever of the candidates, and the prompts of the model that judges them."""

    depth: int = Field(default=20, ge=1)
    """Candidates per query, or `k` if that is more."""
    passage_words: int = Field(default=300, ge=1)
    """A passage is truncated to this many words."""
    max_tokens: int = Field(default=16, ge=1)
    """Tokens that the model may write: some hundreds for one that reasons first."""
    prompt: str = "pointwise"
    """`pointwise`, `rank1`, or a YAML file with `prompt` and `form`."""


class PointwiseReranker(ModelRetriever):
    """A retriever ranked passage by passage. Scores are 1, 1/2, 1/3, …; ties keep the candidates' order."""

    name = "pointwise"
    PROMPT, FIELDS = PointwisePrompt, {"prompt": {"query", "title", "text"}}
    PROBLEM = "judgements could not be read, or were cut at max_tokens"
    settings: PointwiseSettings
    _prompt: PointwisePrompt

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        candidates = self.over.search(queries, max(k, self.settings.depth))
        query_hits = zip(self._rendered(queries), candidates, strict=True)
        prompts = [self._fill_prompt(query, hit) for query, hits in query_hits for hit in hits]
        outputs = iter(self._generate(prompts, self.settings.max_tokens))
        return [self._rank(hits, [self._parse_score(next(outputs)) for _ in hits])[:k] for hits in candidates]

    def _fill_prompt(self, query: str, hit: Hit) -> str:
        words = self.settings.passage_words
        title, text = (repeatable(one_line(field, words)) for field in (hit.passage.title, hit.passage.text))
        return fill_template(self._prompt.prompt, query=one_line(query), title=title, text=text)

    def _parse_score(self, output: str) -> float | None:
        if self._prompt.form == "verdict":
            is_relevant = read_verdict(whole_words(output) or output, plain=("true", "false", "yes", "no"))
            return None if is_relevant is None else float(is_relevant)
        match = None if isinstance(output, CutText) else _SCORE.fullmatch(unfenced(output).replace("*", "").strip())
        return None if match is None or int(match[1]) > HIGHEST else float(match[1])

    def _rank(self, hits: Sequence[Hit], scores: Sequence[float | None]) -> list[Hit]:
        """Sort the hits by score; those without a score keep their ranks."""
        self.stats.outputs += len(scores)
        self.stats.unreadable += sum(score is None for score in scores)
        scored_hits = [(score, hit) for score, hit in zip(scores, hits, strict=True) if score is not None]
        best = iter(sorted(scored_hits, key=lambda pair: -pair[0]))
        order = [hit if score is None else next(best)[1] for score, hit in zip(scores, hits, strict=True)]
        return rank_hits([hit.passage for hit in order])


SETTINGS = PointwiseSettings
open = PointwiseReranker.open
