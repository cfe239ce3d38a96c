from __future__ import annotations

import pytest

from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from homeagent_sdk.plugin import Plugin, format_duration, parse_duration


async def anything() -> None:
    """Do something."""


def test_a_decorated_function_stays_a_function() -> None:
    plugin = Plugin()
    assert plugin.tool()(anything) is anything
    assert plugin.tools["anything"].function is anything


def test_two_tools_of_one_name_collide_when_they_are_declared() -> None:
    plugin = Plugin()
    plugin.tool()(anything)
    with pytest.raises(Conflict, match="anything"):
        plugin.tool()(anything)


@pytest.mark.parametrize("name", ["a b", "", "x" * 65, "é", "a.b"])
def test_a_tool_name_that_a_model_refuses_is_refused_first(name: str) -> None:
    with pytest.raises(Invalid):
        Plugin().tool(name=name or " ")(anything)


def test_a_channel_name_leaves_room_for_the_names_of_its_tools() -> None:
    plugin = Plugin()
    plugin.input_channel("x" * 46)
    with pytest.raises(Invalid):
        plugin.output_channel("x" * 47)(anything)


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("on_nothing", {}),
        ("on_input", {"changes": {"result"}}),
        ("after_output", {"changes": {"response"}}),
        ("on_input", {"scope": "own_tools"}),
        ("before_toolcall", {"scope": "mine"}),
        ("on_input", {"timeout_s": 0}),
    ],
)
def test_a_handler_cannot_ask_for_what_its_stage_does_not_offer(stage: str, options: dict) -> None:
    with pytest.raises(Invalid):
        Plugin().stage(stage, **options)(anything)


def test_one_plugin_has_one_handler_for_a_stage() -> None:
    plugin = Plugin()
    plugin.stage("on_input")(anything)
    with pytest.raises(Conflict):
        plugin.stage("on_input")(anything)


def test_what_needs_the_bus_says_so_before_the_plugin_runs() -> None:
    with pytest.raises(Unavailable, match="not running"):
        _ = Plugin().bus


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("1.5h", 5400), (7, 7), ("7", 7)]
)
def test_durations_are_read_as_people_write_them(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5m", "m10", -1, float("nan"), True, None, "1h 30"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(Invalid):
        parse_duration(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (45, "45s"), (5400, "1h30m"), (90061, "1d1h1m1s")])
def test_durations_are_written_as_they_are_read(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds
