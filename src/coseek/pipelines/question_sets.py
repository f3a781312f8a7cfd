"""The questions and retrievers of the columns of an agent's table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coseek.data.dataset import Dataset, draw
from coseek.data.question import Question
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.data_folder import own_questions
from coseek.retrieval.retriever import Retriever


@dataclass(frozen=True)
class QuestionSet:
    """The questions and the retriever of one column of the table."""

    name: str
    questions: tuple[Question, ...]
    retriever: Retriever


def question_sets(
    recipe: AgentRecipe, folders: Mapping[str, Path], retrievers: Mapping[str, Retriever]
) -> list[QuestionSet]:
    """The columns of the table. `folders` and `retrievers` are those of the sets `data` and, if any, `unseen`."""
    data, table = recipe.data, recipe.table
    named = [("dev", "data", data.dev)] if table.dev else []
    named += [("test", "data", data.test)]
    named += [("unseen", "unseen", data.test)] if data.unseen is not None else []
    asked = [(name, where, Dataset(folders[where]).questions(split)) for name, where, split in named]
    if data.folder is not None:
        own = own_questions(data.folder, folders["data"], data.train)
        asked += [(name, "data", questions) for name, questions in own.items()]
    return [
        QuestionSet(name, tuple(draw(questions, table.questions, table.seed, table.per_set)), retrievers[where])
        for name, where, questions in asked
    ]
