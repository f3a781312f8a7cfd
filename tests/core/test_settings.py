from pathlib import Path

import pytest
from pydantic import Field, model_validator

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import JsonObject
from coseek.core.plugins import find_plugin, plugin_names
from coseek.core.settings import Settings, check_same_settings, load_settings, make_settings
from coseek.models.remote import RemoteModelSettings
from coseek.models.text_model import RemoteTextModelSettings
from coseek.retrieval.retrievers.web import WebSettings


class Inner(Settings):
    """A group."""

    learning_rate: float = 0.1
    """Step size."""
    steps: int = 5
    """How many."""

    @model_validator(mode="after")
    def _is_slow(self) -> "Inner":
        if self.learning_rate > 1:
            raise ValueError("slow down")
        return self


class Recipe(Settings):
    """A recipe."""

    name: str = "plain"
    """What it is called."""
    inner: Inner = Inner()
    """The group."""
    perhaps: Inner | None = None
    """A group that may be missing."""
    sizes: dict[str, int | str] = Field(default={})
    """Values of two kinds."""
    most: int = Field(default=1, ge=1)
    """A number with a bound."""
    terms: dict[str, float | str] = Field(default={"one": 1.0})
    """Free names, one of them by default."""


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_overrides_come_after_the_file_and_are_yaml(tmp_path: Path) -> None:
    path = recipe(tmp_path, "name: mine\ninner: {steps: 7}\n")
    made = load_settings(Recipe, path, ["inner.steps=9", "perhaps.learning_rate=1e-3", "name='3'"])
    assert (made.name, made.inner.steps, made.inner.learning_rate) == ("3", 9, 0.1)
    assert made.perhaps is not None and made.perhaps.learning_rate == 1e-3


