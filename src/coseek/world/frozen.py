"""Frozen worlds: laptop worlds with a name and a digest, so that figures of different versions are of the same one."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from coseek.core.errors import SettingError, UnknownName
from coseek.core.files import read_yaml
from coseek.core.settings import Settings, make_settings
from coseek.world.settings import WorldSettings

FOLDER = Path(__file__).parent / "worlds"


class FrozenWorld(Settings):
    """A file of `worlds`."""

    about: str
    sha256: str
    """`World.digest` of what the settings make."""
    settings: WorldSettings


@cache
def frozen_worlds() -> dict[str, FrozenWorld]:
    """All frozen worlds by name."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: make_settings(FrozenWorld, read_yaml(path, "frozen world"), path) for path in files}


def frozen_world(name: str) -> FrozenWorld:
    """A frozen world by its name. Raises `UnknownName` with the nearest one."""
    if name not in frozen_worlds():
        raise UnknownName("frozen world", name, frozen_worlds())
    return frozen_worlds()[name]


def chosen_world(given: Mapping[str, object], name: str | None) -> WorldSettings:
    """The settings given, or those of the frozen world `name`, which takes no others."""
    chosen = make_settings(WorldSettings, given)
    if name is None:
        return chosen
    frozen = frozen_world(name).settings
    if chosen != WorldSettings():
        raise SettingError(f"the settings of {name} are frozen with it; leave out yours, or the name")
    return frozen
