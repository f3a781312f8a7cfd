"""Settings of the final measurement of an agent's training. Does not import torch."""

from pydantic import Field, field_validator

from coseek.core.errors import SettingError, nearest
from coseek.core.settings import Settings
from coseek.measure.score import METRICS

RULES = "rules"
"""Among the baselines: the rule-based agent, which has no protocol of its own."""


class TableSettings(Settings):
    """The final measurement."""

    questions: int | None = Field(default=800, ge=1)
    """Questions of each column, at most; a draw with every data set in its share. null: all."""
    per_set: int | None = Field(default=None, ge=1)
    """Questions of each data set, at most. A small set is then measured as well as a large one: of 2,000 questions
    drawn by share, 5 are Bamboogle's. null: all."""
    dev: bool = True
    """Whether the dev split stands in the table as well. Without it the table takes a third less time."""
    sampled: bool = True
    """Whether the agent before and after training is also measured as it writes at temperature 1."""
    dev_questions: int | None = Field(default=200, ge=1)
    """Questions of the dev split for the gate and the learning curve, at most. null: all."""
    dev_per_set: int | None = Field(default=None, ge=1)
    """The same for each data set."""
    rag_passages: int = Field(default=4, ge=1)
    """Passages of naive RAG."""
    wide_rag: int | None = Field(default=None, ge=1)
    """Passages of a second naive RAG where the generator answers: as many as the agent's searches find together
    (s3: 9). None: only the baseline's."""
    baselines: tuple[str, ...] = ()
    """Protocols of further rows, for models that follow instructions without training: `direct`, `cot`, `rag`,
    `rag-rerank`, `ircot`, `search-o1` …; and `rules`, the agent without a model."""
    baseline_model: str | None = None
    """The model of these rows, a folder or a shipped model by name; null: the one that the policy starts from."""
    metrics: tuple[str, ...] | None = None
    """Metrics of the headline, such as `[cover_em, f1]`; null: the one nearest to the reward."""
    seed: int = 0
    """Seed of the drawn questions, of the rows at temperature 1, and of the bootstrap."""

    @field_validator("metrics")
    @classmethod
    def _known(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in METRICS:
                raise SettingError(
                    f"table.metrics: unknown metric {name!r}{nearest(name, METRICS)} Known: {', '.join(METRICS)}"
                )
        if names == ():
            raise SettingError("table.metrics is empty; name a metric, or null for the one nearest to the reward")
        return names
