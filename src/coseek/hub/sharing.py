"""Sharing: pushes a policy, an encoder or a data set to the Hugging Face Hub, and pulls it, by the hub's own library.

HF_ENDPOINT, HF_TOKEN and `hf auth login` work as in that library. Hidden files and training states are never sent.
Weights are sent and fetched as safetensors only.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

import yaml

from coseek import __version__
from coseek.agents.agent_card import AgentCard
from coseek.core.errors import DataError, SettingError, UserError, missing_extras
from coseek.core.files import Json, atomic_folder, check_not_file, read_json
from coseek.hub.card import FILE, PULLED, SOURCE, UNKNOWN, ModelCard, data_card, document, front_of, read_card, shared
from coseek.models.model_folder import HUB_NAME
from coseek.retrieval.vectors.encoder import EncoderCard, check_modules

if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo, HfApi, ModelInfo

RepoKind: TypeAlias = Literal["model", "dataset"]
FolderKind: TypeAlias = Literal["model", "encoder", "data set"]
KINDS: tuple[RepoKind, ...] = ("model", "dataset")

_TEXTS = {".json", ".txt", ".jinja", ".yaml", ".yml", ".md", ".py"}
_DATA = re.compile(r"corpus\.jsonl|questions\.[\w-]+\.jsonl|world\.json|source\.json|README\.md")
_STATE = re.compile(r"(checkpoint|optimizer|scheduler|scaler|rng_state|trainer_state|training_args|\.).*")
"""Files and folders with the state of a training, and hidden ones."""


@dataclass(frozen=True)
class Shared:
    """Summary of a push or a pull."""

    what: FolderKind
    files: int
    where: str = ""
    """Address of the repository."""
    left_out: tuple[str, ...] = ()
    """Files of the folder that were not sent."""
    license: str = UNKNOWN


def push(folder: Path, repo: str, *, license: str | None = None, public: bool = False, force: bool = False) -> Shared:
    """Send a policy, an encoder or a data set with its card, in one commit. A new repository is private unless
    `public`.

    Raises `DataError` for a folder that coseek could not open again, and for an existing repository unless `force`,
    which replaces its files.
    """
    folder_kind = _checked_kind(folder)
    kind: RepoKind = "dataset" if folder_kind == "data set" else "model"
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = {name for name in files if is_published(name, kind)}
    front, text = _card(folder, folder_kind)
    card_license = front.pop("license", None)
    license = license or (card_license if isinstance(card_license, str) else UNKNOWN)
    texts = {FILE: document({"license": license, **front}, text.strip())}
    if kind == "dataset" and SOURCE in names:  # without the paths of this machine
        texts[SOURCE] = json.dumps(shared(read_json(folder / SOURCE)), ensure_ascii=False, indent=2) + "\n"
    with tempfile.TemporaryDirectory() as stage, _open_api(repo) as api:
        if not force and _info(api, repo, kind) is not None:
            raise DataError(f"{api.endpoint} has {repo} already; --force replaces its files, or choose another name")
        for name in names | {*texts}:
            path = Path(stage) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in texts:
                path.write_text(texts[name], encoding="utf-8")
            else:
                path.symlink_to((folder / name).resolve())
        api.create_repo(repo, repo_type=kind, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo, folder_path=stage, repo_type=kind, delete_patterns="*", commit_message=f"coseek {__version__}"
        )
    left_out = tuple(name for name in files if name not in names)
    return Shared(folder_kind, len(names | {*texts}), str(commit.repo_url), left_out, license)


def pull(repo: str, folder: Path, *, kind: RepoKind | None = None) -> Shared:
    """Fetch a repository into a new or empty folder, all or nothing. Raises `DataError` and `SettingError`."""
    folder = folder.expanduser()
    check_not_file(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise DataError(f"{folder} holds something already; choose a new folder")
    with _open_api(repo) as api:
        repos = {name: info for name in KINDS if kind in (None, name) and (info := _info(api, repo, name))}
        if not repos:
            raise DataError(
                f"{api.endpoint} has no repository {repo}; check the name; a private one is seen after `hf auth login`"
            )
        if len(repos) > 1:
            raise SettingError(f"{repo} is a model and a data set; choose with --kind model or --kind dataset")
        ((repo_kind, info),) = repos.items()
        names = [file.rfilename for file in info.siblings or () if is_published(file.rfilename, repo_kind)]

        def fill(part: Path) -> None:
            api.snapshot_download(repo, repo_type=repo_kind, revision=info.sha, local_dir=part, allow_patterns=names)
            shutil.rmtree(part / ".cache", ignore_errors=True)  # notes of the hub's library
            if (folder_kind := kind_of(part)) is None:
                raise DataError(f"{repo} holds no model, encoder or data set that coseek reads; choose another")
            if folder_kind != "data set" and not any(part.rglob("*.safetensors")):
                raise DataError(f"{repo} holds a model without weights (*.safetensors); choose another")
            (part / PULLED).write_text(yaml.safe_dump({"repo": repo, "revision": info.sha}), encoding="utf-8")

        atomic_folder(folder, fill)
    return Shared(kind_of(folder) or "model", len(names), f"{api.endpoint}/{repo}")


def kind_of(folder: Path) -> FolderKind | None:
    """The kind of a folder, by its files; `None` for any other folder."""
    if (folder / "modules.json").is_file():
        return "encoder"
    if (folder / "config.json").is_file():
        return "model"
    is_data = (folder / "corpus.jsonl").is_file() or any(folder.glob("questions.*.jsonl"))
    return "data set" if is_data else None


def is_published(name: str, kind: RepoKind) -> bool:
    """Whether a file with this relative path is sent and fetched."""
    path = PurePosixPath(name)
    if any(_STATE.fullmatch(part) for part in path.parts):
        return False
    return bool(_DATA.fullmatch(name)) if kind == "dataset" else path.suffix in _TEXTS | {".safetensors", ".model"}


@contextmanager
def _open_api(repo: str) -> "Iterator[HfApi]":
    """Open the hub's client. A refusal, or a hub that cannot be reached, becomes a `UserError`."""
    if not HUB_NAME.fullmatch(repo) or ".." in repo or "--" in repo:
        raise SettingError(f"{repo!r} is no name of a repository; write OWNER/NAME, of letters, digits, ., _ and -")
    with missing_extras("push and pull"):
        from httpx2 import HTTPError  # the HTTP library of huggingface_hub
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    api = HfApi(os.environ.get("HF_ENDPOINT"), library_name="coseek", library_version=__version__)
    try:
        yield api
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set, so the hub is not asked; unset it") from None
    except HfHubHTTPError as error:
        status, why = error.response.status_code, error.server_message or " ".join(str(error).split())
        advice = "try again later" if status >= 500 else "log in by `hf auth login` as somebody who may do this"
        raise UserError(f"{api.endpoint} refused {repo} ({status}: {why}); {advice}") from None
    except (HTTPError, LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise UserError(f"cannot reach {api.endpoint} ({why}); check the network and HF_ENDPOINT") from None
    except ValueError as error:
        if FILE not in str(error):
            raise
        why = " ".join(str(error).split())
        raise DataError(f"the hub does not take the card of {repo} ({why}); mend README.md, or the --license") from None


def _info(api: "HfApi", repo: str, kind: RepoKind) -> "ModelInfo | DatasetInfo | None":
    """The newest revision and its files; `None` if there is no such repository."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return api.model_info(repo) if kind == "model" else api.dataset_info(repo)
    except RepositoryNotFoundError:
        return None


def _checked_kind(folder: Path) -> FolderKind:
    """The kind of a folder. Raises `DataError` if coseek could not open it again."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; check the path")
    kind = kind_of(folder)
    if kind is None:
        subfolders = ("policy/trained", "policy/warm", "encoder", "base", "generator", "simulator", "data")
        candidate = next((folder / subfolder for subfolder in subfolders if kind_of(folder / subfolder)), None)
        hint = f"did you mean {candidate}?" if candidate else "name one, such as OUT/policy/trained or OUT/encoder"
        raise DataError(f"{folder} holds no policy, encoder or data set; {hint}")
    if kind != "data set" and not any(folder.rglob("*.safetensors")):
        raise DataError(f"{folder} has no weights (*.safetensors); finish the training, or save it as safetensors")
    if kind == "encoder":
        EncoderCard.of(folder)
        check_modules(folder)
    elif kind == "model":
        AgentCard.read(folder)
    return kind


def _card(folder: Path, kind: FolderKind) -> tuple[dict[str, Json], str]:
    """Front matter and text of the folder's card, or of a new card."""
    if (card := read_card(folder)) is not None:
        return card
    if kind == "data set":
        return front_of(data_card(folder), folder / FILE)
    about = "A text encoder for dense search." if kind == "encoder" else "A language model for search agents."
    new_card = ModelCard(kind="encoder" if kind == "encoder" else "policy", title=folder.resolve().name, about=about)
    return front_of(new_card.text(), folder / FILE)
