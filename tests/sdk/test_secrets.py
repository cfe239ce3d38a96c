"""Secrets leave the environment before anybody can look."""

import json
import os
import subprocess
import sys

import pytest

from homeagent_sdk import secrets
from homeagent_sdk.errors import Invalid

PROGRAM = """
import json, os, sys
from homeagent_sdk.secrets import take_from_environment
print("started", flush=True)
taken = take_from_environment(["KEY_A", "KEY_B"], keep_descriptor="keep" in sys.argv)
with open("/proc/self/environ", "rb") as file:
    environ = file.read()
with open("/proc/self/cmdline", "rb") as file:
    cmdline = file.read()
paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
targets = [os.readlink(path) for path in paths if os.path.lexists(path)]
print(json.dumps({
    "taken": taken,
    "pid": os.getpid(),
    "environ_shows": "s3cret" in environ.decode() or "s3cret" in str(os.environ),
    "cmdline_shows": "s3cret" in cmdline.decode(),
    "descriptor_open": any("memfd:secrets" in target for target in targets),
    "variable": os.environ.get("HOMEAGENT_SECRETS_FD"),
    "argv": sys.argv[1:],
    "other": os.environ.get("OTHER"),
}))
"""


def run(program_path, *argv, env=None, **more):
    path = program_path / "program.py"
    path.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(path), *argv],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    lines = out.splitlines()
    return json.loads(lines[-1]), lines, process.pid


def test_a_secret_in_the_environment_is_read_once_and_hidden(tmp_path):
    seen, lines, pid = run(tmp_path, "x", "y z", env={"KEY_A": "s3cret-ä", "OTHER": "kept"})
    assert seen["taken"] == {"KEY_A": "s3cret-ä"}
    assert seen["pid"] == pid, "supervisors must not lose the process"
    assert lines.count("started") == 2, "it was executed again"
    assert not seen["environ_shows"]
    assert not seen["cmdline_shows"]
    assert not seen["descriptor_open"]
    assert seen["variable"] is None
    assert seen["argv"] == ["x", "y z"]
    assert seen["other"] == "kept"


def test_without_secrets_nothing_is_executed_again(tmp_path):
    seen, lines, _ = run(tmp_path, env={"KEY_A": ""})
    assert seen["taken"] == {}
    assert lines.count("started") == 1


def test_a_child_gets_its_secrets_by_descriptor(tmp_path):
    descriptor = secrets.pass_to_child({"KEY_B": "s3cret", "KEY_C": "not asked for"})
    try:
        env = {secrets.DESCRIPTOR_VARIABLE: str(descriptor)}
        seen, lines, _ = run(tmp_path, env=env, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert seen["taken"] == {"KEY_B": "s3cret"}
    assert lines.count("started") == 1
    assert not seen["environ_shows"]
    assert not seen["descriptor_open"]


def test_environment_and_descriptor_add_up(tmp_path):
    descriptor = secrets.pass_to_child({"KEY_A": "s3cret-1"})
    try:
        env = {secrets.DESCRIPTOR_VARIABLE: str(descriptor), "KEY_B": "s3cret-2"}
        seen, _, _ = run(tmp_path, env=env, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert seen["taken"] == {"KEY_A": "s3cret-1", "KEY_B": "s3cret-2"}
    assert not seen["environ_shows"]


def test_the_descriptor_can_be_kept_for_a_child(tmp_path):
    seen, _, _ = run(tmp_path, "keep", env={"KEY_A": "s3cret"})
    assert seen["taken"] == {"KEY_A": "s3cret"}
    assert seen["descriptor_open"]
    assert seen["variable"]


def test_the_descriptor_cannot_be_changed_by_who_inherits_it():
    descriptor = secrets.pass_to_child({"KEY_A": "x"})
    try:
        with pytest.raises(PermissionError):
            os.write(descriptor, b"y")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("number", ["nonsense", "-1", "99999"])
def test_a_wrong_descriptor_is_a_clear_error(monkeypatch, number):
    monkeypatch.setenv(secrets.DESCRIPTOR_VARIABLE, number)
    with pytest.raises(Invalid, match="does not name a descriptor") as caught:
        secrets.take_from_environment(["KEY_A"])
    assert caught.value.hint


def test_a_descriptor_with_something_else_is_a_clear_error(monkeypatch, tmp_path):
    path = tmp_path / "list"
    path.write_text("[1]")
    descriptor = os.open(path, os.O_RDONLY)
    monkeypatch.setenv(secrets.DESCRIPTOR_VARIABLE, str(descriptor))
    try:
        with pytest.raises(Invalid, match="does not hold names"):
            secrets.take_from_environment(["KEY_A"])
    finally:
        os.close(descriptor)


def test_too_much_is_refused():
    with pytest.raises(Invalid, match="larger than"):
        secrets.pass_to_child({"KEY_A": "x" * 70_000})
