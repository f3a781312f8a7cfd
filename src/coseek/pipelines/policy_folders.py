"""Policy folders of an agent's training: the one it begins from, and in each a card, with figures once measured."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coseek.agents.agent_card import CARD, AgentCard
from coseek.agents.protocol import Protocol, known_protocol
from coseek.core.errors import DataError
from coseek.core.files import atomic_folder
from coseek.core.fingerprint import file_digest
from coseek.core.progress import Progress
from coseek.data.dataset import Dataset
from coseek.hub.card import inert
from coseek.measure.table import Table
from coseek.models.laptop import make_policy
from coseek.models.model_folder import model_path
from coseek.models.new_tokens import add_tokens, new_tags, spelt_words
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.demonstrations import texts_of
from coseek.pipelines.run_record import TrainingRun
from coseek.pipelines.stages import stages_of


def write_start(
    recipe: AgentRecipe, marks: Sequence[str], open_data: Callable[[], Dataset], folder: Path, progress: Progress
) -> None:
    """Write an untrained laptop policy with its tokenizer, or the recipe's model with its new tokens.

    Words are those of the warm start; without one none are added, since nothing would train their vectors before the
    first rollout, and a policy that was trained before would read them worse than their pieces.
    """
    policy, seed, taught = recipe.policy, recipe.seed, recipe.warm_start is not None
    if policy.folder is None:
        make_policy(policy.laptop, texts_of(recipe, open_data()), marks, folder, seed)
        return
    for warning in policy_warnings(recipe):
        progress.warn(warning)
    source, tags = model_path(policy.folder), marks if policy.add_tag_tokens else ()
    words = (
        spelt_words(source, texts_of(recipe, open_data()), policy.add_word_tokens)
        if policy.add_word_tokens and taught
        else []
    )
    if policy.add_word_tokens and not taught:
        progress.say(
            "no words are added to the tokenizer (policy.add_word_tokens): without a warm start nothing trains them"
        )
    if not taught and (untrained := new_tags(source, tags)):
        progress.warn(
            f"{', '.join(untrained)} become tokens with untrained vectors, and there is no warm start; if "
            f"{policy.folder} writes these tags already, set policy.add_tag_tokens=false"
        )
    add_tokens(source, tags, words, folder, seed)


def policy_warnings(recipe: AgentRecipe) -> list[str]:
    """Why the recipe's model may write no turn of the valid form: its chat template, or its former training."""
    if recipe.policy.folder is None or not (folder := model_path(recipe.policy.folder)).is_dir():
        return []
    protocol = recipe.load_protocol(run_files=False)
    warnings = [] if recipe.warm_start is not None else [_former_protocol(protocol, folder)]
    with suppress(DataError):  # of a tokenizer that cannot be opened, which other checks name
        warnings.append(protocol.template.unread_opening(HfTokenizer.load(folder)))
    return list(filter(None, warnings))


def _former_protocol(protocol: Protocol, folder: Path) -> str:
    """The protocol that a model was trained in, if its tags or their order are others than the recipe's."""
    was = AgentCard.read(folder).protocol
    former = known_protocol(was) if (folder / CARD).is_file() else None
    tags, order = protocol.grammar.special_tokens, protocol.grammar.order
    if former is None or (former.grammar.special_tokens, former.grammar.order) == (tags, order):
        return ""
    return (
        f"{folder} was trained in the protocol {was}, and the recipe's is {protocol.name}, whose tags nothing teaches "
        f"it before the first rollout; set protocol={was}, or give the recipe a warm_start"
    )


HEALTHY = "-healthy"
"""Ending of a policy that was saved before the monitor stopped the training."""
LEARNT = {"rl": "reinforcement learning", "rejection": "rejection sampling", "demonstrations": "nothing more"}
ABOUT = "A language model that searches before it answers, trained by coseek."
LIMITS = (
    "The figures hold for these questions, this retriever and these budgets; other text, languages and retrievers were "
    "not measured. It speaks the protocol above and follows no other instructions. Answers may be wrong, also where "
    "passages say otherwise; nothing was done against harmful text."
)


def write_policy_card(
    training: TrainingRun[AgentRecipe], name: str, folder: Path, data: Path, table: Table | None = None, row: str = ""
) -> None:
    """Write the card of the policy `name` into its folder; `row` is its row of the table of figures.

    A folder outside of the training's is left as it is: it is what the recipe begins with.
    """
    recipe = training.recipe
    if not folder.resolve().is_relative_to(training.folder.resolve()):
        return
    start = recipe.policy.folder
    splits = (recipe.data.train, recipe.data.dev, recipe.data.test)
    files = [path for split in splits if (path := data / f"questions.{split}.jsonl").is_file()]
    digests = {path.name: file_digest(path) for path in files}
    searched = recipe.data.index or recipe.data.retriever
    engine = recipe.data.training_retriever
    facts = {
        "recipe": recipe.about,
        "learnt by": " → ".join(_history_of(recipe, training.folder, name)) or "nothing: an untrained model",
        "protocol": f"{recipe.protocol}, prompt template {recipe.prompt_template}",
        "retriever": f"{searched}, in training {engine.get('retriever')}" if engine else searched,
    }
    card = training.model_card("policy", "agent recipe.yaml", name, ABOUT, LIMITS, start, facts, digests, table)
    if row and card.figures:
        card = replace(card, figures=f"This model is the row {inert(row)}.\n\n{card.figures}")
    card.write(folder)


def _history_of(recipe: AgentRecipe, folder: Path, name: str) -> Iterator[str]:
    """What a policy has gone through, in order."""
    if name == "start":
        return
    if recipe.warm_start is not None:
        yield f"supervised training on demonstrations ({recipe.warm_start.demonstrator})"
    if name == "warm":
        return
    for stage in stages_of(recipe, folder):
        of_stage = f" (stage {stage.name})" if stage.name else ""
        early = " until the monitor stopped it" if name == stage.trained_policy + HEALTHY else ""
        yield f"{LEARNT[stage.recipe.learn]}{of_stage}{early}"
        if stage.trained_policy == name.removesuffix(HEALTHY):
            return


def take_weights(source: Path, target: Path, complete: Callable[[Path], None]) -> None:
    """Copy the weights that a backend's own loop saved into a policy's folder; `complete` adds tokenizer and cards."""
    if not any(source.glob("*.safetensors")):
        raise DataError(f"{source} holds no weights; it must be of a training by this recipe's rl.backend")

    def fill(copy: Path) -> None:
        for path in source.iterdir():
            if path.suffix in (".safetensors", ".json") and "token" not in path.name:
                shutil.copy2(path, copy / path.name)
        complete(copy)

    atomic_folder(target, fill)
