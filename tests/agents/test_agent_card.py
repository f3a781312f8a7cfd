"""Agent cards: the protocol and budgets of a model's training."""

from pathlib import Path

from coseek.agents.agent_card import AgentCard
from coseek.agents.factory import limits_for, settings_for
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol


def test_a_policy_is_asked_within_the_budgets_that_it_was_trained_in(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    trained = Limits(max_turns=7, passages_per_search=2)
    AgentCard(limits=trained).write(tmp_path)
    settings = settings_for(str(tmp_path))
    assert limits_for(settings) == trained
    other = settings.model_copy(update={"protocol": "s3"})
    assert limits_for(other) == load_protocol("s3", other.prompt_template).limits_over(Limits())
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: search-r1\nabout: mine\n", encoding="utf-8")
    AgentCard(protocol=str(mine), limits=trained).write(tmp_path)
    assert limits_for(settings_for(str(tmp_path), protocol=str(mine))) == trained  # by the name in the card
    mine.write_text("extends: search-r1\nlimits: {max_turns: 9}\n", encoding="utf-8")
    assert limits_for(settings_for(str(tmp_path), protocol=str(mine))).max_turns == 9
    AgentCard().write(tmp_path)
    assert limits_for(settings).passages_per_search == 3
