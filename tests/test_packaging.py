from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import homeagent
import homeagent_sdk

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernel", "memory_service", "provider_service", "plugin_host", "homeagent", "plugins", "adapters")


def build_wheel(source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sdk_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT / "sdk", tmp_path_factory.mktemp("sdk"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("homeagent"))


def files_of(folder: Path) -> set[str]:
    return {
        str(file.relative_to(folder.parent))
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_sdk_installs_alone_in_an_empty_environment(sdk_wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--prefer-binary"]
    done = subprocess.run([*install, str(sdk_wheel)], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    program = (
        "import pkgutil, importlib, importlib.metadata, homeagent_sdk\n"
        "for module in pkgutil.walk_packages(homeagent_sdk.__path__, 'homeagent_sdk.'):\n"
        "    importlib.import_module(module.name)\n"
        "from homeagent_sdk.catalogue import text\n"
        "assert text('command.yes', 'zh') == '是'\n"
        "print(homeagent_sdk.__version__, *sorted(d.name.lower() for d in importlib.metadata.distributions()))"
    )
    done = subprocess.run(
        [str(python), "-I", "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [homeagent_sdk.__version__, "homeagent-sdk", "msgpack", "pyzmq", "structlog"]


def test_the_wheel_of_the_sdk_has_all_its_files(sdk_wheel: Path) -> None:
    names = set(zipfile.ZipFile(sdk_wheel).namelist())
    assert files_of(ROOT / "sdk" / "homeagent_sdk") <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_has_the_services_the_plugins_and_the_adapters(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in PACKAGES:
        assert files_of(ROOT / package) <= names, package
    assert {"adapters/openai.lua", "adapters/ollama.lua", "plugins/webui/plugin.json"} <= names
    assert not any(name.startswith(("tests/", "sdk/", "homeagent_sdk/")) for name in names)


def test_the_wheel_has_the_command_and_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
        entry_points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
        licence = archive.read(metadata.replace("METADATA", "licenses/LICENSE"))
    assert "homeagent = homeagent.command:main" in entry_points
    assert (fields["License-Expression"], fields["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert f"homeagent-sdk=={homeagent_sdk.__version__}" in (fields.get_all("Requires-Dist") or [])
    assert licence == (ROOT / "LICENSE").read_bytes() == (ROOT / "sdk" / "LICENSE").read_bytes()


def test_there_is_one_version() -> None:
    versions = {
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        for folder in (".", "sdk")
    }
    assert versions == {homeagent.__version__, homeagent_sdk.__version__}
    assert len(versions) == 1


def test_make_help_lists_the_targets_of_the_readme() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    for target in ("up", "test", "check", "clean"):
        assert f"make {target} " in shown


def test_continuous_integration_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().splitlines()[-1] == "exec make test"
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "CONTRIBUTING.md", "docs/commands.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    file = ROOT / name
    links = re.findall(r"\]\(([^)#:]+)\)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []


def test_both_readmes_have_the_same_commands_and_variables() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    for pattern in (r"HOMEAGENT_\w+", r"`homeagent \w+", r"docs/[\w.]+"):
        first, second = (set(re.findall(pattern, content)) for content in texts)
        assert first == second, pattern
