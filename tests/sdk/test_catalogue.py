from __future__ import annotations

import ast
import json
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from homeagent_sdk import catalogue
from homeagent_sdk.catalogue import _loader

ROOT = Path(__file__).parents[2]
CODE = ("sdk/homeagent_sdk", "kernel", "memory_service", "provider_service", "plugin_host", "plugins", "homeagent")


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def texts_asked_for() -> Iterator[tuple[str, str]]:
    """Yield (file, key) for each call of ``text("…")`` in the code."""
    for folder in CODE:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                    continue
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called == "text" and isinstance(node.args[0].value, str):
                    yield str(file.relative_to(ROOT)), node.args[0].value


@pytest.mark.parametrize("part", catalogue.parts())
def test_both_languages_have_the_same_texts_with_the_same_placeholders(part: str) -> None:
    english, chinese = catalogue.texts(part, "en"), catalogue.texts(part, "zh")
    assert english.keys() == chinese.keys()
    for key in english:
        assert key.startswith(f"{part}."), key
        assert placeholders(english[key]) == placeholders(chinese[key]), key
        assert english[key].strip() and chinese[key].strip(), key


@pytest.mark.parametrize("file", sorted((ROOT / "sdk/homeagent_sdk/catalogue").glob("*.json")), ids=lambda f: f.name)
def test_no_key_is_written_twice_in_a_file(file: Path) -> None:
    pairs: list[tuple[str, object]] = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=list)
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys))


def test_every_text_that_the_code_asks_for_exists() -> None:
    known = {key for part in catalogue.parts() for key in catalogue.texts(part, "en")}
    parts = set(catalogue.parts())
    missing = [(file, key) for file, key in texts_asked_for() if key.partition(".")[0] in parts and key not in known]
    assert not missing


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN", "HOMEAGENT_LANG": "en"}, "en"),
        ({"HOMEAGENT_LANG": "zh"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_the_language_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("HOMEAGENT_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert catalogue.language() == expected


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "sample.en.json").write_text('{"sample.hello": "hello {name}", "sample.only": "only {here}"}')
    (tmp_path / "sample.zh.json").write_text('{"sample.hello": "你好，{name}"}', encoding="utf-8")
    monkeypatch.setattr(_loader, "_FOLDER", tmp_path)
    _loader.texts.cache_clear()
    yield
    _loader.texts.cache_clear()


@pytest.mark.usefixtures("own_files")
def test_a_text_is_found_in_the_language_asked_for() -> None:
    assert catalogue.text("sample.hello", "zh", name="王") == "你好，王"
    assert catalogue.text("sample.hello", "en", name="{x}") == "hello {x}"


@pytest.mark.usefixtures("own_files")
def test_a_text_that_is_missing_falls_back() -> None:
    assert catalogue.text("sample.only", "zh", here=1) == "only 1"
    assert catalogue.text("sample.nothing", "zh") == "sample.nothing"
    assert catalogue.text("nowhere.nothing") == "nowhere.nothing"
    assert catalogue.text("../etc/passwd.x") == "../etc/passwd.x"
