"""Question writer: a language model that puts a drafted question into fluent words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.data.passage import Passage
from coseek.models.text_model import Output, TextModel, generate_each
from coseek.models.written import visible

PROMPTS = Path(__file__).parent / "prompts"
_FIELDS = {"prompt": {"count", "passages", "draft", "answer", "start"}, "passage": {"number", "title", "text"}}
_MAX_TOKENS = 128
_MAX_WORDS = 300
"""Words of one passage that are shown."""


class QuestionPrompt(PromptFile):
    """Prompt of the writer."""

    prompt: str
    """`{count}`, `{passages}`, `{draft}`, `{answer}` and `{start}` are filled in."""
    passage: str
    """One passage; `{number}` from 1, `{title}` and `{text}` are filled in."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a question is written from."""

    question: str
    answer: str
    start: str
    """The name that the question must hold."""
    path: tuple[Passage, ...]


@dataclass(frozen=True)
class QuestionWriter:
    """A model with its prompt."""

    model: TextModel
    prompt: QuestionPrompt

    @classmethod
    def over(cls, model: TextModel, prompt: str = "question") -> "QuestionWriter":
        """A writer with a built-in prompt or a YAML file."""
        return cls(model, load_prompt(QuestionPrompt, prompt, Path(), _FIELDS, PROMPTS))

    def write(self, drafts: Sequence[Draft]) -> list[str | None]:
        """One question a draft, in order; `None` where the model failed or wrote nothing."""
        outputs = generate_each(self.model, [self._prompt(draft) for draft in drafts], _MAX_TOKENS)
        return [_question(output) for output in outputs]

    def _prompt(self, draft: Draft) -> str:
        shown = (
            fill_template(
                self.prompt.passage, number=str(number), title=one_line(passage.title),
                text=one_line(passage.text, _MAX_WORDS),
            )
            for number, passage in enumerate(draft.path, start=1)
        )  # fmt: skip
        return fill_template(
            self.prompt.prompt, count=str(len(draft.path)), passages="".join(shown).rstrip("\n"),
            draft=draft.question, answer=one_line(draft.answer), start=one_line(draft.start),
        )  # fmt: skip


def _question(output: Output) -> str | None:
    """The first line that holds something."""
    lines = visible(output).splitlines() if isinstance(output, str) else ()
    return next((line.strip() for line in lines if line.strip()), None)
