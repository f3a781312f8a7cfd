"""Start: writes the policy that an agent's training begins from."""

from collections.abc import Callable, Sequence
from pathlib import Path

from coseek.core.progress import Progress
from coseek.data.dataset import Dataset
from coseek.models.laptop import make_policy
from coseek.models.model_folder import model_path
from coseek.models.new_tokens import add_tokens, new_tags, spelt_words
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.demonstrations import texts_of


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
    source, tags = model_path(policy.folder), marks if policy.marks else ()
    words = spelt_words(source, texts_of(recipe, open_data()), policy.words) if policy.words and taught else []
    if policy.words and not taught:
        progress.say("no words are added to the tokenizer (policy.words): without a warm start nothing trains them")
    if not taught and (untrained := new_tags(source, tags)):
        progress.warn(
            f"{', '.join(untrained)} become tokens with untrained vectors, and there is no warm start; if "
            f"{policy.folder} writes these tags already, set policy.marks=false"
        )
    add_tokens(source, tags, words, folder, seed)
