"""Build the wheel and the source archive twice, and compare them bit by bit.

    python -m bench.release [--out dist]        where `hatchling` is installed, which is all it needs (`make release`)

The commit that is checked out is built in two folders of other names, under other rights, times, locales, time zones
and hash seeds. The time stamps inside are the commit's. Where both builds agree they are put into `--out` with their
SHA-256 in `SHA256SUMS`; exits 1 where they differ, with the members that do.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("one", 0o022, {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}),
    ("two/of another name", 0o077, {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1"}),
)
"""Folder, mask of rights, and variables of each build."""


def git(*words: str) -> bytes:
    """What a git command prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def built(folder: Path, mask: int, variables: dict[str, str], epoch: str) -> dict[str, Path]:
    """Build the checked-out commit in a new folder; returns the files by name."""
    folder.mkdir(parents=True)
    archive = folder / "source.tar"
    archive.write_bytes(git("archive", "HEAD"))
    with tarfile.open(archive) as source:
        source.extractall(folder / "source", filter=partial(_checked_out, mask))
    environment = {**os.environ, **variables, "SOURCE_DATE_EPOCH": epoch}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=folder / "source", env=environment, umask=mask, check=True, capture_output=True)
    return {path.name: path for path in sorted((folder / "dist").iterdir())}


def _checked_out(mask: int, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """A member with the rights and the time of a checkout on this machine."""
    safe = tarfile.data_filter(member, folder)
    safe.mode, safe.mtime = (0o777 if member.mode & 0o100 else 0o666) & ~mask, time.time()
    return safe


def members(path: Path) -> dict[str, str]:
    """Name → what is known of each member of a wheel or source archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {one.filename: f"{one.date_time} {one.external_attr} {one.CRC}" for one in wheel.infolist()}
    with tarfile.open(path) as source:
        return {one.name: f"{one.mtime} {one.mode} {one.uid} {one.size}" for one in source.getmembers()}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(one: dict[str, Path], other: dict[str, Path]) -> list[str]:
    """What differs between the files of two builds."""
    if one.keys() != other.keys():
        return [f"one build has {sorted(one)}, the other {sorted(other)}"]
    found = []
    for name, path in one.items():
        if digest(path) != digest(other[name]):
            here, there = members(path), members(other[name])
            names = [member for member in here | there if here.get(member) != there.get(member)]
            found.append(f"{name} differs in {', '.join(sorted(names)[:10]) or 'its container'}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    epoch = git("log", "-1", "--format=%ct").decode().strip()
    with tempfile.TemporaryDirectory() as scratch:
        one, other = (built(Path(scratch) / name, mask, variables, epoch) for name, mask, variables in PLACES)
        found = differences(one, other)
        for sentence in found:
            print(sentence)
        if found:
            return 1
        args.out.mkdir(parents=True, exist_ok=True)
        sums = {name: digest(path) for name, path in one.items()}
        for path in one.values():
            shutil.copy(path, args.out / path.name)
    (args.out / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in sums.items()), encoding="utf-8")
    for name, sha in sums.items():
        print(f"{name}: two builds, one digest {sha}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
