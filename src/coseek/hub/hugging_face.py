"""The Hugging Face Hub, by its own library: HF_ENDPOINT, HF_TOKEN and `hf auth login` count as they do for it.

A push is one commit on top of the revision that was compared; another one in between is refused by the hub.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from httpx2 import HTTPError  # what huggingface_hub asks with
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from coseek import __version__
from coseek.core.errors import DataError, UserError
from coseek.hub.publication import Content, RepoKind, is_published
from coseek.hub.repository import Revision


class HuggingFaceHub:
    """The hub at `endpoint`; by default that of `HF_ENDPOINT`."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._api = HfApi(endpoint, library_name="coseek", library_version=__version__)
        self.place = self._api.endpoint

    def stored(self, repo: str, kind: RepoKind) -> Revision | None:
        with self._answered(repo):
            try:
                asked = self._api.model_info if kind == "model" else self._api.dataset_info
                info = asked(repo, files_metadata=True)
            except RepositoryNotFoundError:
                return None
        files = {one.rfilename: one.lfs.sha256 if one.lfs else (one.blob_id or "") for one in info.siblings or ()}
        return Revision(info.sha or "", files)

    def near(self, repo: str, kind: RepoKind) -> str:
        return "; check the name; a private one is seen after `hf auth login`"

    def upload(
        self, repo: str, kind: RepoKind, files: Mapping[str, Content], stored: Revision | None, public: bool
    ) -> str:
        with self._answered(repo), _card_accepted(repo):
            if stored is None:
                self._api.create_repo(repo, repo_type=kind, private=not public)
            gone = [name for name in (stored.files if stored else ()) if is_published(name, kind) and name not in files]
            commit = self._api.create_commit(
                repo,
                [
                    *(CommitOperationAdd(name, _file(content)) for name, content in files.items()),
                    *(CommitOperationDelete(name) for name in gone),
                ],
                commit_message=f"coseek {__version__}",
                repo_type=kind,
                parent_commit=stored.id if stored else None,
            )
        return str(commit.repo_url)

    def download(self, repo: str, kind: RepoKind, name: str, stored: Revision, folder: Path) -> None:
        with self._answered(repo):
            self._api.hf_hub_download(repo, name, repo_type=kind, revision=stored.id, local_dir=folder)

    @contextmanager
    def _answered(self, repo: str) -> Iterator[None]:
        """Turn a refusal and a hub that does not answer into one sentence."""
        try:
            yield
        except OfflineModeIsEnabled:
            raise UserError(
                "HF_HUB_OFFLINE is set, so the hub is not asked; unset it, or name a folder by --hub"
            ) from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            ways = {
                401: "log in with `hf auth login`, or set HF_TOKEN",
                403: "your token may not do this; it needs the right to write there",
                409: "it exists already or was changed at this moment; push again",
                412: "it was changed at this moment; push again",
            }
            way = ways.get(status, "try again later" if status >= 500 else "see the message")
            raise UserError(f"{self.place} refused {repo} ({status}: {error.server_message or error}); {way}") from None
        except (HTTPError, LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise UserError(
                f"cannot reach {self.place} ({why}); check the network and HF_ENDPOINT, or name a folder by --hub"
            ) from None


@contextmanager
def _card_accepted(repo: str) -> Iterator[None]:
    """Turn the refusal of a card's front matter into one sentence."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, OSError) or "README.md" not in str(error):
            raise
        why = " ".join(str(error).split())
        raise DataError(f"the hub does not take the card of {repo} ({why}); mend README.md, or the --license") from None


def _file(content: Content) -> str | io.BytesIO:
    return str(content) if isinstance(content, Path) else io.BytesIO(content)
