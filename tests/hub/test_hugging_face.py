"""The hub's own client against a small server that speaks its protocol: no network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.hub_server import HubState, hub_server

from coseek.core.errors import DataError, UserError
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, save_questions
from coseek.hub.hugging_face import HuggingFaceHub
from coseek.hub.publication import publication_of
from coseek.hub.repository import pull, push


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubState]:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with hub_server() as state:
        yield state


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Corpus([Passage("a", "A", "text"), Passage("b", "B", "text")]).save(tmp_path / "data" / "corpus.jsonl")
    for split in ("dev", "test"):
        save_questions(tmp_path / "data" / f"questions.{split}.jsonl", [Question(split, "?", ("A",), ("a",))])
    return tmp_path / "data"


@pytest.mark.slow
def test_a_push_is_private_and_one_commit_and_is_pulled_again(server: HubState, data: Path, tmp_path: Path) -> None:
    hub = HuggingFaceHub(server.url)
    done = push(data, "me/world", hub)
    repo = server.repos["datasets", "me/world"]
    assert repo.private and len(repo.commits) == 2 and done.where.endswith("/datasets/me/world")
    sent = publication_of(data).files
    assert repo.files == {name: one if isinstance(one, bytes) else one.read_bytes() for name, one in sent.items()}
    assert not push(data, "me/world", hub).where and len(repo.commits) == 2

    assert pull("me/world", tmp_path / "here", hub).what == "data set"
    hidden = [path.name for path in (tmp_path / "here").iterdir() if path.name.startswith(".")]
    assert hidden == [".pulled.yaml"] and repo.commits[-1] in (tmp_path / "here" / ".pulled.yaml").read_text()
    assert all((tmp_path / "here" / name).read_bytes() == content for name, content in repo.files.items())
    push(data, "me/open", hub, public=True)
    assert not server.repos["datasets", "me/open"].private


def test_other_content_on_the_hub_is_replaced_only_on_demand(server: HubState, data: Path) -> None:
    hub = HuggingFaceHub(server.url)
    push(data, "me/world", hub)
    repo = server.repos["datasets", "me/world"]
    repo.files |= {"questions.old.jsonl": b"", ".gitattributes": b"theirs"}
    with pytest.raises(DataError, match=r"other content \(questions\.old\.jsonl\); --force"):
        push(data, "me/world", hub)
    push(data, "me/world", hub, force=True)
    assert "questions.old.jsonl" not in repo.files and repo.files[".gitattributes"] == b"theirs"


def test_a_commit_between_comparison_and_push_is_not_overwritten(server: HubState, data: Path) -> None:
    class Slow(HuggingFaceHub):
        """Somebody pushes right after the comparison."""

        def stored(self, repo, kind):  # type: ignore[no-untyped-def]
            found = super().stored(repo, kind)
            server.repos["datasets", "me/world"].commits.append("1" * 40)
            return found

    push(data, "me/world", HuggingFaceHub(server.url))
    (data / "questions.dev.jsonl").unlink()
    with pytest.raises(UserError, match=r"refused me/world \(412.*push again"):
        push(data, "me/world", Slow(server.url), force=True)
    assert "questions.dev.jsonl" in server.repos["datasets", "me/world"].files


def test_what_the_hub_refuses_is_one_sentence_with_the_way_out(server: HubState, data: Path, tmp_path: Path) -> None:
    hub = HuggingFaceHub(server.url)
    with pytest.raises(DataError, match=r"no repository me/nothing.*hf auth login"):
        pull("me/nothing", tmp_path / "here", hub)
    with pytest.raises(DataError, match=r"does not take the card of me/one.*--license"):
        push(data, "me/one", hub, license="nonsense")
    push(data, "me/one", hub)  # after the mistake is mended
    for status, way in ((403, "right to write"), (500, "try again later")):
        server.refuses = status
        with pytest.raises(UserError, match=f"{status}.*{way}"):
            push(data, "me/two", hub)


def test_a_file_that_changes_on_its_way_is_not_taken(server: HubState, data: Path, tmp_path: Path) -> None:
    class Changed(HuggingFaceHub):
        """The file is another one by the time that it is fetched."""

        def download(self, *given):  # type: ignore[no-untyped-def]
            server.repos["datasets", "me/world"].files["corpus.jsonl"] = b'{"id": "x", "title": "", "text": "other"}\n'
            super().download(*given)

    push(data, "me/world", HuggingFaceHub(server.url))
    with pytest.raises(DataError, match=r"corpus\.jsonl of me/world did not arrive"):
        pull("me/world", tmp_path / "here", Changed(server.url))
    assert not (tmp_path / "here").exists()


def test_a_hub_that_does_not_answer_is_named(data: Path) -> None:
    with pytest.raises(UserError, match=r"cannot reach http://127\.0\.0\.1:9 .*--hub"):
        push(data, "me/one", HuggingFaceHub("http://127.0.0.1:9"))
