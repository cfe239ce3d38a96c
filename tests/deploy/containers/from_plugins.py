"""Checks from inside the plugins' container: what a plugin gone wrong cannot do to the three services."""

from __future__ import annotations

from tests.deploy.containers import engine
from tests.deploy.containers.stack import USERS, Stack

OTHERS = ("kernel", "memory", "provider")

_READ = """
import json, os, sys
def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return type(error).__name__
    return "done"
read = lambda path: open(path, "rb").read(1)
def below(folder):
    found = []
    for parent, folders, files in os.walk(folder):
        found += [os.path.join(parent, name) for name in files]
    return found
"""

_FILES = (
    _READ
    + """
files = {"/data/kernel": "kernel/journal.db", "/data/memory": "memory/memory.db", "/data/provider": "provider/usage.db"}
print(json.dumps({place: [tried(os.listdir, place), tried(read, f"{place}/{name}")] for place, name in files.items()}))
"""
)

_ALL_VOLUMES = (
    _READ
    + """
print(json.dumps({
    "listed": {name: tried(os.listdir, f"/volumes/{name}") for name in ("kernel", "memory", "provider", "plugins")},
    "found": [path for name in ("kernel", "memory", "provider") for path in below(f"/volumes/{name}")],
}))
"""
)

_KEYS = (
    _READ
    + """
names = ("kernel.key", "memory.key", "provider.key", "operator.key", "api_key", "llm_api_key")
print(json.dumps({
    "there": sorted(os.listdir("/run/secrets")),
    "own": tried(read, "/run/secrets/host.key"),
    "others": {name: tried(read, "/run/secrets/" + name) for name in names},
}))
"""
)

_KEY_FILES = (
    _READ
    + """
print(json.dumps({path: tried(read, path) for path in below("/keys")}))
"""
)

_SOCKETS = (
    _READ
    + """
import socket
folder = "/run/homeagent"
def bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
attempts = {}
for name in ("control", "urgent", "events"):
    path = f"{folder}/{name}.sock"
    attempts |= {
        f"{name}: remove": tried(os.unlink, path),
        f"{name}: rename": tried(os.rename, path, path + ".old"),
        f"{name}: replace": tried(os.rename, "/dev/null", path),
        f"{name}: bind": tried(bind, path),
        f"{name}: open to all": tried(os.chmod, path, 0o666),
        f"{name}: take": tried(os.chown, path, os.getuid(), -1),
    }
attempts["bind beside"] = tried(bind, folder + "/mine.sock")
attempts["open the folder"] = tried(os.chmod, folder, 0o777)
attempts["read the lock"] = tried(read, folder + "/hub.lock")
print(json.dumps({"connect": tried(connect, folder + "/control.sock"), "attempts": attempts}))
"""
)

_PROCESSES = """
import json, os, sys
def module(pid):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
    except OSError:
        return ""
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""
def signalled(pid):
    try:
        os.kill(pid, 0)
    except OSError as error:
        return type(error).__name__
    return module(pid) or "something of the plugins"
print(json.dumps({
    "seen": sorted({module(pid) for pid in os.listdir("/proc") if pid.isdigit()} - {""}),
    "signalled": sorted({signalled(int(pid)) for pid in sys.argv[1:]}),
    "foreign": [pid for pid in os.listdir("/proc") if pid.isdigit() and os.stat(f"/proc/{pid}").st_uid != os.getuid()],
}))
"""

_IMPERSONATE = """
import asyncio, json, os
from pathlib import Path
from homeagent_sdk.bus import KeyCredential, Peer
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.logging import be_quiet
async def tried(name):
    key = Path("/run/secrets/host.key").read_text().strip()
    peer = Peer(Path("/run/homeagent"), KeyCredential(name, key))
    try:
        await peer.start(5)
    except HomeAgentError as error:
        return error.code
    finally:
        await peer.stop()
    return "welcome"
async def main():
    return {name: await tried(name) for name in ("kernel", "memory", "provider", "operator-1", "webui")}
be_quiet()
print(json.dumps(asyncio.run(main())))
"""

_MAKE_SEGMENT = """
import os
descriptor = os.open("/dev/shm/segment-of-memory", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o660)
os.fchmod(descriptor, 0o660)
os.write(descriptor, b"from memory")
"""

_USE_SEGMENT = """
import json, mmap, os
path = "/dev/shm/segment-of-memory"
with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as segment:
    content = segment[:].decode()
failed = []
for act in (lambda: os.unlink(path), lambda: os.rename(path, path + "2"), lambda: os.chmod(path, 0o777)):
    try:
        act()
        failed.append("done")
    except PermissionError:
        failed.append("denied")
print(json.dumps([content, failed]))
"""

_CONNECT = """
import json, socket, sys
try:
    socket.create_connection((sys.argv[1], 8000), 3).close()
    print(json.dumps("connected"))
except OSError as error:
    print(json.dumps(type(error).__name__))
"""

