"""Push and pull: what leaves this machine, what may be overwritten, and that what arrives is what was sent."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import make_encoder

from coseek.core.errors import DataError, SettingError
from coseek.data.dataset import Dataset
from coseek.hub.card import FILE, PULLED, read_card
from coseek.hub.publication import Content, RepoKind, is_published, publication_of
from coseek.hub.repository import FolderHub, Revision, pull, push
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

TINY = LaptopSettings(
    hidden=16, layers=("conv", "full_attention"), heads=2, kv_heads=1, feed_forward=16, vocabulary=300
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, an encoder and a data set."""
    folder = tmp_path_factory.mktemp("models")
    make_policy(TINY, ["a few words"], (), folder / "policy", 0)
    make_encoder(folder / "encoder")
    make_world(WorldSettings(size="tiny", train=3, dev=3, test=3)).save(folder / "data")
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> FolderHub:
    (tmp_path / "hub").mkdir()
    return FolderHub(tmp_path / "hub")


@pytest.fixture
def policy(models: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(models / "policy", tmp_path / "policy")
    return tmp_path / "policy"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", ["policy", "encoder", "data"])
def test_what_is_pulled_is_what_was_pushed(models: Path, hub: FolderHub, tmp_path: Path, name: str) -> None:
    done = push(models / name, "me/one", hub)
    assert done.where and done.files == len(contents(Path(done.where)))
    assert not push(models / name, "me/one", hub).where  # the same again
    pulled = pull("me/one", tmp_path / "new" / "here", hub)
    assert pulled.changed and pulled.what == done.what
    arrived = contents(tmp_path / "new" / "here")
    assert arrived.pop(PULLED).startswith(b"repo: me/one\n") and arrived == contents(Path(done.where))
    own = {**contents(models / name), FILE: arrived[FILE]}
    assert {**own, "source.json": b""} == {**arrived, "source.json": b""}
    assert not pull("me/one", tmp_path / "new" / "here", hub).changed
    assert not push(tmp_path / "new" / "here", "me/one", hub).where  # a pulled folder pushes the same


def test_a_folder_without_a_card_gets_one_that_invents_nothing(models: Path) -> None:
    for name in ("policy", "encoder"):
        assert not (models / name / FILE).exists()
        card = publication_of(models / name).files[FILE]
        assert isinstance(card, bytes) and b"license: unknown\n" in card and b"None: it was not measured" in card
        assert not (models / name / FILE).exists()


def test_a_data_sets_card_has_its_rows_and_opens_in_datasets(models: Path, tmp_path: Path) -> None:
    import datasets

    sent = publication_of(models / "data", "cc-by-4.0")
    for name, content in sent.files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    front, text = read_card(tmp_path) or ({}, "")
    assert front["license"] == "cc-by-4.0" and f"| {len(Dataset(tmp_path).corpus)} passages |" in text
    assert text.count("| 3 questions |") == 3 and "generated world" in text
    found = datasets.load_dataset(str(tmp_path), "questions", cache_dir=str(tmp_path / "cache"))
    assert sorted(found) == ["dev", "test", "train"]
    assert [*found["dev"]["question"]] == [one.question for one in Dataset(tmp_path).questions("dev")]


def test_a_licence_is_set_at_the_push_and_a_card_is_kept(policy: Path, hub: FolderHub) -> None:
    (policy / FILE).write_text("---\nbase_model: me/base\nlicense: other\n---\n\n# By hand\n")
    where = Path(push(policy, "me/one", hub).where)
    assert (where / FILE).read_text() == "---\nlicense: other\nbase_model: me/base\n---\n\n# By hand\n"
    push(policy, "me/one", hub, license="mit", force=True)
    assert (where / FILE).read_text() == "---\nlicense: mit\nbase_model: me/base\n---\n\n# By hand\n"


def test_nothing_hidden_and_no_state_of_a_training_is_sent(policy: Path, hub: FolderHub) -> None:
    before = set(contents(Path(push(policy, "me/one", hub).where)))
    private = [".env", ".lock", ".git/config.json", "checkpoint-3/model.safetensors", "checkpoints/a.json"]
    private += ["optimizer.pt", "optimizer.safetensors", "trainer_state.json", "training_args.bin", "rng_state.json"]
    private += ["scheduler.pt", "metrics.jsonl", "weights.bin", "notes.docx", "a/.hidden/b.json"]
    for name in private:
        (policy / name).parent.mkdir(parents=True, exist_ok=True)
        (policy / name).write_text("{}")
    done = push(policy, "me/two", hub)
    assert set(contents(Path(done.where))) == before and set(done.left_out) == set(private)


@pytest.mark.parametrize(
    "text", ["token: hf_" + "a" * 34, "key=sk-proj-" + "b" * 40, "-----BEGIN OPENSSH PRIVATE KEY-----"]
)
def test_a_key_in_a_file_is_never_sent(policy: Path, hub: FolderHub, text: str) -> None:
    (policy / "coseek.yaml").write_text(f"protocol: search-r1\n# {text}\n")
    with pytest.raises(DataError, match=r"coseek\.yaml holds what looks like an API key"):
        push(policy, "me/one", hub)
    assert not any(hub.root.iterdir())


def test_a_link_out_of_the_folder_is_never_followed(policy: Path, hub: FolderHub, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("mine")
    (policy / "notes.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(DataError, match=r"notes\.txt is a link to a file outside"):
        push(policy, "me/one", hub)


def test_a_link_to_nothing_is_not_taken_for_a_missing_file(policy: Path, hub: FolderHub, tmp_path: Path) -> None:
    push(policy, "me/policy", hub)
    for name, target in (("notes.md", "nowhere"), ("loop.json", "loop.json")):
        (policy / name).symlink_to(target)
        with pytest.raises(DataError, match=f"{name} is no file, but a link to nothing"):
            push(policy, "me/policy", hub)
        (policy / name).unlink()
    (hub.root / "model" / "me" / "policy" / "notes.md").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"notes\.md is a link to nothing"):
        pull("me/policy", tmp_path / "pulled", hub)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"", "no safetensors file"),
        ("model.safetensors", b"\xff" * 64, "no safetensors file"),
        ("model.safetensors", None, "bytes of tensors and names"),
        ("notes.md", b"caf\xe9", "not UTF-8"),
    ],
)
def test_what_arrives_broken_is_not_written(
    policy: Path, hub: FolderHub, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    push(policy, "me/policy", hub)
    there = hub.root / "model" / "me" / "policy" / name
    there.write_bytes(there.read_bytes()[:-4] if content is None else content)
    with pytest.raises(DataError, match=f"{said}.*nothing was written"):
        pull("me/policy", tmp_path / "pulled", hub)
    assert not (tmp_path / "pulled").exists()


def test_an_encoder_without_its_models_configuration_is_not_sent(models: Path, hub: FolderHub, tmp_path: Path) -> None:
    shutil.copytree(models / "encoder", tmp_path / "encoder")
    (tmp_path / "encoder" / "config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json is missing"):
        push(tmp_path / "encoder", "me/encoder", hub)


def test_paths_of_this_machine_in_an_imports_record_are_shortened(models: Path, hub: FolderHub, tmp_path: Path) -> None:
    shutil.copytree(models / "data", tmp_path / "data")
    record = {"format": "squad", "sources": [{"name": "/data/me/private/squad.json", "sha256": "0" * 64}]}
    (tmp_path / "data" / "source.json").write_text(json.dumps(record))
    where = Path(push(tmp_path / "data", "me/one", hub).where)
    assert json.loads((where / "source.json").read_text())["sources"][0]["name"] == "…/private/squad.json"
    assert not push(tmp_path / "data", "me/one", hub).where


def test_other_content_is_replaced_only_on_demand(models: Path, policy: Path, hub: FolderHub, tmp_path: Path) -> None:
    where = Path(push(policy, "me/one", hub).where)
    (policy / "old.txt").write_text("one")
    first = contents(where)
    with pytest.raises(DataError, match=r"has me/one with other content \(old\.txt\); --force"):
        push(policy, "me/one", hub)
    assert contents(where) == first
    push(policy, "me/one", hub, force=True)
    assert contents(where) == {**first, "old.txt": b"one"}
    (policy / "old.txt").unlink()
    push(policy, "me/one", hub, force=True)
    assert contents(where) == first  # a file that is gone here goes there

    pull("me/one", tmp_path / "here", hub)
    (tmp_path / "here" / "coseek.yaml").write_text("protocol: direct\n")
    (tmp_path / "here" / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(DataError, match="holds something else already; --force"):
        pull("me/one", tmp_path / "here", hub)
    assert (tmp_path / "here" / "model.safetensors").read_bytes() == b"mine"
    assert pull("me/one", tmp_path / "here", hub, force=True).changed
    assert (tmp_path / "here" / "model.safetensors").read_bytes() == (models / "policy/model.safetensors").read_bytes()


def test_a_folder_of_anything_else_is_not_replaced_even_on_demand(policy: Path, hub: FolderHub, tmp_path: Path) -> None:
    push(policy, "me/one", hub)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters.txt").write_text("dear")
    with pytest.raises(DataError, match="holds no policy, encoder or data set, so it is not replaced"):
        pull("me/one", tmp_path / "home", hub, force=True)
    with pytest.raises(DataError, match="is a file"):
        pull("me/one", tmp_path / "home" / "letters.txt", hub, force=True)
    assert contents(tmp_path / "home") == {"letters.txt": b"dear"}


@pytest.mark.parametrize("stranger", ["thesis.tex", ".git/HEAD", "src/.env", "checkpoint-3/optimizer.pt", "empty"])
def test_force_replaces_no_folder_with_files_that_are_no_model_or_data_set(
    policy: Path, models: Path, hub: FolderHub, tmp_path: Path, stranger: str
) -> None:
    push(policy, "me/one", hub)
    for name in ("policy", "data"):
        project = tmp_path / name / "project"
        shutil.copytree(models / name, project)
        (project / "README.md").write_text("mine")
        (project / stranger).parent.mkdir(parents=True, exist_ok=True)
        (project / stranger).symlink_to("nowhere") if stranger == "empty" else (project / stranger).write_text("mine")
        with pytest.raises(DataError, match=rf"holds {re.escape(stranger)}, which is no part of a published"):
            pull("me/one", project, hub, force=True)
        (project / stranger).unlink()
        (project / ".cache" / "huggingface").mkdir(parents=True)
        (project / ".cache" / "huggingface" / ".gitignore").write_text("*")  # of `hf download`
        assert pull("me/one", project, hub, force=True).changed


def test_force_replaces_no_project_that_only_has_a_file_config_json(
    policy: Path, hub: FolderHub, tmp_path: Path
) -> None:
    push(policy, "me/one", hub)
    for name in ("config.json", "src/main.py", "notes.md"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("{}")
    with pytest.raises(DataError, match="holds no weights"):
        pull("me/one", tmp_path / "project", hub, force=True)
    assert (tmp_path / "project" / "src" / "main.py").exists()


class Breaking(FolderHub):
    """Breaks off, or damages a file, after some files."""

    def __init__(self, root: Path, damages: bool) -> None:
        super().__init__(root)
        self.left, self.damages = 2, damages

    def download(self, repo: str, kind: RepoKind, name: str, stored: Revision, folder: Path) -> None:
        super().download(repo, kind, name, stored, folder)
        self.left -= 1
        if not self.left and self.damages:
            (folder / name).write_bytes(b"damaged")
        elif not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("damages", [False, True])
def test_a_pull_that_breaks_off_or_is_damaged_leaves_what_was_there(
    policy: Path, hub: FolderHub, tmp_path: Path, damages: bool
) -> None:
    push(policy, "me/one", hub)
    with pytest.raises((KeyboardInterrupt, DataError), match="did not arrive" if damages else None):
        pull("me/one", tmp_path / "here", Breaking(hub.root, damages))
    assert not [path.name for path in tmp_path.iterdir() if "here" in path.name and not path.name.endswith(".lock")]
    shutil.copytree(policy, tmp_path / "here")
    (tmp_path / "here" / "coseek.yaml").write_text("protocol: direct\n")
    before = contents(tmp_path / "here")
    with pytest.raises((KeyboardInterrupt, DataError)):
        pull("me/one", tmp_path / "here", Breaking(hub.root, damages), force=True)
    assert contents(tmp_path / "here") == before


def test_a_push_on_top_of_anothers_push_is_refused(policy: Path, hub: FolderHub) -> None:
    class Slow(FolderHub):
        """Somebody pushes between the comparison and the upload."""

        def upload(
            self, repo: str, kind: RepoKind, files: Mapping[str, Content], stored: Revision | None, public: bool
        ) -> str:
            FolderHub(self.root).upload(repo, kind, {**files, "theirs.txt": b"x"}, stored, public)
            return super().upload(repo, kind, files, stored, public)

    with pytest.raises(DataError, match="was changed at this moment"):
        push(policy, "me/one", Slow(hub.root))
    assert (hub.root / "model" / "me" / "one" / "theirs.txt").exists()


@pytest.mark.parametrize(
    "name",
    ["../up.json", "/etc/a.json", "a/../../b.json", "a\\b.json", ".env", "a/.b.json", "x\x00.json", "model.bin", ""],
)
def test_names_from_a_hub_never_lead_out_of_the_folder(name: str) -> None:
    assert not is_published(name, "model") and not is_published(name, "dataset")


@pytest.mark.parametrize("name", ["one", "a/b/c", "../x", "a/..", "me/", "/me/one", "me/on e", "https://x/y", ""])
def test_a_wrong_name_of_a_repository_is_refused(models: Path, hub: FolderHub, tmp_path: Path, name: str) -> None:
    for call in (lambda: push(models / "policy", name, hub), lambda: pull(name, tmp_path / "here", hub)):
        with pytest.raises(SettingError, match="write OWNER/NAME"):
            call()


def test_a_repository_that_is_not_there_or_is_two_things_is_named(models: Path, hub: FolderHub, tmp_path: Path) -> None:
    push(models / "policy", "me/agent", hub)
    with pytest.raises(DataError, match=r"no repository me/agnt; did you mean 'me/agent'\?"):
        pull("me/agnt", tmp_path / "here", hub)
    push(models / "data", "me/agent", hub)
    with pytest.raises(SettingError, match="choose with --kind"):
        pull("me/agent", tmp_path / "here", hub)
    assert pull("me/agent", tmp_path / "here", hub, kind="dataset").what == "data set"


def test_the_lock_of_a_killed_push_goes_with_the_next_one_also_where_nothing_is_left_to_send(
    models: Path, hub: FolderHub
) -> None:
    push(models / "policy", "me/agent", hub)
    lock = hub.root / "model" / "me" / ".agent.lock"
    lock.write_text("4194300 on elsewhere\n")
    assert not push(models / "policy", "me/agent", hub).where
    assert not lock.exists()


def test_a_model_that_lost_its_weights_is_not_fetched(models: Path, hub: FolderHub, tmp_path: Path) -> None:
    push(models / "policy", "me/agent", hub)
    (weights,) = hub.root.rglob("*.safetensors")
    weights.unlink()
    with pytest.raises(DataError, match=r"me/agent in .* holds a model without weights"):
        pull("me/agent", tmp_path / "here", hub)
    assert not (tmp_path / "here").exists()


def test_what_cannot_be_opened_is_not_sent(models: Path, hub: FolderHub, tmp_path: Path) -> None:
    (tmp_path / "run" / "policy").mkdir(parents=True)
    shutil.copytree(models / "policy", tmp_path / "run" / "policy" / "trained")
    with pytest.raises(DataError, match=r"did you mean .*run/policy/trained\?"):
        push(tmp_path / "run", "me/one", hub)
    with pytest.raises(DataError, match="check the path"):
        push(tmp_path / "nowhere", "me/one", hub)
    (tmp_path / "run/policy/trained/model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        push(tmp_path / "run/policy/trained", "me/one", hub)
    shutil.copytree(models / "data", tmp_path / "data")
    with (tmp_path / "data/questions.dev.jsonl").open("a") as file:
        file.write('{"id": "x", "question": "?", "answers": ["a"], "gold_ids": ["nowhere"]}\n')
    with pytest.raises(DataError, match="gold passage 'nowhere'"):
        push(tmp_path / "data", "me/one", hub)
    with pytest.raises(DataError, match="to stand for the hub"):
        FolderHub(tmp_path / "nowhere")
    assert not any(hub.root.iterdir())
