"""Finding plugins: which folders there are, what they say of themselves, and whether their files have changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin.manifest import Manifest, read_manifest

_IGNORED = frozenset({"__pycache__", ".git", ".DS_Store"})
_MOST_FILES = 10_000


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    """One plugin folder."""

    name: str
    """From its manifest; the folder's name where that cannot be read."""
    folder: Path
    tier: str
    manifest: Manifest | None
    problem: str = ""
    """Why it cannot be started."""
    digest: str = ""
    """SHA-256 over the names and contents of its files."""


def find_plugins(builtin: Path, external: Path) -> list[FoundPlugin]:
    """Look at both folders. Reads files: call it in a thread.

    Of two plugins with one name the first is taken: builtin before external, then by folder name. The other one has a
    ``problem`` and goes by the name of its folder.
    """
    found: list[FoundPlugin] = []
    taken: dict[str, Path] = {}
    for root, tier in ((builtin, "builtin"), (external, "external")):
        for folder in _folders(root):
            plugin = look_at(folder, tier)
            if not plugin.problem and plugin.name in taken:
                problem = text("host.name_taken", name=plugin.name, folder=taken[plugin.name])
                plugin = replace(plugin, name=folder.name, problem=problem)
            if not plugin.problem:
                taken[plugin.name] = folder
            found.append(plugin)
    return [_with_own_name(plugin, taken) for plugin in found]


def _with_own_name(plugin: FoundPlugin, taken: dict[str, Path]) -> FoundPlugin:
    """Tell a plugin that cannot be started apart from the one whose name its folder bears."""
    if plugin.problem and plugin.name in taken:
        return replace(plugin, name=f"{plugin.name}@{plugin.tier}")
    return plugin


def look_at(folder: Path, tier: str) -> FoundPlugin:
    """Read one plugin folder; what is wrong with it becomes ``problem``."""
    try:
        digest = digest_of(folder)
        manifest = read_manifest(folder)
    except Invalid as error:
        return FoundPlugin(folder.name, folder, tier, None, str(error))
    except OSError as error:
        return FoundPlugin(folder.name, folder, tier, None, f"{folder}: {error.strerror}")
    return FoundPlugin(manifest.name, folder, tier, manifest, digest=digest)


def digest_of(folder: Path) -> str:
    """Return the SHA-256 over all files of a folder, caches left out.

    :raises Invalid: there are more files than a plugin can sensibly have
    """
    total = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*") if _IGNORED.isdisjoint(path.parts) and path.is_file())
    if len(files) > _MOST_FILES:
        raise Invalid(f"{folder} holds more than {_MOST_FILES} files", hint="keep data in plugin.data_dir")
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        total.update(str(path.relative_to(folder)).encode(errors="surrogateescape") + b"\0" + content)
    return total.hexdigest()


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] not in "._")
