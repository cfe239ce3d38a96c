"""Keys are kept in files that only this user can read."""

import os
import stat

import pytest

from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from provider_service.keys import KeyStore


@pytest.fixture
def store(tmp_path):
    made = KeyStore(tmp_path / "keys")
    made.load()
    return made


def test_a_key_survives_a_restart_in_a_private_file(store, tmp_path):
    store.set("kimi", " sk-abc\n")
    path = tmp_path / "keys" / "kimi"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again = KeyStore(tmp_path / "keys")
    again.load()
    assert again.get("kimi") == "sk-abc"
    assert again.is_set("kimi")
    assert sorted(os.listdir(tmp_path / "keys")) == ["kimi"]


def test_a_key_can_be_removed(store, tmp_path):
    store.set("kimi", "sk-abc")
    store.set("kimi", None)
    store.set("kimi", None)
    assert store.get("kimi") is None
    assert os.listdir(tmp_path / "keys") == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "a" * 65, "a\n"])
def test_a_name_cannot_lead_out_of_the_folder(store, name):
    with pytest.raises(Invalid):
        store.set(name, "sk-abc")


@pytest.mark.parametrize("key", ["a b", "a\r\nX-Evil: 1", "k" * 5000, "ключ", "\x00"])
def test_what_cannot_be_a_key_is_refused_and_not_quoted(store, key):
    with pytest.raises(Invalid) as caught:
        store.set("kimi", key)
    assert key not in str(caught.value)


def test_the_key_of_the_environment_is_never_stored(tmp_path):
    store = KeyStore(tmp_path / "keys", "sk-env")
    store.load()
    assert store.get("env") == "sk-env"
    with pytest.raises(Conflict):
        store.set("env", "sk-other")
    assert os.listdir(tmp_path / "keys") == []


def test_a_file_that_others_can_read_is_closed_to_them(store, tmp_path):
    path = tmp_path / "keys" / "kimi"
    path.write_text("sk-abc\n")
    path.chmod(0o644)
    store.load()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store.get("kimi") == "sk-abc"


def test_a_broken_file_costs_its_own_key_only(store, tmp_path):
    (tmp_path / "keys" / "bad").write_bytes(b"\xff\xfe")
    (tmp_path / "keys" / "good").write_text("sk-abc")
    store.load()
    assert not store.is_set("bad")
    assert store.is_set("good")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(Unavailable) as caught:
        KeyStore(tmp_path / "keys").load()
    assert str(tmp_path / "keys") in caught.value.message
    assert caught.value.hint


def test_the_key_is_masked_in_what_came_from_outside(store):
    store.set("kimi", "sk-abcdef")
    assert store.redactor("kimi")("Incorrect key: sk-abcdef.") == "Incorrect key: ***."
    assert store.redactor("other")("text") == "text"