_REFUSED = {"PermissionError", "OSError", "FileNotFoundError"}


def files_of_the_services_cannot_be_read(stack: Stack) -> None:
    """They are not in this container."""
    tried = stack.python("plugins", _FILES)
    assert all(set(each) <= {"PermissionError", "FileNotFoundError"} for each in tried.values()), tried


def their_owner_keeps_files_from_the_plugins_even_where_they_are_mounted(stack: Stack) -> None:
    """The users are a second wall: a wrong line in the compose file alone opens nothing."""
    volumes = {f"{stack.project}_{name}": f"/volumes/{name}" for name in (*OTHERS, "plugins")}
    seen = stack.throwaway(USERS["plugins"], volumes, _ALL_VOLUMES)
    assert seen["listed"] == {**dict.fromkeys(OTHERS, "PermissionError"), "plugins": "done"}, seen
    assert seen["found"] == [], seen


def keys_of_the_services_cannot_be_read(stack: Stack) -> None:
    """The plugin host has its own key, and no other is in this container."""
    seen = stack.python("plugins", _KEYS)
    assert seen["there"] == ["host.key"] and seen["own"] == "done", seen
    assert set(seen["others"].values()) == {"FileNotFoundError"}, seen


def their_owner_keeps_keys_from_the_plugins_even_where_they_are_mounted(stack: Stack) -> None:
    """The same second wall."""
    keys = {str(path): f"/keys/{path.parent.name}/{path.name}" for path in sorted(stack.secrets.glob("*/*"))}
    seen = stack.throwaway(USERS["plugins"], keys, _KEY_FILES)
    assert len(seen) == len(keys) and seen.pop("/keys/plugins/host.key") == "done", seen
    assert set(seen.values()) == {"PermissionError"}, seen


def sockets_of_the_bus_cannot_be_rebound(stack: Stack) -> None:
    """One can connect to them, and nothing else."""
    seen = stack.python("plugins", _SOCKETS)
    assert seen["connect"] == "done", seen
    assert set(seen["attempts"].values()) <= _REFUSED, seen


def sockets_cannot_be_rebound_even_where_their_folder_is_mounted_writable(stack: Stack) -> None:
    """The folder is the kernel's."""
    seen = stack.throwaway(USERS["plugins"], {f"{stack.project}_run": "/run/homeagent"}, _SOCKETS)
    assert seen["connect"] == "done", seen
    assert set(seen["attempts"].values()) <= _REFUSED, seen


def processes_of_the_services_cannot_be_signalled(stack: Stack) -> None:
    """They cannot even be seen."""
    pids = [
        words[1]
        for service in OTHERS
        for words in map(str.split, engine.run(["docker", "top", stack.container(service)]).stdout.splitlines()[1:])
    ]
    assert len(pids) >= 2 * len(OTHERS), pids
    seen = stack.python("plugins", _PROCESSES, *pids)
    assert seen["seen"] == ["plugin_host", "plugin_host.zygote"] and seen["foreign"] == [], seen
    assert set(seen["signalled"]) <= {"ProcessLookupError", "something of the plugins", *seen["seen"]}, seen


def nobody_can_pass_for_another_with_the_key_of_the_plugin_host(stack: Stack) -> None:
    """The hub refuses."""
    seen = stack.python("plugins", _IMPERSONATE)
    assert set(seen.values()) == {"denied"}, seen


def shared_memory_is_shared_and_each_segment_stays_its_makers(stack: Stack) -> None:
    """The group reads and writes; the maker removes."""
    stack.python("memory", _MAKE_SEGMENT)
    try:
        assert stack.python("plugins", _USE_SEGMENT) == ["from memory", ["denied"] * 3]
    finally:
        stack.execute("memory", "rm", "/dev/shm/segment-of-memory")


def the_model_is_reached_by_the_provider_alone(stack: Stack) -> None:
    """Plugins are on another network."""
    (network,) = stack.inspect("far-end")["NetworkSettings"]["Networks"].values()
    address = network["IPAddress"]
    assert stack.python("provider", _CONNECT, address) == "connected"
    assert stack.python("plugins", _CONNECT, address) != "connected"


CHECKS = (
    files_of_the_services_cannot_be_read,
    their_owner_keeps_files_from_the_plugins_even_where_they_are_mounted,
    keys_of_the_services_cannot_be_read,
    their_owner_keeps_keys_from_the_plugins_even_where_they_are_mounted,
    sockets_of_the_bus_cannot_be_rebound,
    sockets_cannot_be_rebound_even_where_their_folder_is_mounted_writable,
    processes_of_the_services_cannot_be_signalled,
    nobody_can_pass_for_another_with_the_key_of_the_plugin_host,
    shared_memory_is_shared_and_each_segment_stays_its_makers,
    the_model_is_reached_by_the_provider_alone,
)
