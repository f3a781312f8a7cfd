"""Factory of generators and judges, by name: a shipped model, a folder, a URL, a YAML file, or a laptop world."""

from dataclasses import replace
from pathlib import Path

from coseek.core.cache import TextCache
from coseek.core.errors import SettingError
from coseek.graders.generator import Generator, GeneratorSettings, load_generator_prompt
from coseek.graders.judge import Judge, JudgeSettings, ModelJudge, OracleJudge, is_world, load_judge_prompt
from coseek.models.local_text import TextModelSettings, open_text_model
from coseek.models.remote_text import RemoteTextModel
from coseek.models.shipped import model_path
from coseek.models.text_model import CachedTextModel, TextModel
from coseek.models.tokenizer import HfTokenizer
from coseek.world.oracle import Oracle


def open_generator(
    settings: GeneratorSettings, cache: Path | None = None, writing: TextModelSettings | None = None
) -> Generator:
    """The generator. Raises `SettingError` for a server that samples: the same passages must give the same answer."""
    prompt = load_generator_prompt(settings)
    tokenizer = HfTokenizer.load(model_path(settings.counted_by)) if settings.counted_by else None
    return Generator(open_frozen_model(settings.model, cache, writing), prompt, settings, tokenizer)


def open_judge(settings: JudgeSettings, cache: Path | None = None, writing: TextModelSettings | None = None) -> Judge:
    """The judge: a model, or the oracle if the name is the folder of a laptop world."""
    if is_world(settings.model):
        return OracleJudge(Oracle.load(Path(settings.model).expanduser()), settings.model)
    prompt = load_judge_prompt(settings)
    return ModelJudge(open_frozen_model(settings.model, cache, writing), prompt, settings)


def open_frozen_model(name: str, cache: Path | None, writing: TextModelSettings | None = None) -> TextModel:
    """A model at temperature 0, with its outputs cached in `cache` if given."""
    model = open_text_model(name, writing)
    temperature = getattr(model, "temperature", 0.0)
    if temperature != 0:
        raise SettingError(
            f"{name} samples at temperature {temperature}; a generator or judge is frozen: set temperature: 0"
        )
    if isinstance(model, RemoteTextModel):  # it caches each text by itself, as soon as it arrives
        return model if cache is None or model.store is not None else replace(model, store=TextCache(cache))
    return model if cache is None else CachedTextModel(model, TextCache(cache))
