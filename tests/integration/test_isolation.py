"""What processes do not have: network sockets in kernel and memory, and the API key anywhere but where it belongs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.openai_server import FakeOpenAI
from tests.home import API_KEY, LLM_KEY, Home, still_alive

_SOCKET = re.compile(r"socket:\[(\d+)\]")


def inet_sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process' sockets that are of an internet family."""
    inet = set()
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            inet.add(line.split()[9])
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = _SOCKET.match(os.readlink(descriptor))
        except FileNotFoundError:
            continue
        if found:
            own.add(found[1])
    return own & inet


@pytest.fixture
def busy_home(home: Home) -> Iterator[Home]:
    with home:
        for number in range(3):
            assert home.say(f"message {number}")[0] == 200
        yield home


def test_kernel_and_memory_hold_no_network_socket(busy_home: Home) -> None:
    rows = busy_home.ps()
    for name in ("kernel", "memory_service", "plugin_host", "echo", "timer", "cli"):
        assert inet_sockets_of(rows[name]["pid"]) == set(), name
    assert inet_sockets_of(rows["webui"]["pid"]), "the check sees sockets where there are some"


def test_the_keys_are_in_no_environment_file_log_or_event(busy_home: Home, far_end: FakeOpenAI) -> None:
    assert far_end.requests[-1].headers["Authorization"] == f"Bearer {LLM_KEY}"
    secrets = (LLM_KEY.encode(), API_KEY.encode())
    processes = still_alive(busy_home.processes())
    assert len(processes) >= 10
    for pid, line in processes.items():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert not any(secret in environment for secret in secrets), line
        assert not any(secret.decode() in line for secret in secrets)
    for path in busy_home.data_dir.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path
    for arguments in (
        ("config", "list", "--json"),
        ("status", "--json"),
        ("doctor", "--json"),
        ("source", "list", "--json"),
    ):
        done = busy_home.command(*arguments)
        assert not any(secret.decode() in done.stdout + done.stderr for secret in secrets), arguments
    assert not any(secret.decode() in busy_home.stderr() for secret in secrets)


def test_a_stored_key_lies_with_the_provider_alone_and_unreadable_for_others(busy_home: Home) -> None:
    key = "sk-stored-key-abcdefgh12345678"
    added = busy_home.command("config", "set", "core.llm.sources.spare.base_url", "http://127.0.0.1:9/v1")
    assert added.returncode == 0, added.stderr
    assert busy_home.command("config", "set", "core.llm.sources.spare.model", "m").returncode == 0
    done = busy_home.command("config", "set", "core.llm.sources.spare.api_key", stdin=key + "\n")
    assert done.returncode == 0, done.stderr
    holders = [p for p in busy_home.data_dir.rglob("*") if p.is_file() and key.encode() in p.read_bytes()]
    assert [path.parent for path in holders] == [busy_home.data_dir / "provider" / "keys"]
    assert holders[0].stat().st_mode & 0o077 == 0
    refused = busy_home.command("config", "set", "core.llm.sources.spare.api_key", key)
    assert refused.returncode != 0, "a key on the command line is visible to everyone"


def test_everything_listens_on_loopback_only(busy_home: Home) -> None:
    for pid in busy_home.processes():
        for inode in inet_sockets_of(pid):
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[9] == inode and fields[3] == "0A":
                        assert fields[1].startswith("0100007F:"), line
