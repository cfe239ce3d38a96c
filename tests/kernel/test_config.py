"""The registry of settings."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from homeagent_sdk.errors import Invalid, NotFound, Unavailable
from kernel.config import ConfigRegistry, parse_overrides
from kernel.config.core_settings import CORE_SETTINGS
from kernel.config.definitions import Definition
from kernel.config.documentation import documentation
from kernel.config.values import duration_s, normalise

ROOT = Path(__file__).parents[2]
PORT = {"key": "port", "type": "int", "default": 8080, "description": {"en": "port", "zh": "端口"}}
KEY = {"key": "api_key", "type": "secret", "default": "", "description": {"en": "key"}}


@pytest.fixture
async def config(database):
    return await loaded(database)


async def loaded(database, **overrides) -> ConfigRegistry:
    config = ConfigRegistry(database, overrides={key.replace("__", "."): value for key, value in overrides.items()})
    await config.load()
    return config


async def test_every_setting_has_its_default_at_first(config):
    assert config.int("core.agent.max_tool_turns") == 10
    assert config.float("core.llm.temperature") == 0.7
    assert config.duration("core.agent.tool_timeout") == 60.0
    assert config.text("core.log.level") == "info"
    assert config.text("core.agent.system_prompt") == ""
    assert config.duration("core.journal.keep") == 30 * 86_400
    entry = config.entry("core.agent.max_tool_turns")
    assert (entry["value"], entry["source"], entry["is_set"]) == (10, "default", False)


async def test_what_is_set_is_in_force_at_once_and_after_a_restart(config, database):
    entry = await config.set("core.agent.max_tool_turns", "25")
    assert (entry["value"], entry["source"], entry["is_set"]) == (25, "stored", True)
    assert config.int("core.agent.max_tool_turns") == 25
    again = await loaded(database)
    assert again.int("core.agent.max_tool_turns") == 25
    assert (await again.unset("core.agent.max_tool_turns"))["source"] == "default"
    assert again.int("core.agent.max_tool_turns") == 10
    assert (await loaded(database)).int("core.agent.max_tool_turns") == 10


async def test_setting_the_default_is_still_setting(config):
    assert (await config.set("core.agent.max_tool_turns", 10))["source"] == "stored"


async def test_an_override_wins_for_this_run_and_is_not_stored(config, database):
    await config.set("core.log.level", "error")
    overridden = await loaded(database, core__log__level="debug")
    assert (overridden.text("core.log.level"), overridden.entry("core.log.level")["source"]) == ("debug", "override")
    stored = await overridden.set("core.log.level", "warning")
    assert (stored["value"], stored["source"]) == ("debug", "override")
    assert (await loaded(database)).text("core.log.level") == "warning"


async def test_a_wrong_override_is_refused_at_start(database):
    with pytest.raises(Invalid, match=r"core\.log\.level cannot be 'loud'"):
        await loaded(database, core__log__level="loud")
    with pytest.raises(NotFound, match=r"no setting core\.log\.levle") as refusal:
        await loaded(database, core__log__levle="debug")
    assert "core.log.level" in refusal.value.hint


def test_overrides_are_read_from_the_command_line():
    assert parse_overrides(["a.b=1", " c = x=y "]) == {"a.b": "1", "c": " x=y "}
    for wrong in ("a.b", "=1"):
        with pytest.raises(Invalid, match="not key=value"):
            parse_overrides([wrong])


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("core.agent.max_tool_turn", "core.agent.max_tool_turns"),
        ("core.agent.max_tokens", "core.llm.max_tokens"),
        ("agent.max_tool_turns", "core.agent.max_tool_turns"),
        ("core.llm.sources.ds.modle", "core.llm.sources.ds.model"),
        ("core.protected_count", "core.agent.context.protected_count"),
    ],
)
async def test_an_unknown_key_is_refused_with_the_nearest_known_ones(config, unknown, meant):
    for attempt in (config.set(unknown, "1"), config.unset(unknown)):
        with pytest.raises(NotFound, match=re.escape(unknown)) as refusal:
            await attempt
        assert meant in refusal.value.hint
        assert refusal.value.field == unknown
    with pytest.raises(NotFound):
        config.value(unknown)


@pytest.mark.parametrize("key", ["", "core", "core.internal.seed_version", "core.llm.sources.model", "zzz", "plugin."])
async def test_what_is_no_setting_cannot_be_set(config, key):
    with pytest.raises(NotFound) as refusal:
        await config.set(key, "1")
    assert refusal.value.hint


@pytest.mark.parametrize("name", ["a b", "a.b", "", "x" * 33, "-a", "ä"])
async def test_the_name_of_a_source_is_checked(config, name):
    with pytest.raises(NotFound):
        await config.set(f"core.llm.sources.{name}.model", "m")


async def test_a_source_is_listed_whole_as_soon_as_a_part_of_it_is_set(config):
    assert config.entries("core.llm.sources.") == []
    await config.set("core.llm.sources.ds.model", "deepseek-chat")
    values = {entry["key"]: entry["value"] for entry in config.entries("core.llm.sources.")}
    assert values["core.llm.sources.ds.model"] == "deepseek-chat"
    assert values["core.llm.sources.ds.max_concurrent"] == 8
    assert values["core.llm.sources.ds.tools"] is True
    assert len(values) == 10
    assert config.int("core.llm.sources.other.context_window") == 0
    await config.unset("core.llm.sources.ds.model")
    assert config.entries("core.llm.sources.") == []


async def test_the_key_of_a_source_is_not_for_the_kernel(config):
    for attempt in (
        config.set("core.llm.sources.ds.api_key", "sk-secret"),
        config.unset("core.llm.sources.ds.api_key"),
    ):
        with pytest.raises(Invalid) as refusal:
            await attempt
        assert "homeagent config set core.llm.sources.ds.api_key" in refusal.value.hint
        assert "sk-secret" not in str(refusal.value)


async def test_a_plugins_settings_can_be_set_while_it_is_down(config, database):
    with pytest.raises(NotFound) as refusal:
        await config.set("plugin.webui.port", 9000)
    assert "no plugin webui has ever been started" in refusal.value.hint
    assert await config.define_plugin_settings("webui", [PORT, KEY]) == {"port": 8080, "api_key": ""}
    again = await loaded(database)
    await again.set("plugin.webui.port", "9000")
    assert await again.define_plugin_settings("webui", [PORT, KEY]) == {"port": 9000, "api_key": ""}
    with pytest.raises(NotFound) as refusal:
        await again.set("plugin.webui.prot", 1)
    assert "plugin.webui.port" in refusal.value.hint


async def test_definitions_survive_a_restart_as_they_were(config, database):
    body = [
        PORT | {"minimum": 1, "maximum": 65_535},
        {"key": "mode", "type": "select", "default": "a", "options": ["a", "b"], "description": {"en": "m"}},
        {"key": "every.so_often", "type": "duration", "default": "90m", "description": {"en": "d"}, "minimum": 60},
    ]
    await config.define_plugin_settings("p", body)
    again = await loaded(database)
    assert again.entries("plugin.") == config.entries("plugin.")
    assert again.text("plugin.p.every.so_often") == "1h30m"
    with pytest.raises(Invalid, match=r"plugin\.p\.port cannot be 0"):
        await again.set("plugin.p.port", 0)


async def test_an_override_of_a_plugin_waits_for_its_definition(database):
    config = await loaded(database, plugin__webui__port="9001")
    assert await config.define_plugin_settings("webui", [PORT]) == {"port": 9001}
    wrong = await loaded(database, plugin__cli__port="many")
    with pytest.raises(Invalid, match=r"plugin\.cli\.port cannot be 'many'"):
        await wrong.define_plugin_settings("cli", [PORT])


async def test_a_stored_value_that_an_upgrade_made_impossible_gives_way_to_the_default(config):
    await config.define_plugin_settings("p", [PORT | {"type": "string", "default": "x"}])
    await config.set("plugin.p.port", "no number")
    assert await config.define_plugin_settings("p", [PORT]) == {"port": 8080}
    assert config.entry("plugin.p.port")["source"] == "default"


async def test_settings_that_a_plugin_no_longer_has_are_gone_until_it_has_them_again(config):
    await config.define_plugin_settings("p", [PORT, KEY])
    await config.set("plugin.p.port", 1)
    await config.define_plugin_settings("p", [KEY])
    assert [entry["key"] for entry in config.entries("plugin.p")] == ["plugin.p.api_key"]
    with pytest.raises(NotFound):
        config.entry("plugin.p.port")
    assert (await config.define_plugin_settings("p", [PORT, KEY]))["port"] == 1


async def test_a_secret_is_told_to_its_plugin_and_shown_to_nobody(config):
    await config.define_plugin_settings("webui", [KEY])
    entry = await config.set("plugin.webui.api_key", "open sesame")
    assert config.plugin_values("webui") == {"api_key": "open sesame"}
    assert (entry["value"], entry["default"], entry["secret"], entry["is_set"]) == (None, None, True, True)
    everything = json.dumps(config.entries())
    assert "open sesame" not in everything
    with pytest.raises(Invalid) as refusal:
        await config.set("plugin.webui.api_key", "open\nsesame")
    assert "sesame" not in str(refusal.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "Port"},
        {"key": "a..b"},
        {"key": 5},
        {"type": "integer"},
        {"default": "many"},
        {"description": {}},
        {"description": {"en": 5}},
        {"options": ["a"]},
        {"minimum": "0"},
        {"surprise": 1},
    ],
)
async def test_a_wrong_definition_is_refused_and_nothing_changes(config, wrong):
    with pytest.raises(Invalid):
        await config.define_plugin_settings("p", [KEY, PORT | wrong])
    assert config.entries("plugin.p") == []


@pytest.mark.parametrize("body", [None, {}, [[]], [PORT, PORT], [{}], [PORT] * 201])
async def test_definitions_that_are_no_list_of_definitions_are_refused(config, body):
    with pytest.raises(Invalid):
        await config.define_plugin_settings("p", body)


async def test_those_who_asked_hear_of_every_change_of_a_value(config):
    heard = []

    async def callback(keys):
        heard.append((keys, config.int("core.agent.max_tool_turns")))

    async def failing(keys):
        raise ValueError("not my problem")

    config.on_change(failing)
    config.on_change(callback)
    await config.set("core.agent.max_tool_turns", 10)
    await config.set("core.agent.max_tool_turns", 11)
    await config.unset("core.agent.max_tool_turns")
    key = ["core.agent.max_tool_turns"]
    assert heard == [(key, 11), (key, 10)]


async def test_a_value_that_cannot_be_stored_is_not_in_force(config, database):
    await database.close()
    with pytest.raises(Unavailable):
        await config.set("core.agent.max_tool_turns", 11)
    assert config.int("core.agent.max_tool_turns") == 10


async def test_a_caller_who_gives_up_does_not_part_memory_and_disk(config, database):
    task = asyncio.create_task(config.set("core.agent.max_tool_turns", 11))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await config.set("core.agent.queue_limit", 5)
    assert config.int("core.agent.max_tool_turns") == (await loaded(database)).int("core.agent.max_tool_turns")


async def test_the_first_run_is_known_by_a_mark_and_not_by_an_empty_table(database):
    assert (await loaded(database)).is_first_run
    assert not (await loaded(database)).is_first_run


async def test_an_entry_on_the_wire_has_what_an_interface_needs(config):
    wire = config.entry("core.log.level")
    assert wire["options"] == ["debug", "info", "warning", "error"]
    assert set(wire["description"]) == {"en", "zh"}
    assert config.entry("core.agent.queue_limit")["minimum"] == 1


def definition(kind, **options) -> Definition:
    return Definition("some.key", kind, None, {"en": "x"}, **options)


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        ("int", " 12 ", 12),
        ("int", 12.0, 12),
        ("int", -1, -1),
        ("float", "0.5", 0.5),
        ("float", 1, 1.0),
        ("bool", "Yes", True),
        ("bool", "off", False),
        ("bool", 1, True),
        ("bool", False, False),
        ("duration", "90", "1m30s"),
        ("duration", "1h30m", "1h30m"),
        ("duration", "2d", "2d"),
        ("duration", "1w", "7d"),
        ("duration", "1w12h", "7d12h"),
        ("duration", 0.25, "0.25s"),
        ("duration", 0, "0s"),
        ("string", " text ", "text"),
        ("string", 5, "5"),
        ("text", "two\nlines ", "two\nlines "),
        ("secret", " s ", "s"),
    ],
)
def test_a_value_is_brought_into_its_form(kind, given, kept):
    normalised = normalise(definition(kind), given)
    assert (normalised, type(normalised)) == (kept, type(kept))
    assert normalise(definition(kind), normalised) == normalised


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", "1.5"),
        ("int", True),
        ("int", None),
        ("int", "1e999"),
        ("float", "nan"),
        ("float", "inf"),
        ("float", [1]),
        ("bool", "maybe"),
        ("bool", None),
        ("bool", 2),
        ("duration", "soon"),
        ("duration", "-5m"),
        ("duration", ""),
        ("duration", True),
        ("duration", None),
        ("string", "two\nlines"),
        ("string", None),
        ("string", ["x"]),
        ("text", "a\0b"),
        ("text", "x" * 70_000),
        ("secret", {"a": 1}),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_is_wanted(kind, given):
    with pytest.raises(Invalid, match=r"some\.key cannot be") as refusal:
        normalise(definition(kind), given)
    assert refusal.value.hint.startswith("it must be")
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize(
    ("options", "given", "hint"),
    [
        ({"kind": "int", "minimum": 1, "maximum": 5}, 6, "between 1 and 5"),
        ({"kind": "int", "minimum": 1}, 0, "at least 1"),
        ({"kind": "float", "maximum": 2}, 2.1, "at most 2"),
        ({"kind": "duration", "minimum": 60, "maximum": 3600}, "2h", "between 1m and 1h"),
        ({"kind": "select", "options": ("a", "b")}, "c", "one of a, b"),
        ({"kind": "select", "options": ("a", "b")}, ["a"], "one of a, b"),
        ({"kind": "string", "pattern": "[a-z]+", "expected": "small letters"}, "A", "small letters"),
    ],
)
def test_a_value_outside_its_bounds_is_refused_with_the_bounds(options, given, hint):
    with pytest.raises(Invalid) as refusal:
        normalise(definition(**options), given)
    assert hint in refusal.value.hint


async def test_a_source_has_a_proper_address(config):
    await config.set("core.llm.sources.a.base_url", "http://127.0.0.1:11434/v1")
    await config.set("core.llm.sources.a.base_url", "")
    for wrong in ("127.0.0.1:11434", "ftp://x", "https://user:password@host/v1", "http://a b"):
        with pytest.raises(Invalid):
            await config.set("core.llm.sources.a.base_url", wrong)


def test_weeks_count():
    assert duration_s("1.5w") == 1.5 * 7 * 86_400
    assert duration_s(12) == 12.0


@pytest.mark.parametrize("each", CORE_SETTINGS, ids=lambda each: each.key)
def test_a_core_setting_is_defined_properly(each):
    assert each.key.startswith("core.")
    assert set(each.description) == {"en", "zh"}
    assert all(each.description.values())
    assert normalise(each, each.default) == each.default


def test_no_core_setting_is_defined_twice():
    keys = [each.key for each in CORE_SETTINGS]
    assert len(keys) == len(set(keys))


def test_the_page_on_settings_is_complete_and_up_to_date():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == documentation(), "run python -m kernel.config.documentation docs/settings.md"
    for each in CORE_SETTINGS:
        assert f"| `{each.key}` |" in page


CODE = ("kernel", "provider_service", "memory_service", "plugin_host", "homeagent", "sdk/homeagent_sdk")


def code_of(*folders: str) -> str:
    definitions = ROOT / "kernel" / "config"
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return "\n".join(file.read_text(encoding="utf-8") for file in files if definitions not in file.parents)


def test_every_core_setting_is_read_by_somebody():
    everywhere, of_the_provider = code_of(*CODE), code_of("provider_service")
    unread = [
        each.key
        for each in CORE_SETTINGS
        if f'"{each.suffix or each.key}"' not in (of_the_provider if each.is_pattern else everywhere)
    ]
    assert unread == [], "a setting that nobody reads is a lie"
