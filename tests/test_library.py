"""The library: what a program calls does what the commands do, and misuse is answered with a sentence."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.pipelines.test_agent import FEW, TINY
from tests.watching import Heard

import coseek
from coseek.cli.main import main
from coseek.core.errors import UserError
from coseek.core.settings import apply_overrides, typed_overrides
from coseek.retrieval.retriever import FixedRetriever

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "library.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> coseek.Dataset:
    return coseek.make_world(tmp_path_factory.mktemp("library") / "world", size="tiny", train=12, dev=0, test=12)


@pytest.fixture(scope="module")
def index(data: coseek.Dataset) -> Path:
    coseek.build_index(str(data.folder), "bm25", str(data.folder.with_name("index")))
    return data.folder.with_name("index")


def timeless(trajectory: coseek.Trajectory) -> coseek.Trajectory:
    return dataclasses.replace(trajectory, timings={})


@pytest.mark.medium
def test_rollouts_are_those_of_a_run_folder_and_the_command(data: coseek.Dataset, index: Path, tmp_path: Path) -> None:
    rows = coseek.rollout("faulty-expert", data.questions("test"), index, samples=2, seed=3)
    words = ["run", str(data.folder), "--split", "test", "--agent", "faulty-expert", "--retriever", str(index)]
    assert main([*words, "--samples", "2", "--seed", "3", "--out", str(tmp_path / "typed")]) == 0
    called = coseek.run_agent(data.folder, "faulty-expert", index, tmp_path / "called", split="test", samples=2, seed=3)
    by_key = {(row.question.id, row.seed): timeless(row) for row in rows}
    assert len(by_key) == 24
    for run in (called, coseek.Run(str(tmp_path / "typed"))):
        assert {(row.question.id, row.seed): timeless(row) for row in run.trajectories()} == by_key
    assert called.settings == coseek.Run(tmp_path / "typed").settings
    assert [row.question.id for row in rows[:2]] == [data.questions("test")[0].id] * 2


@pytest.mark.medium
def test_labels_of_the_library_are_those_of_the_command(data: coseek.Dataset, index: Path, tmp_path: Path) -> None:
    run = coseek.run_agent(data.folder, "expert", index, tmp_path / "run", split="train")
    summary = coseek.label(run.folder, "gold", tmp_path / "called", {"negatives": 3})
    typed = ["label", str(run.folder), "negatives=3", "--method", "gold", "--out", str(tmp_path / "typed")]
    assert main(typed) == 0
    assert summary.sets > 0
    called, other = ((tmp_path / name / "labels.jsonl").read_bytes() for name in ("called", "typed"))
    assert called == other


def test_a_fault_has_no_reward_and_takes_none_away(data: coseek.Dataset, index: Path) -> None:
    class Broken(FixedRetriever):
        def search(self, queries: Sequence[str | coseek.Query], k: int) -> list[list[coseek.Hit]]:
            raise RetrieverError("the cable is out")

    from coseek.core.errors import RetrieverError

    (row,) = coseek.rollout("rules", "Who?", Broken(data.corpus, {}))
    (fault,) = coseek.score([row], {"exact_match": 1.0})
    assert isinstance(fault, coseek.RewardFault)
    assert (fault.part, fault.detail) == ("retriever_error", "the cable is out")


def test_limits_given_in_part_are_laid_over_those_that_suit_the_agent(data: coseek.Dataset, index: Path) -> None:
    questions = data.questions("test")
    few, usual = (coseek.rollout("rules", questions, index, limits=limits) for limits in ({"max_turns": 1}, None))
    assert max(len(row.searches) for row in few) == 1 < max(len(row.searches) for row in usual)
    narrow = coseek.rollout("rules", questions, index, limits=coseek.Limits(max_tokens=40))
    assert {row.stop for row in narrow} == {coseek.StopReason.TOKEN_LIMIT}


def test_a_bare_text_is_one_query_and_one_question(data: coseek.Dataset, index: Path) -> None:
    retriever = coseek.open_retriever(str(index))
    assert retriever.search("the mayor", 2) == retriever.search(["the mayor"], 2)
    (row,) = coseek.rollout("rules", "Who is the mayor?", retriever)
    assert row.question == coseek.Question("question-1", "Who is the mayor?")


@pytest.mark.slow
def test_a_policy_that_the_library_trained_is_opened_again_and_goes_on(index: Path, tmp_path: Path) -> None:
    heard = Heard()
    folder = coseek.train_agent("from-nothing", [*TINY, *FEW], out=tmp_path / "run", progress=heard)
    assert folder == tmp_path / "run" / "policy" / "trained" and "table" in heard.stages
    assert (tmp_path / "run" / "report.html").is_file()
    (row,) = coseek.rollout(folder, "Who is the mayor?", index, limits={"max_tokens": 400})
    assert row.agent_tokens > 0 and not row.stop.is_fault
    with pytest.raises(UserError, match="holds a training run already"):
        coseek.train_agent("from-nothing", [*TINY, *FEW], out=tmp_path / "run")
    assert coseek.train_agent("from-nothing", [*TINY, *FEW], out=tmp_path / "run", resume=True) == folder


MISUSES: dict[str, tuple[Callable[[coseek.Dataset, Path], object], str]] = {
    "a list where a folder is wanted": (lambda data, index: coseek.Dataset([str(data.folder)]), "one path"),  # type: ignore[arg-type]
    "a list of retrievers": (lambda data, index: coseek.open_retriever([index]), "a YAML file or a mapping"),  # type: ignore[arg-type]
    "an agent misspelt": (lambda data, index: coseek.open_agent("ruels"), "did you mean 'rules'"),
    "a temperature below 0": (lambda data, index: coseek.open_agent("rules", temperature=-1), "at least 0"),
    "a reward that is a number": (lambda data, index: coseek.make_reward(1.0), "{'exact_match': 1.0}"),  # type: ignore[arg-type]
    "a retriever misspelt": (lambda data, index: coseek.build_index(data.folder, "bm52", "i"), "did you mean 'bm25'"),
    "a setting misspelt": (
        lambda data, index: coseek.rollout("rules", "x", index, limits={"max_turn": 1}),
        "max_turns",
    ),
    "questions that are a folder": (lambda data, index: coseek.rollout("rules", data.folder, index), "a list of them"),  # type: ignore[arg-type]
    "a question that is a number": (lambda data, index: coseek.rollout("rules", [7], index), "not 7"),  # type: ignore[list-item]
    "one question twice": (
        lambda data, index: coseek.rollout("rules", [data.questions("test")[0]] * 2, index),
        "ids must be unique",
    ),
    "half of a surrogate pair": (lambda data, index: coseek.rollout("rules", "who \ud800", index), "surrogate"),
    "a retriever without a search": (lambda data, index: coseek.rollout("rules", "x", data), "`search`"),  # type: ignore[arg-type]
    "a run instead of trajectories": (lambda data, index: coseek.score([str(index)], {"f1": 1.0}), "trajectories()"),  # type: ignore[list-item]
    "a reward that asks a judge": (lambda data, index: coseek.score([], {"preset": "s3"}), "generator"),
    "pairs of settings": (
        lambda data, index: coseek.train_agent("quickstart", [("rl.steps", 4)], out="o"),  # type: ignore[list-item]
        "'rl.steps=60'",
    ),
    "a setting that is an object": (
        lambda data, index: coseek.train_agent("quickstart", {"rl.steps": object()}, out="o"),
        "text, a number, a list or a mapping",
    ),
    "a query that is a number": (lambda data, index: coseek.open_index(index).search([7], 1), "not 7"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("fear", MISUSES)
def test_misuse_is_answered_with_a_sentence(fear: str, data: coseek.Dataset, index: Path, tmp_path: Path) -> None:
    call, message = MISUSES[fear]
    with pytest.raises(UserError) as caught:
        call(data, index)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text("aé=:#'\" \n\t0.e-"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
        max_leaves=6,
    )
)
def test_an_override_arrives_as_the_value_that_it_was(value: object) -> None:
    assert apply_overrides({}, typed_overrides({"a.b": value})) == {"a": {"b": value}}
    assert typed_overrides("rl.steps=4") == ["rl.steps=4"] and typed_overrides({"x": Path("p")}) == ["x=p"]


def test_the_librarys_advice_names_parameters_and_functions(data: coseek.Dataset, index: Path, tmp_path: Path) -> None:
    coseek.run_agent(data.folder, "rules", index, tmp_path / "run", split="test", count=1)
    with pytest.raises(UserError, match=r"go on with it with resume=True, or choose another `out`"):
        coseek.run_agent(data.folder, "rules", index, tmp_path / "run", split="test", count=1)
    with pytest.raises(UserError, match=r"choose one with `split`"):
        coseek.measure_retrievers(data.folder, index)
    with pytest.raises(UserError, match=r"`coseek\.run_agent`") as caught:
        coseek.label(data.folder, "gold", tmp_path / "labels")
    assert "--" not in str(caught.value)


@pytest.mark.medium
def test_documents_are_imported_asked_and_measured_from_a_program(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Herons\n\nMira Holt feeds the herons at dawn.\n", encoding="utf-8")
    notes = coseek.import_documents(tmp_path / "notes.md", tmp_path / "notes", {"size": 100})
    retriever = coseek.build_index(notes.folder, "bm25", tmp_path / "index")
    assert "Mira Holt" in (coseek.ask("Who feeds the herons?", retriever).answer or "")
    gold = (notes.corpus[0].id,)
    questions = [coseek.Question("q", "Who feeds the herons?", ("Mira Holt",), gold)]
    scores = coseek.measure_retrievers(questions, {"one": retriever, "other": tmp_path / "index"}, metrics=["recall@5"])
    assert scores.of("one").metrics["recall@5"].mean == 1.0 and scores.comparisons[0].against == "one"
    with pytest.raises(UserError, match="depth=200"):  # a search of 100 passages would give too low a recall
        coseek.measure_retrievers(questions, retriever, metrics=["recall@200"])
    assert coseek.measure_retrievers(questions, retriever, metrics="mrr@10").of("bm25").metrics["mrr@10"].mean == 1.0
    bare = [coseek.Question("q", "Who feeds the herons?", ("Mira Holt",))]
    assert coseek.measure_retrievers(bare, retriever).of("bm25").metrics["answer_hit@5"].mean == 1.0
    assert coseek.exact_match("the Mira Holt", ("Mira Holt",)) and coseek.f1("Mira", ("Mira Holt",)) > 0.6


# --- the page


def named_on_the_page() -> dict[str, list[str]]:
    """Name → the parameters that the page gives it; none for a type."""
    text = PAGE.partition("## Data and search")[2]
    called = re.findall(r"^- `(\w+)\(([^)]*)\)`", text, re.MULTILINE)
    methods = {name: [word.strip(" *\n") for word in words.split(",")] for name, words in called}
    types = set(re.findall(r"`([A-Z]\w+)`", text))
    return {**{name: [] for name in types - methods.keys()}, **methods}


def test_the_page_and_the_package_offer_the_same_names() -> None:
    assert named_on_the_page().keys() == set(coseek.__all__) - {"__version__"}


def test_the_page_gives_every_function_its_parameters_in_order() -> None:
    for name, words in named_on_the_page().items():
        if words:
            assert words == list(inspect.signature(getattr(coseek, name)).parameters), name


@pytest.mark.medium
def test_the_example_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "library.md", "exec"), names)  # noqa: S102 (our own page)
    rewards, hits = names["rewards"], names["hits"]
    assert isinstance(rewards, list) and len(rewards) == 5 and isinstance(hits, list) and len(hits) == 3
