"""Reference worlds: laptop worlds with a name and a digest, so that results of different versions are comparable."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from coseek.core.errors import SettingError, UnknownName
from coseek.core.files import read_yaml
from coseek.core.settings import Settings, make_settings
from coseek.lab.world.settings import WorldSettings

FOLDER = Path(__file__).parent / "worlds"


class ReferenceWorld(Settings):
    """A file of `worlds`."""

    about: str
    """One line of description."""
    sha256: str
    """`World.digest` of what the settings make."""
    settings: WorldSettings
    """The settings that differ from the defaults."""


@cache
def reference_worlds() -> dict[str, ReferenceWorld]:
    """All reference worlds by name."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: make_settings(ReferenceWorld, read_yaml(path, "reference world"), path) for path in files}


def reference_world(name: str) -> ReferenceWorld:
    """A reference world by its name. Raises `UnknownName`, which suggests the closest one."""
    if name not in reference_worlds():
        raise UnknownName("reference world", name, reference_worlds())
    return reference_worlds()[name]


def chosen_world(settings: Mapping[str, object], name: str | None) -> WorldSettings:
    """The settings given, or those of the reference world `name`, which takes no others."""
    typed = make_settings(WorldSettings, settings)
    if name is None:
        return typed
    fixed = reference_world(name).settings
    if typed != WorldSettings():
        raise SettingError(f"the settings of {name} are fixed; leave out yours, or the name")
    return fixed
