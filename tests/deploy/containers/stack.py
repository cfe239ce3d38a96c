"""HomeAgent in containers, for one run of the tests: under a name, with secrets and on a port of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.deploy.containers import engine
from tests.deploy.containers.client import Client
from tests.home import free_port, wait_until

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "homeagent:test"
SERVICES = ("kernel", "memory", "provider", "plugins")
USERS = {"kernel": 10001, "memory": 10002, "provider": 10003, "plugins": 10004}
GROUP = 10000
LLM_KEY = f"sk-test-{secrets.token_hex(16)}"
START_S = 120.0

_FILES = ("docker-compose.yml", "tests/deploy/docker-compose.test.yml")
_BUILD_S = 1800.0
_OPERATOR = (Path(__file__).parent / "call.py").read_text(encoding="utf-8")


class Stack:
    """The containers. Made by :meth:`build` and :meth:`up`, removed by :meth:`remove`."""

    def __init__(self) -> None:
        self.compose = engine.find_compose()
        self.project = f"homeagent-test-{secrets.token_hex(3)}"
        self.secrets = Path(tempfile.mkdtemp(prefix=self.project))
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOMEAGENT_")}
        self.environment = kept | {
            "HOMEAGENT_IMAGE": IMAGE,
            "HOMEAGENT_SECRETS": str(self.secrets),
            "HOMEAGENT_PORT": str(self.port),
            "HOMEAGENT_LLM_BASE_URL": "http://far-end:8000/v1",
            "HOMEAGENT_LLM_MODEL": "fake-model",
            "FAR_END_KEY": LLM_KEY,
        }
        self._containers: dict[str, str] = {}
        self.client = Client(f"http://127.0.0.1:{self.port}")

    # -- from nothing to nothing --------------------------------------------------------------------------------------

    def make_secrets(self) -> None:
        """Make the secrets as the README says, and take note of the owner's key."""
        command = [str(ROOT / "deploy" / "make-secrets"), "--llm-key", "-"]
        said = engine.run(command, environment=self.environment, stdin=LLM_KEY + "\n").stdout
        self.client.key = said.rpartition(" ")[2].strip()

    def build(self) -> float:
        """Build the image; return the seconds that it took."""
        began = time.monotonic()
        self.run("build", timeout_s=_BUILD_S)
        return time.monotonic() - began

    def up(self) -> float:
        """Start everything and wait until it is ready; return the seconds that it took."""
        began = time.monotonic()
        self.run("up", "-d", timeout_s=START_S)
        self.wait_ready()
        return time.monotonic() - began

    def wait_ready(self) -> None:
        """Wait until all services and plugins run."""
        wait_until(self.client.is_ready, START_S, "/readyz")

    def down(self) -> None:
        """Remove the containers and networks; volumes stay."""
        self._containers.clear()
        self.run("down", timeout_s=START_S)

    def remove(self) -> None:
        """Remove all that this run has made."""
        try:
            self.run("down", "--volumes", "--remove-orphans", "--timeout", "5", timeout_s=START_S)
        finally:
            shutil.rmtree(self.secrets)

    # -- commands -----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, timeout_s: float = engine.ANSWER_S) -> str:
        """Run a command of Compose and return what it wrote."""
        files = [part for name in _FILES for part in ("-f", str(ROOT / name))]
        command = [*self.compose, "--project-name", self.project, "--project-directory", str(ROOT), *files, *arguments]
        return engine.run(command, environment=self.environment, timeout_s=timeout_s).stdout

    def container(self, service: str) -> str:
        """Return the id of a service's container; it stays the same until the container is removed."""
        if service not in self._containers:
            self._containers[service] = self.run("ps", "-a", "-q", service).strip()
        return self._containers[service]

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what the engine knows of a service's container."""
        found: dict[str, Any] = json.loads(engine.run(["docker", "inspect", self.container(service)]).stdout)[0]
        return found

    def execute(self, service: str, *command: str, stdin: str = "", check: bool = True) -> str:
        """Run a command inside a container, as the user of its service."""
        exec_ = ["docker", "exec", "--interactive", self.container(service)]
        return engine.run([*exec_, *command], stdin=stdin, check=check).stdout

    def python(self, service: str, program: str, *arguments: str) -> Any:
        """Run a program of Python inside a container; return the JSON that it prints, None if it prints nothing."""
        said = self.execute(service, "python", "-", *arguments, stdin=program)
        return json.loads(said) if said.strip() else None

    def call(self, method: str, body: dict[str, Any] | None = None) -> Any:
        """Call a method on the bus as the operator, from the kernel's container."""
        return self.python("kernel", _OPERATOR, method, json.dumps(body or {}))

    def throwaway(self, user: int, volumes: dict[str, str], program: str) -> Any:
        """Run a program of Python in a container of its own, with volumes that no service would have together.

        :param volumes: name or path of each → where it is mounted, writable
        """
        mounts = [part for name, place in volumes.items() for part in ("--volume", f"{name}:{place}")]
        command = ["docker", "run", "--rm", "--interactive", "--network", "none", "--cap-drop", "ALL"]
        command += ["--user", f"{user}:{GROUP}", "--entrypoint", "python", *mounts, IMAGE, "-"]
        return json.loads(engine.run(command, stdin=program).stdout)

    # -- what happens to processes ------------------------------------------------------------------------------------

    def kill(self, service: str) -> None:
        """Kill the service's process with SIGKILL, and wait until its container has been started again."""
        before = self.started_at(service)
        # The process ends with the container that it looks at: what becomes of it says nothing.
        self.execute(service, "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)", check=False)
        wait_until(lambda: self.started_at(service) not in (before, ""), START_S, f"a new start of {service}")

    def restart(self, service: str) -> None:
        """Restart the service's container."""
        self.run("restart", service, timeout_s=START_S)

    def started_at(self, service: str) -> str:
        """Return when the container was started last; empty while it does not run."""
        state = self.inspect(service)["State"]
        return str(state["StartedAt"]) if state["Running"] else ""

    def logs(self) -> str:
        """Return the last lines of each service."""
        return self.run("logs", "--tail", "25")
