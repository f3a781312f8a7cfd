"""Repository: a named place for one policy, encoder or data set, on the Hugging Face Hub or in a folder in its place.

`push` and `pull` are one step each: a repository or a folder has all new files or the old ones. Content is compared by
digest; what differs is replaced only on demand.
"""

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from coseek.core.errors import DataError, SettingError, nearest
from coseek.core.files import atomic_folder, check_link, check_not_file, check_replaceable
from coseek.core.fingerprint import file_digest
from coseek.core.lock import lock_beside, sweep_lock_beside
from coseek.hub.card import PULLED
from coseek.hub.publication import Content, RepoKind, check_content, is_published, kind_of, publication_of, repo_kind_of

KINDS: tuple[RepoKind, ...] = ("model", "dataset")
_OF_THE_HUB = re.compile(r"\.gitattributes|\.cache/huggingface/.+")
"""Files that the hub's own programs leave in a folder."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")


@dataclass(frozen=True)
class Revision:
    """The files of a repository at one time."""

    id: str
    files: Mapping[str, str]
    """Path → SHA-256 of the content, or Git's blob id (40 digits)."""


class Hub(Protocol):
    """A place of repositories."""

    place: str
    """What it is called in messages."""

    def stored(self, repo: str, kind: RepoKind) -> Revision | None:
        """The newest revision; `None` without such a repository."""

    def near(self, repo: str, kind: RepoKind) -> str:
        """What to ask about a name that is not there, as the middle of a sentence."""

    def upload(
        self, repo: str, kind: RepoKind, files: Mapping[str, Content], stored: Revision | None, public: bool
    ) -> str:
        """Replace all published files in one step, and make the repository where `stored` is `None`; returns where."""

    def download(self, repo: str, kind: RepoKind, name: str, stored: Revision, folder: Path) -> None:
        """Write one file of a revision into a folder."""


