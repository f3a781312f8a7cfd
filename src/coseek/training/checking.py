"""Checking: what can be found wrong with an agent's recipe before anything is written."""

from pathlib import Path

from coseek.agents.judge import is_world
from coseek.agents.protocol import Protocol, load_protocol
from coseek.data.errors import DataError, SettingError, UnknownName, nearest
from coseek.models.laptop import check_shape
from coseek.retrieval.index import check_retriever, retriever_names
from coseek.rewards.reward import make_reward
from coseek.training.frozen import check_frozen
from coseek.training.recipe import AgentRecipe, DataSettings, Named, paths_of
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
    if recipe.data.index is None:
        check_retriever(recipe.data.retriever, recipe.data.retriever_settings)
    check_splits(recipe.data)
    if recipe.policy.folder is None:
        check_shape(recipe.policy.laptop)
    if recipe.data.imported is not None and not recipe.data.imported.sources:
        raise SettingError("setting 'data.imported.sources' is empty; name the files: data.imported.sources=[FILE]")
    if recipe.warm_start is None and recipe.learn == "demonstrations":
        raise SettingError("learn: demonstrations needs some; give the recipe a warm_start")
    if recipe.warm_start and recipe.warm_start.writer == "expert" and recipe.data.world is None:
        raise SettingError("the expert demonstrates in laptop worlds only; take warm_start.writer=rules for other data")


def check_paths(recipe: AgentRecipe) -> None:
    """Refuse a recipe that names what is not there, or what is something else."""
    for named in paths_of(recipe):
        if problem := problem_of(named):
            raise DataError(f"{problem}, which the recipe names as {named.setting}; check the path")


def problem_of(named: Named) -> str:
    """What is wrong with a path; empty when nothing is."""
    path = named.path
    if not path.exists():
        return f"there is no {path}"
    lacking = [kinds[0] for kinds in _inside(named) if not any(any(path.glob(kind)) for kind in kinds)]
    return f"{path} holds no {' and no '.join(lacking)}" if path.is_dir() and lacking else ""


def _inside(named: Named) -> tuple[tuple[str, ...], ...]:
    """Files that must be in a folder of this kind; of each row one."""
    if named.setting == "data.folder":
        return (("corpus.jsonl", "corpus.jsonl.gz"), ("questions.*.jsonl",))
    if named.setting == "frozen.judge.model" and is_world(str(named.path)):
        return ()
    if named.setting in ("data.retriever_settings.encoder", "frozen.generator.counted_by"):
        return (("*.json",),)
    model = (("config.json",), ("*.safetensors", "*.bin"))
    return {"data": (), "index": (("index.json",),), "model": model}[named.holds]


def check_splits(data: DataSettings) -> None:
    """Refuse a split that the data will not have, where that is known before they are made."""
    made: dict[str, int] | dict[str, float]
    if data.world is not None:
        made = {split: getattr(data.world, split) for split in ("train", "dev", "test")}
    elif data.imported is not None:
        made = data.imported.shares
    else:
        return  # `paths_of` names the files
    for setting in ("train", "dev", "test"):
        split = getattr(data, setting)
        if split not in made:
            hint = f"{nearest(split, made)} They have: {', '.join(made)}"
            raise SettingError(f"data.{setting}={split} is no split of these data{hint}")


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
