"""What holds of the files in ``deploy/`` without an engine to run them; ``deploy/test-compose`` does the rest."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.deploy.containers.run import CHECKS, NO_ENGINE
from tests.deploy.containers.stack import GROUP, USERS

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
MAKE_SECRETS = ROOT / "deploy" / "make-secrets"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


def make_secrets(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MAKE_SECRETS), *arguments],
        env={**os.environ, "HOMEAGENT_SECRETS": str(folder)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_all_files_know_the_same_users() -> None:
    users = {name: str(number) for name, number in USERS.items()}
    assert dict(re.findall(r"\b(kernel|memory|provider|plugins):(\d+)", DOCKERFILE)) == users
    assert dict(re.findall(r"(\w+)\) echo (\d+)", MAKE_SECRETS.read_text())) == users
    assert re.findall(r'user: "(\d+):(\d+)"', COMPOSE) == [(number, str(GROUP)) for number in users.values()]
    assert f"uid={USERS['kernel']},gid={GROUP}" in COMPOSE and f"--gid {GROUP}" in DOCKERFILE


def test_the_image_is_built_from_the_packages_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert rules[0] == "*", "all that is not named stays out"
    assert allowed == {*packages["packages"], "sdk", "pyproject.toml", "README.md", "LICENSE", "deploy/container"}


def test_secrets_are_kept_out_of_the_repository() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "deploy/secrets/" in ignored and ".env" in ignored


def test_every_port_is_published_on_loopback() -> None:
    ports = re.findall(r"ports: \[(.*)\]", COMPOSE)
    assert ports and all(port.startswith('"127.0.0.1:') for port in ports)


@needs_root
def test_every_secret_of_the_compose_file_is_made_for_its_service_alone(tmp_path: Path) -> None:
    assert make_secrets(tmp_path).returncode == 0
    named = set(re.findall(r'file: "[^"]*/(\w+/[\w.]+)"}', COMPOSE))
    made = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    assert named == set(made)
    for name, path in made.items():
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == 0o400, name
        assert (found.st_uid, found.st_gid) == (USERS[path.parent.name], GROUP), name


@needs_root
def test_the_kernel_and_each_service_have_the_same_key(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    for peer, service in (("memory", "memory"), ("provider", "provider"), ("host", "plugins")):
        key = (tmp_path / service / f"{peer}.key").read_text()
        assert re.fullmatch(r"[0-9a-f]{64}\n", key)
        assert (tmp_path / "kernel" / f"{peer}.key").read_text() == key
    keys = [text for name, text in contents(tmp_path / "kernel").items() if name.endswith(".key")]
    assert len(set(keys)) == len(keys) == 5, "each peer has a key of its own"


@needs_root
def test_the_owner_s_key_is_shown_once(tmp_path: Path) -> None:
    shown = make_secrets(tmp_path).stdout
    key = (tmp_path / "kernel" / "api_key").read_text().strip()
    assert re.fullmatch(r"ha-[A-Za-z0-9_-]{43}", key) and key in shown
    before = contents(tmp_path)
    assert make_secrets(tmp_path).stdout == ""
    assert contents(tmp_path) == before, "what is there is kept"


@needs_root
def test_a_copy_that_is_missing_is_made_from_the_other(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "memory" / "memory.key").unlink()
    (tmp_path / "kernel" / "host.key").unlink()
    assert make_secrets(tmp_path).returncode == 0
    assert contents(tmp_path) == before


@needs_root
def test_the_model_s_key_is_taken_from_a_file_or_from_stdin(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-from-a-file\n")
    folder = tmp_path / "secrets"
    assert make_secrets(folder, "--llm-key", str(tmp_path / "key")).returncode == 0
    assert (folder / "provider" / "llm_api_key").read_text() == "sk-from-a-file\n"
    assert make_secrets(folder, "--llm-key", "-", stdin="sk-from-stdin").returncode == 0
    assert (folder / "provider" / "llm_api_key").read_text() == "sk-from-stdin"
    make_secrets(folder)
    assert (folder / "provider" / "llm_api_key").read_text() == "sk-from-stdin"


@pytest.mark.parametrize("arguments", [["--help"], ["--llm-key"], ["sk-on-the-command-line"]])
def test_make_secrets_explains_itself(tmp_path: Path, arguments: list[str]) -> None:
    done = make_secrets(tmp_path, *arguments)
    assert done.returncode == 2 and "deploy/make-secrets --llm-key FILE" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_an_engine_test_compose_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "deploy" / "test-compose")],
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == NO_ENGINE
    assert "cannot run" in done.stdout and "Docker engine" in done.stdout
    assert "Traceback" not in done.stderr


def test_every_check_of_the_containers_is_run() -> None:
    defined = []
    for path in (Path(__file__).parent / "containers").glob("*.py"):
        defined += re.findall(r"^def ([a-z]\w+)\(stack: Stack\)", path.read_text(), re.MULTILINE)
    assert sorted(check.__name__ for check in CHECKS) == sorted(defined)
