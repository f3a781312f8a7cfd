"""A user's reward: the file on the page works as printed, and an invalid file is refused in a sentence."""

import re
from pathlib import Path

import pytest
import yaml
from tests.measure.samples import run
from tests.pipelines.trainings import begin

from coseek.core.errors import SettingError, UserError
from coseek.pipelines.agent_recipe import load_recipe
from coseek.rewards.grades import NO_GRADES, Grades
from coseek.rewards.reward import RewardSpec, make_reward

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "write-a-part.md").read_text(encoding="utf-8")
(BREVITY,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "def reward" in code]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the page's file, and a copy in a folder below it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brevity.py").write_text(BREVITY, encoding="utf-8")
    (tmp_path / "my-rewards").mkdir()
    (tmp_path / "my-rewards" / "how-brief.py").write_text(BREVITY, encoding="utf-8")
    return tmp_path


def refused(spec: RewardSpec) -> str:
    with pytest.raises(UserError) as caught:
        make_reward(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_reward_on_the_page_pays_and_is_logged_by_its_files_name(here: Path) -> None:
    (line,) = re.findall(r"'reward=(.*brevity.*)'", PAGE)
    paid = make_reward(yaml.safe_load(line))(run(answer="the Velora"))
    assert paid is not None and paid.parts == {"exact_match": 1.0, "brevity": pytest.approx(0.9)}
    assert paid.value == pytest.approx(1.09)
    other = make_reward({"my-rewards/how-brief.py": 1.0})(run(answer=None))
    assert other is not None and dict(other.parts) == {"how_brief": 0.0}


def test_a_reward_of_ones_own_reaches_recipe_and_stages_by_the_command_line(here: Path) -> None:
    typed = "reward={exact_match: 1.0, brevity.py: {weight: 0.1}}"
    recipe = load_recipe("from-nothing", [typed, "stages={one: {reward: {brevity.py: 2.0}}}"])
    assert {part.name for part in make_reward(recipe.reward).parts} == {"exact_match", "brevity"}
    assert [part.settings.weight for part in make_reward(recipe.stage("one").reward).parts] == [2.0]


def test_a_run_does_not_go_on_with_another_reward_under_the_same_name(here: Path) -> None:
    recipe = load_recipe("from-nothing", ["reward={brevity.py: 1.0}"])
    begun = begin(here / "out", recipe, resume=False)
    (here / "out" / "metrics.jsonl").write_text("{}\n")
    assert begin(here / "out", recipe, resume=True) == begun
    written = yaml.safe_load((here / "out" / "recipe.yaml").read_text(encoding="utf-8"))
    assert list(written["own_parts"]) == ["brevity.py"]
    assert load_recipe(str(here / "out" / "recipe.yaml")) == begun
    (here / "brevity.py").write_text(BREVITY.replace("40", "41"), encoding="utf-8")
    with pytest.raises(SettingError, match=r"brevity\.py is not the file that .*out was begun with"):
        begin(here / "out", recipe, resume=True)


def test_a_file_that_was_edited_is_read_again(here: Path) -> None:
    def most() -> object:
        return make_reward({"brevity.py": 1.0}).parts[0].settings.model_dump()["most"]

    assert most() == 40
    (here / "brevity.py").write_text(BREVITY.replace("40", "41"), encoding="utf-8")  # of the same size and second
    assert most() == 41


SETTINGS = "from coseek.rewards.reward import PartSettings as SETTINGS\n"
NEEDS = f"{SETTINGS}def needs(settings): return ('judge',)\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def reward(trajectory, options): return 1.0\n", "broken.py has no 'SETTINGS', so it is no reward"),
        ("class SETTINGS: pass\ndef reward(a, b): return 1.0\n", "must be a class over PartSettings"),
        (SETTINGS, "has no 'reward'"),
        (f"{SETTINGS}reward = 3\n", "must be a function, not 3"),
        (f"{SETTINGS}def reward(trajectory): return 1.0\n", "must take (trajectory, settings)"),
        (f"{NEEDS}def reward(trajectory, settings, grades): return 1.0\n", "does not say for which answers"),
        (f"{NEEDS}def reward(trajectory, settings): return 1.0\n", "must take (trajectory, settings, grades)"),
        ("import no_such_library\n", "cannot be imported: ModuleNotFoundError"),
        ("x = 1\nx = y\n", "name 'y' is not defined (line 2)"),
        ("def reward(:\n", "SyntaxError"),
    ],
)
def test_a_file_that_is_no_reward_is_one_sentence(source: str, says: str, here: Path) -> None:
    (here / "broken.py").write_text(source, encoding="utf-8")
    assert says in refused({"broken.py": 1.0})


def test_a_missing_file_a_wrong_option_and_two_of_one_name_are_one_sentence(here: Path) -> None:
    assert "there is no reward file nowhere.py" in refused({"nowhere.py": 1.0})
    assert "did you mean 'most'" in refused({"brevity.py": {"mots": 3}})
    (here / "exact_match.py").write_text(BREVITY, encoding="utf-8")
    assert "would be called 'exact_match'" in refused({"exact_match": 1.0, "exact_match.py": 1.0})


@pytest.mark.parametrize("value", ["None", "'much'", "float('nan')", "1e308", "-1e308", "10**400"])
def test_what_is_no_number_is_no_reward_and_says_whose_it_is(value: str, here: Path) -> None:
    (here / "odd.py").write_text(f"{SETTINGS}def reward(run, options): return {value}\n", encoding="utf-8")
    with pytest.raises(SettingError, match=r"the reward 'odd' gave .* for the question 'q1'"):
        make_reward({"odd.py": 1.0})(run())


FAILS = """
from coseek.rewards.reward import PartSettings as SETTINGS


def needs(settings):
    return ("judge",)


def to_judge(trajectory, settings, grades):
    raise ValueError("boo")


def reward(trajectory, settings, grades):
    raise ValueError("boo")
"""


def test_a_reward_that_fails_names_its_file_and_line_whoever_calls_it(here: Path) -> None:
    (here / "fails.py").write_text(FAILS, encoding="utf-8")
    reward = make_reward({"fails.py": 1.0})
    for call in (lambda: reward(run(), Grades(verdicts={})), lambda: reward.to_judge(run(), NO_GRADES)):
        with pytest.raises(SettingError, match=r"^the reward file fails\.py failed: .*boo \(line 1[04]\)"):
            call()
