"""Push and pull with the hub's client against a small server: what leaves this machine, and that pulled files equal
pushed ones."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.hub.hub_server import HubState, hub_server
from tests.retrieval.tiny_encoder import make_encoder

from coseek.core.errors import DataError, SettingError, UserError
from coseek.data.dataset import Dataset
from coseek.hub.card import FILE, PULLED, read_card
from coseek.hub.sharing import pull, push
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.laptop import LaptopSettings, make_policy

pytestmark = pytest.mark.medium

TINY = LaptopSettings(hidden=16, layers=("conv", "full_attention"), heads=2, kv_heads=1, feed_forward=8, vocabulary=300)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, an encoder and a data set."""
    folder = tmp_path_factory.mktemp("models")
    make_policy(TINY, ["a few words"], (), folder / "policy", 0)
    make_encoder(folder / "encoder")
    make_world(WorldSettings(size="tiny", train=3, dev=3, test=3)).save(folder / "data")
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubState]:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with hub_server() as state:
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        yield state


@pytest.fixture
def policy(models: Path, tmp_path: Path) -> Path:
    """A copy that tests may change."""
    shutil.copytree(models / "policy", tmp_path / "policy")
    return tmp_path / "policy"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", ["policy", "encoder", "data"])
def test_what_is_pulled_is_what_was_pushed(models: Path, server: HubState, tmp_path: Path, name: str) -> None:
    done = push(models / name, "me/one")
    ((_, repo),) = server.repos.items()
    assert repo.private and len(repo.commits) == 2 and done.files == len(repo.files) and "me/one" in done.where
    pulled = pull("me/one", tmp_path / "new" / "here")
    assert (pulled.what, pulled.files) == (done.what, done.files)
    arrived = contents(tmp_path / "new" / "here")
    assert repo.commits[-1].encode() in arrived.pop(PULLED) and arrived == repo.files
    own = {**contents(models / name), FILE: arrived[FILE]}
    assert {**own, "source.json": b""} == {**arrived, "source.json": b""}
    push(models / name, "me/two", public=True)
    assert not next(repo for (_, name), repo in server.repos.items() if name == "me/two").private


def test_a_folder_without_a_card_gets_one_that_invents_nothing(models: Path, server: HubState) -> None:
    for name in ("policy", "encoder"):
        push(models / name, f"me/{name}")
        card = server.repos["models", f"me/{name}"].files[FILE]
        assert b"license: unknown\n" in card and b"None: it was not measured" in card
        assert not (models / name / FILE).exists()


def test_a_data_sets_card_has_its_rows_and_opens_in_datasets(models: Path, server: HubState, tmp_path: Path) -> None:
    import datasets

    push(models / "data", "me/data", license="cc-by-4.0")
    for name, content in server.repos["datasets", "me/data"].files.items():
        (tmp_path / name).write_bytes(content)
    front, text = read_card(tmp_path) or ({}, "")
    assert front["license"] == "cc-by-4.0" and f"| {len(Dataset(tmp_path).corpus)} passages |" in text
    assert text.count("| 3 questions |") == 3 and "generated world" in text
    splits = datasets.load_dataset(str(tmp_path), "questions", cache_dir=str(tmp_path / "cache"))
    assert sorted(splits) == ["dev", "test", "train"]
    assert [*splits["dev"]["question"]] == [question.question for question in Dataset(tmp_path).questions("dev")]


def test_a_licence_is_set_at_the_push_and_a_card_is_kept(policy: Path, server: HubState) -> None:
    (policy / FILE).write_text("---\nbase_model: me/base\nlicense: other\n---\n\n# By hand\n")
    for license, shown in ((None, "other"), ("mit", "mit")):
        push(policy, "me/one", license=license, force=True)
        card = f"---\nlicense: {shown}\nbase_model: me/base\n---\n\n# By hand\n"
        assert server.repos["models", "me/one"].files[FILE].decode() == card


def test_nothing_hidden_and_no_state_of_a_training_is_sent(policy: Path, server: HubState) -> None:
    push(policy, "me/one")
    private = [".env", ".lock", ".git/config.json", "checkpoint-3/model.safetensors", "checkpoints/a.json"]
    private += ["optimizer.pt", "optimizer.safetensors", "trainer_state.json", "training_args.bin", "rng_state.json"]
    private += ["scheduler.pt", "metrics.jsonl", "weights.bin", "notes.docx", "a/.hidden/b.json"]
    for name in private:
        (policy / name).parent.mkdir(parents=True, exist_ok=True)
        (policy / name).write_text("{}")
    done = push(policy, "me/two")
    assert server.repos["models", "me/two"].files == server.repos["models", "me/one"].files
    assert set(done.left_out) == set(private)


