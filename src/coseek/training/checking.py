"""Checking: what can be found wrong with an agent's recipe before anything is written."""

from pathlib import Path

from coseek.agents.protocol import Protocol, load_protocol
from coseek.data.errors import DataError, SettingError, UnknownName
from coseek.data.hub import missing
from coseek.retrieval.index import retriever_names
from coseek.rewards.reward import make_reward
from coseek.training.frozen import check_frozen
from coseek.training.recipe import AgentRecipe, Named, paths_of
from coseek.training.stages import stages_of


def check_settings(recipe: AgentRecipe) -> None:
    """Refuse settings that do not go together. Looks for no file."""
    for learnt in (stage.recipe for stage in stages_of(recipe, Path())):
        check_frozen(learnt.frozen, make_reward(learnt.reward), learnt.data.world is not None)
        if learnt.select.naive_rag == "wrong" and learnt.frozen.generator is None:
            raise SettingError("select.naive_rag=wrong asks a frozen generator; name one with frozen.generator.model")
    taught(recipe)
    if recipe.data.retriever not in retriever_names():
        raise UnknownName("retriever", recipe.data.retriever, retriever_names())
    if recipe.data.imported is not None and not recipe.data.imported.sources:
        raise SettingError("setting 'data.imported.sources' is empty; name the files: data.imported.sources=[FILE]")
    if recipe.warm_start is None and recipe.learn == "demonstrations":
        raise SettingError("learn: demonstrations needs some; give the recipe a warm_start")
    if recipe.warm_start and recipe.warm_start.writer == "expert" and recipe.data.world is None:
        raise SettingError("the expert demonstrates in laptop worlds only; take warm_start.writer=rules for other data")


def check_paths(recipe: AgentRecipe) -> None:
    """Refuse a recipe that names what is not there."""
    for named in paths_of(recipe):
        if not named.path.exists():
            raise DataError(sentence_of(named))


def sentence_of(named: Named) -> str:
    """What is said of a path that is not there."""
    if named.holds == "model":
        return missing("", named.path, named.setting)
    known = " (docs/recipes.md says what makes it)" if named.setting in ("data.folder", "data.index") else ""
    return f"there is no {named.path}, which the recipe names as {named.setting}; check the path{known}"


def taught(recipe: AgentRecipe) -> list[Protocol]:
    """The agent's protocol, then every other one that it is shown; prompts are all that tells them apart."""
    also = recipe.warm_start.also if recipe.warm_start else {}
    own, *others = (load_protocol(name, recipe.wording) for name in (recipe.protocol, *also))
    for other in others:
        if other.wording.file.prompt == own.wording.file.prompt:
            raise SettingError(
                f"'{other.name}' in warm_start.also has the prompt of '{own.name}' in the wording '{recipe.wording}', "
                "and a policy could not tell them apart; leave it out, or give it a prompt of its own"
            )
    return [own, *others]
