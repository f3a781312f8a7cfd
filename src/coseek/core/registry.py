"""Registry of parts: a part's name is its file's name in a package, or the path of a plugin (`own_part.py`)."""

import importlib
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from coseek.core.errors import DataError, UnknownName
from coseek.core.plugins import PluginSpec, is_plugin_path, load_plugin


def plugin_names(package: str) -> list[str]:
    """The names of a package's parts (`some_part.py` is `some-part`); imports none of them."""
    folder: Iterable[str] = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(folder))
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def find_plugin(kind: str, package: str, name: str, offers: PluginSpec | None = None) -> ModuleType:
    """Import the part called `name`. Raises `UnknownName` with the nearest name.

    With `offers`, `name` may also be the path of a Python file, which is executed: pass only names that the user gave.
    """
    if offers is not None and is_plugin_path(name):
        return load_plugin(kind, name, offers)
    known = plugin_names(package)
    if name not in known:
        raise UnknownName(kind, name, known)
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def find_yaml(kind: str, folder: Path, name: str) -> Path:
    """The file `NAME.yaml` in `folder`, or a path that ends in `.yaml` or `.yml`. Raises `UnknownName`."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise DataError(f"there is no {kind} file {name}; check the path")
        return Path(name)
    known = [path.stem for path in folder.glob("*.yaml")]
    if name not in known:
        raise UnknownName(kind, name, known)
    return folder / f"{name}.yaml"
