from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin.manifest import Manifest, parse_manifest, read_manifest

SETTING = {"key": "greeting", "type": "string", "default": "hi", "description": {"en": "what to say", "zh": "问候语"}}
GOOD: dict[str, Any] = {
    "name": "sample",
    "version": "0.1.0",
    "kind": "python",
    "entry": "main.py",
    "description": {"en": "A sample.", "zh": "示例。"},
    "settings": [SETTING],
    "channels": ["sample"],
    "stages": ["after_output", {"stage": "on_input", "changes": ["raw_message"]}],
    "topics": ["turn.*"],
    "capabilities": [],
}


def test_a_manifest_is_read() -> None:
    manifest = parse_manifest(GOOD)
    assert manifest.name == "sample"
    assert manifest.settings[0].to_wire() == SETTING
    assert manifest.stages[1].changes == {"raw_message"}
    assert manifest.topics == ("turn.*",)


def test_only_five_keys_are_required() -> None:
    required = ("name", "version", "kind", "entry", "description")
    assert parse_manifest({key: GOOD[key] for key in required}).settings == ()
    for key in required:
        with pytest.raises(Invalid) as caught:
            parse_manifest({other: GOOD[other] for other in required if other != key})
        assert caught.value.field == key


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"settngs": []}, "settngs"),
        ({"name": "Sample"}, "name"),
        ({"name": "a-b"}, "name"),
        ({"name": "kernel"}, "name"),
        ({"name": "operator_x"}, "name"),
        ({"name": 3}, "name"),
        ({"version": ""}, "version"),
        ({"kind": "go"}, "kind"),
        ({"entry": "../main.py"}, "entry"),
        ({"entry": "/main.py"}, "entry"),
        ({"entry": "main.sh"}, "entry"),
        ({"description": "text"}, "description"),
        ({"description": {"zh": "x"}}, "description.en"),
        ({"description": {"en": "x", "fr": "y"}}, "description.fr"),
        ({"channels": "sample"}, "channels"),
        ({"topics": [1]}, "topics[0]"),
        ({"stages": ["on_nothing"]}, "stages[0]"),
        ({"stages": [{"stage": "on_input", "changes": ["result"]}]}, "stages[0].changes"),
        ({"settings": {}}, "settings"),
        ({"settings": [{**SETTING, "kye": 1}]}, "settings[0].kye"),
        ({"settings": [{**SETTING, "type": "number"}]}, "settings[0].type"),
        ({"settings": [{**SETTING, "key": "A b"}]}, "settings[0].key"),
        ({"settings": [{**SETTING, "default": 3}]}, "settings[0].default"),
        ({"settings": [{**SETTING, "type": "int", "default": True}]}, "settings[0].default"),
        ({"settings": [{**SETTING, "type": "duration", "default": "soon"}]}, "settings[0].default"),
        ({"settings": [{**SETTING, "type": "secret", "default": "x"}]}, "settings[0].default"),
        ({"settings": [{**SETTING, "type": "select", "default": "a"}]}, "settings[0]"),
        ({"settings": [{**SETTING, "type": "select", "default": "a", "options": ["b"]}]}, "settings[0].default"),
        ({"settings": [SETTING, SETTING]}, "settings"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field_and_a_message(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_manifest({**GOOD, **change})
    assert caught.value.field == field
    assert caught.value.message


@pytest.mark.parametrize("body", [None, [], "x", 1])
def test_what_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(Invalid):
        parse_manifest(body)


def write(folder: Path, text: str, entry: bool = True) -> Path:
    (folder / "plugin.json").write_text(text, encoding="utf-8")
    if entry:
        (folder / "main.py").write_text("")
    return folder


def test_a_folder_is_read(tmp_path: Path) -> None:
    assert isinstance(read_manifest(write(tmp_path, json.dumps(GOOD))), Manifest)


@pytest.mark.parametrize(
    ("text", "entry", "words"),
    [
        (json.dumps(GOOD), False, "main.py is missing"),
        ("{", True, "cannot be read"),
        (f'"{"x" * 300_000}"', True, "larger than"),
    ],
)
def test_a_folder_that_is_no_plugin_is_refused(tmp_path: Path, text: str, entry: bool, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_manifest(write(tmp_path, text, entry))


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"plugin\.json is missing"):
        read_manifest(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plugin.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Invalid, match="cannot be read"):
        read_manifest(tmp_path)
