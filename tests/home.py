"""A whole HomeAgent for a test: the real processes, in a temporary directory, on a free port."""

from __future__ import annotations

import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

API_KEY = "ha-test-0123456789abcdefghijklmnopqrstuvwxyz0123"
LLM_KEY = "sk-test-far-end-key-9876543210abcdef"
SERVICES = ("kernel", "memory_service", "provider_service", "plugin_host")
START_TIMEOUT_S = 60.0
_OURS = ("HOMEAGENT_", "OPENAI_")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], timeout_s: float = 20.0, what: str = "the condition") -> Any:
    """Poll until the condition returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come true within {timeout_s:g} s")


_MADE_BEFORE = Path(tempfile.gettempdir()) / f"homeagent-tests-{os.getuid()}"
_MADE_OF_PACKAGES = (".dictionary", ".table")


def _exchange(source: Path, target: Path) -> None:
    """Link what is made of installed packages alone, and takes seconds to make: each home would make it anew."""
    for file in source.glob("*") if source.is_dir() else ():
        if file.suffix in _MADE_OF_PACKAGES and not (target / file.name).exists():
            for folder in (*reversed(target.parents), target):
                folder.mkdir(mode=0o700, exist_ok=True)
            try:
                os.link(file, target / file.name)
            except OSError as error:
                # Another test was faster, or this home lies on a disk of its own: it makes its own then.
                if error.errno not in (errno.EEXIST, errno.EXDEV):
                    raise


class Home:
    """``homeagent up`` as a child process.

    :param llm_url: base URL of the far end; None: no source is configured
    """

    def __init__(self, root: Path, llm_url: str | None = None, **environment: str) -> None:
        self.data_dir = root / "home"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        self.environment |= {"HOMEAGENT_API_KEY": API_KEY, "HOMEAGENT_LANG": "en", "NO_COLOR": "1"}
        if llm_url is not None:
            self.environment |= {
                "HOMEAGENT_LLM_BASE_URL": llm_url,
                "HOMEAGENT_LLM_API_KEY": LLM_KEY,
                "HOMEAGENT_LLM_MODEL": "fake-model",
            }
        self.environment |= environment
        self.process: subprocess.Popen[str] | None = None
        self._stderr = root / "up.stderr"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start it and wait for its line ``ready``."""
        _exchange(_MADE_BEFORE, self.data_dir / "memory" / "cache")
        with self._stderr.open("a") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "homeagent", "up", "--data-dir", str(self.data_dir), "--port", str(self.port)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=self.environment,
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        try:
            line = wait_until(self._line_or_exit, timeout_s, "the line `ready`")
            assert line == f"ready {self.url}\n", f"{line!r}\n{self.stderr()}\n{self.logs()}"
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def _line_or_exit(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line and self.process.poll() is not None:
            raise AssertionError(f"homeagent up ended with {self.process.returncode}:\n{self.stderr()}\n{self.logs()}")
        return line

    def stop(self, timeout_s: float = 12.0) -> int:
        """Stop it as Ctrl-C does, and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(timeout_s)
        finally:
            self.process.kill()
            if self.process.stdout is not None:
                self.process.stdout.close()
            _exchange(self.data_dir / "memory" / "cache", _MADE_BEFORE)

    def __enter__(self) -> Self:
        return self.start() if self.process is None else self

    def __exit__(self, *exception: object) -> None:
        if self.process is not None:
            self.stop()

    # -- looking at it ------------------------------------------------------------------------------------------------

    def command(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a ``homeagent`` command against it."""
        return subprocess.run(
            [sys.executable, "-m", "homeagent", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self.environment | {"HOMEAGENT_DATA_DIR": str(self.data_dir)},
        )

    def ps(self) -> dict[str, dict[str, Any]]:
        """Return the rows of ``homeagent ps --json`` by name."""
        done = self.command("ps", "--json")
        assert done.returncode == 0, done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)}

    def pid(self, name: str) -> int:
        """Return the pid of a service or plugin."""
        return int(self.ps()[name]["pid"])

    def kill(self, name: str) -> int:
        """Kill a process with SIGKILL and return the pid that it had."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def get(self, path: str, key: str | None = None) -> tuple[int, Any]:
        """GET a path; returns status and decoded JSON, and (0, None) where nobody answers."""
        return self._request("GET", path, None, key, {}, 5)

    def post(
        self, path: str, body: Any, key: str | None = API_KEY, timeout_s: float = 40, **headers: str
    ) -> tuple[int, Any]:
        """POST JSON (or bytes as they are); returns as :meth:`get` does."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._request("POST", path, data, key, headers, timeout_s)

    def say(
        self, text: str, conversation: str = "main", *, delivery: str | None = None, key: str = API_KEY
    ) -> tuple[int, str]:
        """Send a message by the OpenAI API; returns the status, and the answer or the error's message."""
        headers = {"Idempotency-Key": delivery} if delivery else {}
        body = {
            "model": "homeagent",
            "messages": [{"role": "user", "content": text}],
            "metadata": {"conversation": conversation},
        }
        status, answer = self.post("/v1/chat/completions", body, key, **headers)
        if status == 200:
            return status, answer["choices"][0]["message"]["content"]
        return status, str(answer)

    def _request(
        self, method: str, path: str, data: bytes | None, key: str | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, Any]:
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if key is not None:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None

    def processes(self) -> dict[int, int]:
        """Return the launcher and all its descendants: pid → start time."""
        assert self.process is not None
        return tree_of(self.process.pid)

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until everything is up again."""
        wait_until(lambda: self.get("/readyz")[0] == 200, timeout_s, "/readyz")

    def stderr(self) -> str:
        """Return what the launcher said."""
        return self._stderr.read_text() if self._stderr.exists() else ""

    def logs(self) -> str:
        """Return the end of every log."""
        parts = []
        for path in sorted((self.data_dir / "log").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            parts.append(f"== {path.name}\n" + "\n".join(lines))
        return "\n".join(parts)


def _stat(pid: int) -> tuple[int, str, int] | None:
    """Return parent, state and start time of a process, or None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0], int(fields[19])


def tree_of(root: int) -> dict[int, int]:
    """Return a process and all its descendants: pid → start time."""
    parents = {}
    starts = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _stat(int(entry.name))) is not None and found[1] != "Z":
            parents[int(entry.name)] = found[0]
            starts[int(entry.name)] = found[2]
    tree = {root} & starts.keys()
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return {pid: starts[pid] for pid in tree}


def still_alive(tree: dict[int, int]) -> dict[int, str]:
    """Return those of a tree that live, with their command lines."""
    alive = {}
    for pid, start in tree.items():
        found = _stat(pid)
        if found is not None and found[1] != "Z" and found[2] == start:
            alive[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return alive