class FolderHub:
    """A folder in place of the hub: ROOT/model/OWNER/NAME and ROOT/dataset/OWNER/NAME."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise DataError(f"there is no folder {root} to stand for the hub; check the path, or make it")
        self.root, self.place = root, str(root)

    def _folder(self, repo: str, kind: RepoKind) -> Path:
        return self.root / kind / repo

    def stored(self, repo: str, kind: RepoKind) -> Revision | None:
        folder = self._folder(repo, kind)
        if not folder.is_dir():
            return None
        sweep_lock_beside(folder)
        paths = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
        for path in paths:
            check_link(path)
        files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
        digests = {name: file_digest(path) for name, path in files.items() if is_published(name, kind)}
        return Revision(hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest(), digests)

    def near(self, repo: str, kind: RepoKind) -> str:
        known = [path.relative_to(self.root / kind).as_posix() for path in (self.root / kind).glob("*/*")]
        return nearest(repo, known)

    def upload(
        self, repo: str, kind: RepoKind, files: Mapping[str, Content], stored: Revision | None, public: bool
    ) -> str:
        if public:
            raise SettingError("--public is for the Hugging Face Hub; who reads a folder is set by its permissions")
        folder = self._folder(repo, kind)

        def fill(part: Path) -> None:
            for name, content in files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copyfile(content, part / name)
                else:
                    (part / name).write_bytes(content)

        with lock_beside(folder):
            if self.stored(repo, kind) != stored:
                raise DataError(f"{repo} in {self.place} was changed at this moment; look at it, and push again")
            atomic_folder(folder, fill)
        return str(folder)

    def download(self, repo: str, kind: RepoKind, name: str, stored: Revision, folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._folder(repo, kind) / name, folder / name)


def check_repo(repo: str) -> None:
    """Raise `SettingError` for a name that is not OWNER/NAME."""
    if not _NAME.fullmatch(repo) or ".." in repo or "--" in repo:
        raise SettingError(f"{repo!r} is no name of a repository; write OWNER/NAME, of letters, digits, ., _ and -")


@dataclass(frozen=True)
class PushReport:
    """What a push did."""

    what: str
    where: str
    """Empty where the repository held the same files."""
    files: int
    left_out: tuple[str, ...]
    license: str


def push(
    folder: Path, repo: str, hub: Hub, *, license: str | None = None, public: bool = False, force: bool = False
) -> PushReport:
    """Send a policy, an encoder or a data set. `public` is for a new repository; others are private.

    Raises `DataError` for a repository with other content, unless `force`.
    """
    check_repo(repo)
    sent = publication_of(folder, license)
    stored = hub.stored(repo, sent.repo_kind)
    where = ""
    if stored is None or (differing := _differing(sent.files, stored, sent.repo_kind)):
        if stored is not None and not force and any(is_published(name, sent.repo_kind) for name in stored.files):
            raise DataError(
                f"{hub.place} has {repo} with other content ({_listed(differing)}); --force replaces it, or choose "
                "another name"
            )
        where = hub.upload(repo, sent.repo_kind, sent.files, stored, public)
    return PushReport(sent.what, where, len(sent.files), sent.left_out, sent.license)


@dataclass(frozen=True)
class PullReport:
    """What a pull did."""

    what: str
    files: int
    changed: bool
    """False where the folder held the same files."""
    left_out: tuple[str, ...]


def pull(repo: str, folder: Path, hub: Hub, *, kind: RepoKind | None = None, force: bool = False) -> PullReport:
    """Fetch a repository into a folder, all or nothing; every file is checked against its digest.

    Raises `DataError` for an unknown repository, one that holds no model and no data set, and a folder with other
    content, which `force` replaces where it is a model or a data set itself, and holds nothing else.
    """
    check_repo(repo)
    folder = folder.expanduser().resolve()
    check_not_file(folder)
    found = {one: stored for one in KINDS if kind in (None, one) and (stored := hub.stored(repo, one)) is not None}
    if len(found) > 1:
        raise SettingError(
            f"{repo} is a model and a data set in {hub.place}; choose with --kind model or --kind dataset"
        )
    if not found:
        raise DataError(f"{hub.place} has no repository {repo}{hub.near(repo, kind or 'model')}")
    ((here, newest),) = found.items()
    names = sorted(name for name in newest.files if is_published(name, here))
    left_out = tuple(sorted({*newest.files} - {*names}))
    with lock_beside(folder):
        held = any(folder.iterdir()) if folder.is_dir() else False
        if held and names and all(_same(folder / name, newest.files[name]) for name in names):
            return PullReport(kind_of(folder) or here, len(names), False, left_out)
        if held and not force:
            raise DataError(f"{folder} holds something else already; --force replaces it, or choose another folder")
        if held:
            _check_replaceable(folder)
        atomic_folder(folder, lambda part: _fetch(repo, here, names, newest, hub, part))
    return PullReport(kind_of(folder) or here, len(names), True, left_out)


def _check_replaceable(folder: Path) -> None:
    """Raise `DataError` for a folder that holds no model or data set, or anything else beside it."""
    what = kind_of(folder)
    if what is None:
        raise DataError(f"{folder} holds no policy, encoder or data set, so it is not replaced; choose another folder")
    if what != "data set" and not (folder / PULLED).is_file() and not any(folder.rglob("*.safetensors")):
        # Many a project has a config.json.
        raise DataError(f"{folder} holds no weights (*.safetensors), so it is not replaced; choose another folder")
    kind = repo_kind_of(what)

    def is_ours(name: str) -> bool:
        return name == PULLED or _OF_THE_HUB.fullmatch(name) is not None or is_published(name, kind)

    check_replaceable(folder, is_ours, f"a published {what}")


def _fetch(repo: str, kind: RepoKind, names: list[str], stored: Revision, hub: Hub, part: Path) -> None:
    for name in names:
        hub.download(repo, kind, name, stored, part)
        if not _same(part / name, stored.files[name]):
            raise DataError(f"{name} of {repo} did not arrive as it is in {hub.place}; pull again")
    for path in part.iterdir():
        if path.name.startswith("."):  # notes of the hub's library
            shutil.rmtree(path)
    if kind_of(part) is None:
        raise DataError(f"{repo} in {hub.place} holds no model, encoder or data set that coseek reads; choose another")
    if kind == "model" and not any(name.endswith(".safetensors") for name in names):
        raise DataError(f"{repo} in {hub.place} holds a model without weights (*.safetensors); choose another")
    try:
        check_content(part, kind, names)
    except DataError as error:
        raise DataError(f"{repo} in {hub.place}: {str(error).replace(f'{part}/', '')}; nothing was written") from None
    (part / PULLED).write_text(yaml.safe_dump({"repo": repo, "revision": stored.id}), encoding="utf-8")


def _differing(files: Mapping[str, Content], stored: Revision, kind: RepoKind) -> list[str]:
    """The published files that only one side has or that differ."""
    theirs = {name: digest for name, digest in stored.files.items() if is_published(name, kind)}
    return sorted(
        name
        for name in {*files, *theirs}
        if name not in files or name not in theirs or not _same(files[name], theirs[name])
    )


def _same(content: Content, digest: str) -> bool:
    """Whether a content has a digest: SHA-256, or Git's blob id."""
    if isinstance(content, Path) and not content.is_file():
        return False
    if len(digest) == 64:
        return (file_digest(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()) == digest
    size = content.stat().st_size if isinstance(content, Path) else len(content)
    sha = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    sha.update(content.read_bytes() if isinstance(content, Path) else content)
    return sha.hexdigest() == digest


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
