"""Channels, and the tools that the model sends by."""

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from homeagent_sdk.plugin.messages import OutputFlags
from kernel.channels import LONGEST_NAME, TYPES, ChannelRegistry, channel_of_tool
from kernel.tools import KERNEL, ToolRegistry

WEBUI = {"name": "webui", "flags": 1, "description": "the chat page", "synchronous": True, "redelivery": "at_most_once"}
QQ = {
    "name": "qq",
    "flags": 1 | 4,
    "description": "chat\nof friends",
    "synchronous": False,
    "redelivery": "at_least_once",
}


@pytest.fixture
def channels():
    registry = ChannelRegistry()
    registry.register("webui", [WEBUI], [{"name": "webui", "description": "the chat page"}])
    registry.register("qq", [QQ], [])
    return registry


def test_channels_of_a_plugin_come_and_go_as_a_group(channels):
    assert [each.name for each in channels.outputs()] == ["qq", "webui"]
    assert [each.name for each in channels.inputs()] == ["webui"]
    assert channels.output("qq").plugin == "qq"
    channels.register("qq", [QQ | {"name": "qq2"}], [{"name": "qq-in"}])
    assert [each.name for each in channels.outputs()] == ["qq2", "webui"]
    assert [(each.name, each.description) for each in channels.inputs()] == [
        ("qq-in", "qq-in"),
        ("webui", "the chat page"),
    ]
    channels.unregister("qq")
    channels.unregister("qq")
    assert [each.name for each in channels.outputs()] == ["webui"]
    assert channels.output("qq2") is None


def test_a_group_can_be_put_back(channels):
    before = channels.of_plugin("webui")
    assert [len(each) for each in before] == [1, 1]
    channels.register("webui", [], [])
    channels.restore("webui", before)
    assert channels.of_plugin("webui") == before


def test_a_name_belongs_to_one_plugin_and_the_refusal_names_both(channels):
    with pytest.raises(Conflict, match="the plugin other registers the output channel qq, which qq has"):
        channels.register("other", [QQ | {"name": "mine"}, QQ], [])
    assert channels.output("mine") is None
    with pytest.raises(Conflict, match="input channel webui, which webui has"):
        channels.register("other", [], [{"name": "webui"}])
    with pytest.raises(Invalid, match="twice"):
        channels.register("other", [QQ | {"name": "a"}, QQ | {"name": "a"}], [])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "has space"}, "name"),
        ({"name": "x" * (LONGEST_NAME + 1)}, "name"),
        ({"name": "qq_help"}, "name"),
        ({"name": None}, "name"),
        ({"flags": 0}, "flags"),
        ({"flags": 32}, "flags"),
        ({"flags": True}, "flags"),
        ({"flags": "text"}, "flags"),
        ({"redelivery": "sometimes"}, "redelivery"),
        ({"description": "x" * 3000}, "description"),
    ],
)
def test_a_channel_that_cannot_be_is_refused_and_the_old_ones_stay(channels, changes, field):
    with pytest.raises(Invalid, match="qq") as refusal:
        channels.register("qq", [QQ | changes], [])
    assert refusal.value.field == field
    assert channels.output("qq") is not None


def test_the_longest_name_still_fits_into_a_tools_name():
    channels, tools = ChannelRegistry(), ToolRegistry()
    channels.register("p", [QQ | {"name": "x" * LONGEST_NAME}], [])
    tools.register(KERNEL, 0, channels.tools())
    assert max(len(tool.name) for tool in tools.of_plugin(KERNEL)) == 64


def test_the_model_gets_two_tools_for_each_channel_that_nobody_waits_at(channels):
    tools = ToolRegistry()
    tools.register(KERNEL, 0, channels.tools())
    assert [tool.name for tool in tools.of_plugin(KERNEL)] == ["output_send__qq", "output_send__qq_help"]
    send = tools.get("output_send__qq")
    assert tools.arguments(send, '{"payload": "hi", "type": "IMAGE"}') == {"payload": "hi", "type": "image"}
    assert not send.flags.parallel_safe
    assert "chat" in send.description and "friends" not in send.description
    assert [channel_of_tool(tool.name) for tool in tools.of_plugin(KERNEL)] == [("qq", False), ("qq", True)]
    assert channel_of_tool("timer_set") is None


def test_a_channel_that_carries_one_type_does_not_ask_for_it(channels):
    channels.register("qq", [QQ | {"flags": 1}], [])
    assert set(channels.tools()[0]["parameters"]["properties"]) == {"payload", "meta"}


def test_the_help_says_what_can_be_sent_and_what_the_receipts_mean(channels):
    text = channels.help_text("qq")
    for part in ("qq", "of friends", "type text", "type image", "unconfirmed", "may arrive twice"):
        assert part in text
    assert "type audio" not in text
    assert "never sent twice" in channels.help_text("webui")
    with pytest.raises(NotFound):
        channels.help_text("nowhere")


def test_an_output_that_a_channel_cannot_carry_is_refused_with_what_it_can(channels):
    assert channels.check_type("qq", "")[1] == "text"
    channel, kind = channels.check_type("qq", " Image ")
    assert (channel.name, kind, channel.types) == ("qq", "image", ("text", "image"))
    with pytest.raises(Invalid, match="the channel qq cannot carry 'audio'") as refusal:
        channels.check_type("qq", "voice")
    assert refusal.value.hint == "it carries text, image"
    with pytest.raises(NotFound) as refusal:
        channels.check_type("nowhere", "text")
    assert refusal.value.hint == "channels: qq"


def test_every_flag_has_a_type():
    assert {flag.value for flag in TYPES.values()} == {flag.value for flag in OutputFlags} == {1, 2, 4, 8, 16}
