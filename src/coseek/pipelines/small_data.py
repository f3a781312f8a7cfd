"""A small part of imported data, for a dry run: what the training would see of it is seen there, too."""

from itertools import islice
from pathlib import Path

from coseek.core.files import JsonObject
from coseek.data.dataset import Dataset, draw
from coseek.data.passage import Corpus
from coseek.data.question import Question, gold_path, save_questions
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.data_folder import make_data

QUESTIONS = {"train": 24, "dev": 4, "test": 4}
"""Questions of each split."""
OTHERS = 200
"""Passages beside the gold ones of these questions."""


def small_data(recipe: AgentRecipe, folder: Path) -> Path | None:
    """Import the recipe's data and write a small part of them; `None` where the recipe imports nothing, its files are
    not there, or its judge is a laptop world's."""
    data = recipe.data
    if data.imported is None or recipe.graders.judge is not None:
        return None
    if not all(Path(source).exists() for source in data.imported.sources):
        return None
    make_data(data, folder / "imported", lambda said: None)
    whole = Dataset(folder / "imported")
    kept: dict[str, list[Question]] = {}
    for usual, count in QUESTIONS.items():
        found = whole.questions(split := str(getattr(data, usual)))
        # Without a path a question can be neither demonstrated by the expert nor renamed.
        with_path = [one for one in found if gold_path(one)]
        kept[split] = draw(with_path or found, count, recipe.seed)
    corpus = whole.corpus
    gold = dict.fromkeys(ident for questions in kept.values() for one in questions for ident in one.gold_ids)
    others = islice((passage for passage in corpus if passage.id not in gold), OTHERS)
    place = folder / "cut"
    Corpus([*map(corpus.by_id, filter(corpus.has, gold)), *others]).save(place / "corpus.jsonl")
    for split, questions in kept.items():
        save_questions(place / f"questions.{split}.jsonl", questions)
    return place


def settings_of(recipe: AgentRecipe, place: Path) -> JsonObject:
    """The data settings of a recipe over its small part."""
    data = recipe.data
    return {"world": None, "folder": str(place), "train": data.train, "dev": data.dev, "test": data.test}
