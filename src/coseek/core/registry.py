"""Registry: a part's name is its file's name. Put a file in the folder and the command line knows it.

A file that lies elsewhere is a part, too, where its path is named instead (`own_part.py`).
"""

import importlib
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from coseek.core.errors import DataError, UnknownName
from coseek.core.plugins import PluginSpec, is_plugin_path, load_plugin


def plugin_names(package: str) -> list[str]:
    """The parts of a package, `some_part.py` as `some-part`, without importing any of them."""
    folder: Iterable[str] = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(folder))
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def find_plugin(kind: str, package: str, name: str, offers: PluginSpec | None = None) -> ModuleType:
    """Import the part called `name`; an unknown one is refused with the nearest name.

    Where `offers` says what such a part has, `name` may also be the path of a Python file, seen from the working
    folder, which is run. Whoever passes it vouches that the user named that file.
    """
    if offers is not None and is_plugin_path(name):
        return load_plugin(kind, name, offers)
    known = plugin_names(package)
    if name not in known:
        raise UnknownName(kind, name, known)
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def find_yaml(kind: str, folder: Path, name: str) -> Path:
    """The file behind a name: one of ours, `NAME.yaml` in `folder`, or a path that ends in `.yaml` or `.yml`."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise DataError(f"there is no {kind} file {name}; check the path")
        return Path(name)
    known = [path.stem for path in folder.glob("*.yaml")]
    if name not in known:
        raise UnknownName(kind, name, known)
    return folder / f"{name}.yaml"