def test_a_group_on_the_command_line_keeps_the_other_settings_of_the_file(tmp_path: Path) -> None:
    path = recipe(tmp_path, "inner: {steps: 7, learning_rate: 0.5}\nsizes: {small: 1}\n")
    merged = load_settings(Recipe, path, ["inner={steps: 9}", "sizes={big: 2}"])
    assert (merged.inner, merged.sizes) == (Inner(steps=9, learning_rate=0.5), {"big": 2})
    replaced = load_settings(Recipe, path, ["inner=!replace {steps: 9}"])
    assert replaced.inner == Inner(steps=9)
    path = recipe(tmp_path, "perhaps: !replace {steps: 2}\n")
    assert load_settings(Recipe, path).perhaps == Inner(steps=2)
    with pytest.raises(DataError, match="!replace"):
        load_settings(Recipe, recipe(tmp_path, "inner: !replace 3\n"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("nmae=x", "no setting named 'nmae'; did you mean 'name'"),
        ("inner.stepz=3", "no setting named 'inner.stepz'; did you mean 'inner.steps'"),
        ("perhaps.stepz=3", "did you mean 'perhaps.steps'"),
        ("steps=3", "no setting named 'steps'; did you mean 'inner.steps'"),
        ("learnin_rate=3", "did you mean 'inner.learning_rate'"),
        ("inner.steps=many", "setting 'inner.steps' needs a whole number, got 'many'"),
        ("inner=3", "setting 'inner' needs `name: value` lines, got 3"),
        ("sizes.big=[1]", "setting 'sizes.big' needs a whole number or text, got \\[1\\]"),
        ("inner.learning_rate=.inf", "setting 'inner.learning_rate' needs a finite number, got inf"),
        ("inner.learning_rate=nan", "setting 'inner.learning_rate' needs a finite number, got 'nan'"),
        ("most=0", "setting 'most' needs at least 1, got 0"),
        ("inner={steps: 1, learning_rate: 2}", "setting 'inner': slow down$"),
        ("inner.steps=1.5", "'inner.steps'"),
        ("name.first=x", "'name' holds a value"),
        ("name", "write name=value"),
        ("most=yes", "setting 'most' needs a whole number, got 'True'"),
        ("inner.learning_rate=off", "setting 'inner.learning_rate' needs a number, got 'False'"),
        ("perhaps=none", "setting 'perhaps' needs `name: value` lines or null, got 'none'"),
        ("name=12:30", "setting 'name' needs text, got 750; put it in quotes"),
        ("name=a #1", "not valid YAML; quote it"),
        ("INNER.steps=3", "did you mean 'inner'"),
        ("inner.most=3", "no setting named 'inner.most'; did you mean 'most'"),
        ("inner={true: 3}", "name of a setting is text, not True"),
        ("name=[1", "'name=\\[1'"),
    ],
)
def test_a_wrong_setting_is_one_sentence(override: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        load_settings(Recipe, recipe(tmp_path, "name: mine\n"), [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "terms: {one: 1.0}"])
def test_a_dotted_name_adds_to_free_names_whether_or_not_a_file_says_them(text: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, text or "name: mine\n")
    assert load_settings(Recipe, path, [" terms.own.py = 2"]).terms == {"one": 1.0, "own.py": 2.0}
    assert load_settings(Recipe, path, ["terms={two: 2}"]).terms == {"two": 2.0}
    assert load_settings(Recipe, path, ["terms.preset=p", "terms.two=2"]).terms == {"preset": "p", "two": 2.0}
    assert Recipe().terms == {"one": 1.0}


def test_a_dotted_name_in_a_file_is_shown_as_a_file_writes_it(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no setting named 'inner\.steps' in a file; write `inner: \{steps: 3\}`"):
        load_settings(Recipe, recipe(tmp_path, "inner.steps: 3\n"))


@pytest.mark.parametrize(
    ("text", "says"), [("a: [1", "not valid YAML"), ("- a\n", "name: value"), ("plain", "name: value")]
)
def test_a_recipe_that_is_no_mapping_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says):
        load_settings(Recipe, recipe(tmp_path, text))
    with pytest.raises(DataError, match="no recipe"):
        load_settings(Recipe, tmp_path / "none.yaml")


def test_a_mistake_in_a_file_names_the_file_and_what_was_typed_over_it_does_not(tmp_path: Path) -> None:
    path = recipe(tmp_path, "inner: {stepz: 3}\n")
    for typed in ([], ["name=mine"], ["inner.steps=4"]):
        with pytest.raises(SettingError, match=r"recipe\.yaml: no setting named 'inner\.stepz'"):
            load_settings(Recipe, path, typed)
    with pytest.raises(SettingError, match=r"^setting 'most' needs"):
        load_settings(Recipe, recipe(tmp_path, "name: mine\n"), ["most=0"])


class Outer(Settings):
    """A group whose default is not that of its class."""

    inner: Inner = Inner(learning_rate=0.01, steps=3)
    """Slower than elsewhere."""
    other: Inner | None = None
    """None here."""


def test_a_group_that_is_given_in_part_keeps_the_rest_of_its_default_there() -> None:
    assert make_settings(Outer, {"inner": {"steps": 4}}).inner == Inner(learning_rate=0.01, steps=4)
    assert make_settings(Outer, {"other": {"steps": 4}}).other == Inner(steps=4)
    assert Outer(inner=Inner()).inner == Inner()  # a whole group is one
    with pytest.raises(SettingError, match=r"'inner\.steps' needs a whole number, got 'few'"):
        make_settings(Outer, {"inner": {"steps": "few"}})
    with pytest.raises(SettingError, match=r"no setting named 'inner\.step'; did you mean 'inner\.steps'"):
        make_settings(Outer, {"inner": {"step": 4}})


def test_a_part_is_its_file_and_no_list_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts_for_a_test"
    folder.mkdir()
    for name in ("__init__", "_hidden", "my_part"):
        (folder / f"{name}.py").write_text("VALUE = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugin_names("parts_for_a_test") == ["my-part"]
    assert find_plugin("part", "parts_for_a_test", "my-part").__name__ == "parts_for_a_test.my_part"
    with pytest.raises(UnknownName, match="no part named 'my-prat'; did you mean 'my-part'"):
        find_plugin("part", "parts_for_a_test", "my-prat")
    with pytest.raises(UnknownName, match="Known: my-part"):
        find_plugin("part", "parts_for_a_test", "_hidden")


@pytest.mark.parametrize("kind", [RemoteModelSettings, RemoteTextModelSettings, WebSettings])
def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_repeated(kind: type[Settings]) -> None:
    with pytest.raises(SettingError, match="environment variable") as refused:
        make_settings(kind, {"key_env": "sk-very-secret-123"})
    assert "secret-123" not in str(refused.value)


def test_one_folder_named_in_two_ways_is_no_other_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    whole = str(tmp_path / "runs" / "one")
    began: JsonObject = {"folder": whole, "labels": [whole]}
    check_same_settings(tmp_path, {"data": began}, {"data": {"folder": "runs/one", "labels": ["runs/one/"]}})
    for other in ("runs/two", "runs/none", "http://127.0.0.1:1/one", "a/" + "b" * 5000, "one"):
        with pytest.raises(SettingError, match=f"folder = '{whole}', and now '{other}' is asked for"):
            check_same_settings(tmp_path, {"folder": whole}, {"folder": other})
    (tmp_path / "bm25").mkdir()
    with pytest.raises(SettingError, match="now 'bm25'"):  # a part's name, not the folder here
        check_same_settings(tmp_path, {"retriever": "./bm25"}, {"retriever": "bm25"})


def test_a_co_training_that_was_moved_goes_on_in_its_new_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    agent = new / "round-1" / "agent"
    agent.mkdir(parents=True)
    (new / "recipe.yaml").write_text("recipe: {}")
    began: JsonObject = {"data": {"folder": str(old / "round-0" / "data")}}
    check_same_settings(agent, began, {"data": {"folder": str(new / "round-0" / "data")}})
    with pytest.raises(SettingError, match=r"data\.folder"):  # another folder in it
        check_same_settings(agent, began, {"data": {"folder": str(new / "round-2" / "data")}})
