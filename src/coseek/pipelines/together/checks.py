"""Checks of co-training recipes, made before torch is imported and anything is written."""

from pathlib import Path
from typing import cast

from coseek.core.connections import is_url
from coseek.core.errors import DataError, ErrorList, SettingError
from coseek.core.plugins import find_plugin
from coseek.core.settings import Settings, make_settings
from coseek.graders.judge import is_world
from coseek.labels.maker import CONTRACT, PACKAGE, MakerModule, MakerRequirements
from coseek.labels.resources import GOLD, ORACLE
from coseek.measure.score import answers_itself
from coseek.models.model_folder import missing, model_path, shipped_models
from coseek.pipelines.agent_check import check_encoder, check_recipe
from coseek.pipelines.together_recipe import LabellingSettings, TogetherRecipe
from coseek.training.tracker import find_tracker


def check_together(recipe: TogetherRecipe) -> None:
    """Refuse missing files and settings that contradict each other; all mistakes in one error."""
    wrong = ErrorList()
    wrong.of(check_recipe, recipe.agent)
    wrong.of(check_labels, recipe)
    wrong.of(check_demonstrated, recipe)
    for name in recipe.retriever.track:
        wrong.of(find_tracker, name)
    if recipe.start.encoder is not None:
        wrong.of(check_encoder, recipe.start.encoder)
    wrong.refuse()


def check_demonstrated(recipe: TogetherRecipe) -> None:
    """Refuse to leave training questions for the rounds, which have no warm start and ask all of them."""
    warm = recipe.agent.warm_start
    if warm is not None and warm.demonstrated < 1:
        raise SettingError(
            f"agent.warm_start.demonstrated={warm.demonstrated:g}: the rounds ask the demonstrated questions, too; "
            "leave it out"
        )


def maker_module(method: str) -> MakerModule:
    """A method of `coseek label`."""
    return cast(MakerModule, find_plugin("method", PACKAGE, method, CONTRACT))


def terms_of(labels: LabellingSettings) -> MakerRequirements:
    """The requirements of the labels' method."""
    return maker_module(labels.method).terms(own_settings(labels))


def own_settings(labels: LabellingSettings) -> Settings:
    """The method's own settings; methods that roll out take `samples` from `labels.samples`."""
    module = maker_module(labels.method)
    own = make_settings(module.SETTINGS, labels.settings, f"labels.settings (labels.method={labels.method})")
    if not module.terms(own).rolls_out:
        return own
    if "samples" in labels.settings:
        raise SettingError("labels.samples says how many runs a question has; leave labels.settings.samples out")
    return own.model_copy(update={"samples": labels.samples})


def check_labels(recipe: TogetherRecipe) -> None:
    """Refuse labels that could not be made or trained on."""
    labels = recipe.labels
    method, terms = labels.method, terms_of(labels)
    wrong = ErrorList()
    if terms.scorer and labels.scorer is None:
        wrong.say(
            f"labels.method={method} needs somebody who scores passages; name with labels.scorer a model (a folder, a "
            "URL, a YAML file), oracle for laptop worlds, or gold for questions with gold passages"
        )
    if terms.likelihood and labels.likelihood is None:
        wrong.say(
            f"labels.method={method} needs a model that says how likely an answer is; name its folder with "
            "labels.likelihood"
        )
    if terms.answers and not answers_itself(recipe.agent.protocol):
        wrong.say(
            f"labels.method={method} asks whether the agent ends with the right answer, and an agent of the protocol "
            f"{recipe.agent.protocol} writes none; take labels.settings.{terms.answers}"
        )
    if recipe.retriever.loss.kind == "kl" and not terms.targets:
        wrong.say(
            f"retriever.loss.kind=kl learns from targets, and labels.method={method} gives none; take "
            "retriever.loss.kind=contrastive, or labels.method=replug"
        )
    wrong.of(_check_names, recipe)
    wrong.refuse()


def _check_names(recipe: TogetherRecipe) -> None:
    """Refuse a missing scorer or likelihood model."""
    labels, data = recipe.labels, recipe.agent.data
    if labels.scorer == ORACLE and data.world is None and not is_world(Path(data.folder or "")):
        raise SettingError(
            "labels.scorer: the oracle knows laptop worlds only; name a model (a folder, a URL, a YAML file), or gold "
            "for questions with gold passages"
        )
    for setting, name in (("scorer", labels.scorer), ("likelihood", labels.likelihood)):
        if name is None or name in (ORACLE, GOLD) or is_url(name):
            continue
        if not model_path(name).exists():
            raise DataError(missing("", name, f"labels.{setting}", shipped_models()))
