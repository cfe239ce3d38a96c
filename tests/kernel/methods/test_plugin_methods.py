"""kernel.register and kernel.define_settings: one group, all or nothing."""

from __future__ import annotations

import pytest

from homeagent_sdk.errors import Conflict, Denied, HomeAgentError, Invalid
from tests.kernel.world import World, stage, tool


def everything_of(world: World, plugin: str) -> tuple[list[str], list[str], int]:
    outputs, _ = world.channels.of_plugin(plugin)
    return (
        [each.name for each in world.tools.of_plugin(plugin)],
        [each.name for each in outputs],
        len([each for each in world.stages.handlers("on_input") if each.plugin == plugin]),
    )


async def test_a_registration_replaces_what_was_there(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("a"), tool("b")], outputs=[{"name": "x"}], stages=[stage("on_input")])
    assert everything_of(world, "p") == (["a", "b"], ["x"], 1)
    assert [each.name for each in world.tools.of_plugin("kernel")] == [
        "output_list_channels",
        "output_send__x",
        "output_send__x_help",
        "persona_set",
    ]
    await plugin.register(tools=[tool("c")])
    assert everything_of(world, "p") == (["c"], [], 0)
    assert [each.name for each in world.tools.of_plugin("kernel")] == ["persona_set"]


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("tools", [tool("fine"), {"name": "no spaces please"}]),
        ("tools", "echo"),
        ("tools", [tool("taken")]),
        ("tools", [tool("get_plugin_tools")]),
        ("tools", [tool("output_send__x")]),
        ("outputs", [{"name": "no spaces please"}]),
        ("outputs", [{"name": "taken_channel"}]),
        ("stages", [stage("on_inputs")]),
        ("stages", [stage("on_input", "final_text")]),
        ("stages", [stage("on_input"), stage("on_input")]),
        ("inputs", [{"name": 5}]),
    ],
)
async def test_a_group_with_one_fault_changes_nothing(world: World, part: str, wrong: object) -> None:
    await world.plugin("other", tools=[tool("taken")], outputs=[{"name": "taken_channel"}])
    plugin = await world.plugin("p", tools=[tool("a")], outputs=[{"name": "x"}], stages=[stage("on_input")])
    before = everything_of(world, "p")
    group = {"tools": [tool("new")], "outputs": [{"name": "new"}], "stages": [], part: wrong}
    with pytest.raises((Invalid, Conflict)):
        await plugin.register(**group)
    assert everything_of(world, "p") == before
    assert "output_send__x" in [each.name for each in world.tools.of_plugin("kernel")]


async def test_a_plugin_that_is_gone_leaves_nothing(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("a")], outputs=[{"name": "x"}], stages=[stage("on_input")])
    plugin.die()
    assert everything_of(world, "p") == ([], [], 0)
    assert "p" not in world.plugins.registered and len(world.tools.of_plugin("kernel")) == 1


async def test_an_older_generation_that_goes_takes_nothing_of_the_newer_one(world: World) -> None:
    await world.plugin("p", tools=[tool("a")])
    world.plugins._generations["p"] = 2
    world.plugins.forget("p", 1)
    assert everything_of(world, "p")[0] == ["a"]
    world.plugins.forget("p", 2)
    assert everything_of(world, "p")[0] == []


async def test_settings_are_a_plugins_own(world: World) -> None:
    peer = world.bus.peer("timer", "builtin")
    definition = {"key": "zone", "type": "string", "default": "UTC", "description": {"en": "zone", "zh": "时区"}}
    answer = await peer.call("kernel.define_settings", {"plugin": "timer", "definitions": [definition]})
    assert answer["settings"] == {"zone": "UTC"}
    with pytest.raises(Denied):
        await peer.call("kernel.define_settings", {"plugin": "webui", "definitions": [definition]})
    for wrong in ("x", [5]):
        with pytest.raises(HomeAgentError):
            await peer.call("kernel.define_settings", {"plugin": "timer", "definitions": wrong})
