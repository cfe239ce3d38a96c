"""Loading a plugin's folder as the package ``homeagent_plugins.<name>``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin import Plugin
from homeagent_sdk.plugin.manifest import Manifest

PACKAGE = "homeagent_plugins"


def load_plugin(folder: Path, manifest: Manifest) -> Plugin:
    """Import the manifest's entry and return the :class:`Plugin` that it calls ``plugin``.

    :raises Invalid: the entry defines no ``plugin``
    :raises BaseException: whatever importing it raised
    """
    _make_package(PACKAGE, None)
    name = f"{PACKAGE}.{manifest.name}"
    _make_package(name, folder)
    entry = Path(manifest.entry).with_suffix("")
    module = importlib.import_module(".".join([name, *entry.parts]))
    plugin = getattr(module, "plugin", None)
    if not isinstance(plugin, Plugin):
        raise Invalid(
            f"{folder / manifest.entry} has no plugin",
            field="entry",
            hint="write `plugin = Plugin()` at module level, and decorate functions with it",
        )
    return plugin


def _make_package(name: str, folder: Path | None) -> None:
    """Make a package of a folder, whatever the folder is called; run its ``__init__.py`` if it has one."""
    if name in sys.modules:
        return
    init = folder / "__init__.py" if folder else None
    if init is not None and init.is_file():
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
        if spec is None or spec.loader is None:
            raise Invalid(f"{init} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return
    package = ModuleType(name)
    package.__path__ = [str(folder)] if folder else []
    sys.modules[name] = package
