"""Agent options: the agent and the limits of `ask`, `serve agent` and `serve mcp`."""

from collections.abc import Sequence

from coseek.agents.factory import CONTRACT, SCRIPTED, AgentSettings, is_scripted, limits_for, settings_for
from coseek.agents.limits import Limits
from coseek.agents.sources import CITED
from coseek.cli.terminal import assignments
from coseek.core.errors import SettingError
from coseek.core.plugins import find_plugin
from coseek.core.settings import dump_settings, make_settings


def agent_with_limits(
    name: str,
    protocol: str | None,
    prompt_template: str | None,
    tokenizer: str | None,
    device: str | None,
    temperature: float | None = None,
    limits: Sequence[str] = (),
) -> tuple[AgentSettings, Limits]:
    """Return an agent's settings, and its default limits with the typed `NAME=VALUE` or `limits.NAME=VALUE` applied.

    Raises `SettingError` for a scripted agent that needs more than the text of a question.
    """
    settings = settings_for(name, protocol, prompt_template, tokenizer, device, untrained=CITED)
    if temperature is not None:
        settings = settings.model_copy(update={"temperature": temperature})
    script = is_scripted(settings.name) and find_plugin("scripted agent", SCRIPTED, settings.name, CONTRACT)
    if needs := getattr(script, "NEEDS", ""):
        raise SettingError(
            f"the agent {settings.name!r} needs {needs}, and a typed question has none; take --agent extract, rules or "
            "a model folder, or ask the questions of a data set with `coseek run`"
        )
    typed = [text.removeprefix("limits.") for text in limits]  # as in `coseek run`, where they are a group
    return settings, make_settings(Limits, assignments(typed, onto=dump_settings(limits_for(settings))))
