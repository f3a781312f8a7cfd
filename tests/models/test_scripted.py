"""The scripted model behaves as every model does."""

import pytest
from tests.models.networks import request
from tests.scripted import ScriptedModel

from coseek.models.model import TurnEnd
from coseek.models.tokenizer import END


def test_each_row_hears_its_own_script_turn_by_turn() -> None:
    model = ScriptedModel({"0": ["a", "b"], "1": ["c"]})
    model.start(request(0, [1]))
    model.start(request(1, [1]))
    assert [model.tokenizer.decode(turn.ids) for turn in model.step()] == ["a", "c"]
    model.extend(request(0, [2]))
    (turn,) = model.step()
    assert (model.tokenizer.decode(turn.ids), turn.logprobs, turn.end) == ("b", (0.0,), TurnEnd.STOP)
    assert model.step() == []


def test_a_script_that_has_run_out_is_a_fault() -> None:
    model = ScriptedModel({"0": []})
    model.start(request(0, [1]))
    (turn,) = model.step()
    assert (turn.end, turn.fault) == (TurnEnd.FAULT, "the script for question '0' has no turn 1")


def test_a_function_may_be_the_script() -> None:
    model = ScriptedModel(lambda so_far: f"{so_far.question.id}{len(so_far.searches)}{END}")
    model.start(request(7, [1]))
    (turn,) = model.step()
    assert (model.tokenizer.decode(turn.ids), turn.end) == (f"70{END}", TurnEnd.EOS)


def test_a_text_longer_than_the_budget_is_cut_at_it() -> None:
    model = ScriptedModel({"0": ["abcdef"]})
    model.start(request(0, [1], max_tokens=4))
    (turn,) = model.step()
    assert (model.tokenizer.decode(turn.ids), turn.end) == ("abcd", TurnEnd.LENGTH)


def test_closed_rows_say_nothing() -> None:
    model = ScriptedModel({"0": ["a"]})
    model.start(request(0, [1]))
    model.close(0)
    assert model.step() == []
    with pytest.raises(ValueError, match="not open"):
        model.extend(request(0, [1]))