def test_paths_in_an_imports_record_are_shortened(models: Path, server: HubState, tmp_path: Path) -> None:
    shutil.copytree(models / "data", tmp_path / "data")
    record = {"format": "squad", "sources": [{"name": "/data/me/private/squad.json", "sha256": "0" * 64}]}
    (tmp_path / "data" / "source.json").write_text(json.dumps(record))
    push(tmp_path / "data", "me/one")
    sent = json.loads(server.repos["datasets", "me/one"].files["source.json"])
    assert sent["sources"][0]["name"] == "…/private/squad.json"


def test_a_repository_is_replaced_on_demand_and_a_folder_never(policy: Path, server: HubState, tmp_path: Path) -> None:
    push(policy, "me/one")
    first = dict(server.repos["models", "me/one"].files)
    (policy / "old.txt").write_text("one")
    with pytest.raises(DataError, match=r"has me/one already; --force"):
        push(policy, "me/one")
    assert server.repos["models", "me/one"].files == first
    push(policy, "me/one", force=True)
    assert server.repos["models", "me/one"].files == {**first, "old.txt": b"one"}
    (policy / "old.txt").unlink()
    push(policy, "me/one", force=True)
    assert server.repos["models", "me/one"].files == first  # a file that is gone here goes there
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters.txt").write_text("dear")
    for folder, why in ((tmp_path / "home", "choose a new folder"), (tmp_path / "home" / "letters.txt", "is a file")):
        with pytest.raises(DataError, match=why):
            pull("me/one", folder)
    assert contents(tmp_path / "home") == {"letters.txt": b"dear"}


def test_only_published_files_are_pulled_and_failures_leave_none(
    policy: Path, server: HubState, tmp_path: Path
) -> None:
    push(policy, "me/one")
    files = server.repos["models", "me/one"].files
    files.update({"pytorch_model.bin": b"pickle", ".env": b"x", "checkpoint-1/config.json": b"{}"})
    pull("me/one", tmp_path / "here")
    assert not {"pytorch_model.bin", ".env", "checkpoint-1/config.json"} & contents(tmp_path / "here").keys()
    del files["model.safetensors"]
    with pytest.raises(DataError, match="holds a model without weights"):
        pull("me/one", tmp_path / "there")
    files.clear()
    with pytest.raises(DataError, match="holds no model, encoder or data set"):
        pull("me/one", tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["one", "a/b/c", "../x", "a/..", "me/", "/me/one", "me/on e", "https://x/y", ""])
def test_a_wrong_name_of_a_repository_is_refused(models: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="write OWNER/NAME"):
        push(models / "policy", name)
    with pytest.raises(SettingError, match="write OWNER/NAME"):
        pull(name, tmp_path / "here")


def test_a_missing_or_ambiguous_repository_is_named(models: Path, server: HubState, tmp_path: Path) -> None:
    push(models / "policy", "me/agent")
    with pytest.raises(DataError, match=r"no repository me/agnt.*hf auth login"):
        pull("me/agnt", tmp_path / "here")
    push(models / "data", "me/agent")
    with pytest.raises(SettingError, match="choose with --kind"):
        pull("me/agent", tmp_path / "here")
    assert pull("me/agent", tmp_path / "here", kind="dataset").what == "data set"


def test_what_cannot_be_opened_is_not_sent(models: Path, server: HubState, tmp_path: Path) -> None:
    (tmp_path / "run" / "policy").mkdir(parents=True)
    shutil.copytree(models / "policy", tmp_path / "run" / "policy" / "trained")
    with pytest.raises(DataError, match=r"did you mean .*run/policy/trained\?"):
        push(tmp_path / "run", "me/one")
    with pytest.raises(DataError, match="check the path"):
        push(tmp_path / "nowhere", "me/one")
    (tmp_path / "run/policy/trained/model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        push(tmp_path / "run/policy/trained", "me/one")
    shutil.copytree(models / "encoder", tmp_path / "encoder")
    (tmp_path / "encoder" / "config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json is missing"):
        push(tmp_path / "encoder", "me/encoder")
    shutil.copytree(models / "data", tmp_path / "data")
    with (tmp_path / "data/questions.dev.jsonl").open("a") as file:
        file.write('{"id": "x", "question": "?", "answers": ["a"], "gold_ids": ["nowhere"]}\n')
    with pytest.raises(DataError, match="gold passage 'nowhere'"):
        push(tmp_path / "data", "me/one")
    assert not server.repos


def test_what_the_hub_refuses_is_one_sentence_with_the_way_out(policy: Path, server: HubState) -> None:
    with pytest.raises(DataError, match=r"does not take the card of me/one.*--license"):
        push(policy, "me/one", license="nonsense")
    for status, way in ((403, "hf auth login"), (500, "try again later")):
        server.refuses = status
        with pytest.raises(UserError, match=f"{status}.*{way}"):
            push(policy, "me/two")


def test_a_hub_out_of_reach_is_named(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"cannot reach http://127\.0\.0\.1:9 .*HF_ENDPOINT"):
        push(policy, "me/one")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        pull("me/one", tmp_path / "x")
