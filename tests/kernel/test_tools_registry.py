"""Which tools there are, and which of them a model is shown."""

import json

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from kernel.tools import GET_PLUGIN_TOOLS, KERNEL, Tool, ToolFlags, ToolRegistry, plan


def body(name, **changes):
    return {
        "name": name,
        "description": f"what {name} does",
        "parameters": {"type": "object", "properties": {}},
    } | changes


@pytest.fixture
def registry():
    return ToolRegistry(budget_tokens=1000, estimate=len)


def test_tools_of_a_plugin_come_and_go_as_a_group(registry):
    registry.register("timer", 3, [body("timer_set"), body("timer_list")])
    assert [tool.name for tool in registry.of_plugin("timer")] == ["timer_set", "timer_list"]
    assert (registry.get("timer_set").plugin, registry.get("timer_set").generation) == ("timer", 3)
    registry.register("timer", 4, [body("timer_list")])
    assert registry.find("timer_set") is None
    assert registry.get("timer_list").generation == 4
    registry.unregister("timer")
    registry.unregister("timer")
    assert registry.find("timer_list") is None
    assert registry.of_plugin("timer") == ()


def test_a_name_belongs_to_one_plugin_and_the_refusal_names_both(registry):
    registry.register("files", 1, [body("search")])
    with pytest.raises(Conflict, match=r"the plugin web registers the tool search, which files has already"):
        registry.register("web", 1, [body("fetch"), body("search")])
    assert registry.find("fetch") is None
    with pytest.raises(Invalid, match="fetch twice"):
        registry.register("web", 1, [body("fetch"), body("fetch")])
    with pytest.raises(Conflict, match="which kernel has already"):
        registry.register("web", 1, [body(GET_PLUGIN_TOOLS.name)])


def test_a_refused_registration_keeps_the_old_group(registry):
    registry.register("web", 1, [body("fetch")])
    with pytest.raises(Invalid):
        registry.register("web", 2, [body("post"), body("bad name")])
    assert registry.get("fetch").generation == 1


def test_a_group_can_be_put_back(registry):
    registry.register("web", 1, [body("fetch")])
    before = registry.of_plugin("web")
    registry.register("web", 2, [body("post")])
    registry.restore("web", before)
    assert registry.find("post") is None
    assert registry.get("fetch").generation == 1


def test_the_kernels_own_tools_are_registered_likewise(registry):
    registry.register(KERNEL, 0, [body("output_send__qq"), body("output_list_channels")])
    assert registry.get("output_send__qq").plugin == KERNEL
    with pytest.raises(Invalid, match="belong to output channels"):
        registry.register("web", 1, [body("output_send__mine")])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "has space"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": ""}, "name"),
        ({"name": "ünïcode"}, "name"),
        ({"name": 5}, "name"),
        ({"description": ""}, "description"),
        ({"description": None}, "description"),
        ({"description": "x" * 9000}, "description"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"type": "string"}}, "parameters"),
        ({"parameters": {"type": "object", "properties": []}}, "parameters"),
        ({"parameters": {"type": "object", "properties": {"a": 1}}}, "parameters.properties"),
        ({"parameters": {"type": "object", "properties": {}, "required": ["a"]}}, "parameters.required"),
        ({"parameters": {"type": "object", "properties": {}, "required": "a"}}, "parameters.required"),
        ({"parameters": {"type": "object", "properties": {"a": {"description": "x" * 70_000}}}}, "parameters"),
        ({"parameters": {"type": "object", "properties": {"a": {"default": b"x"}}}}, "parameters"),
        ({"flags": []}, "flags"),
        ({"flags": {"paralel_safe": True}}, "flags"),
        ({"flags": {"parallel_safe": "yes"}}, "flags.parallel_safe"),
        ({"flags": {"timeout_s": 0}}, "flags.timeout_s"),
        ({"flags": {"timeout_s": True}}, "flags.timeout_s"),
        ({"flags": {"timeout_s": float("nan")}}, "flags.timeout_s"),
        ({"flags": {"timeout_s": 1e9}}, "flags.timeout_s"),
    ],
)
def test_a_tool_that_cannot_be_is_refused_when_it_is_registered(registry, changes, field):
    with pytest.raises(Invalid, match="web") as refusal:
        registry.register("web", 1, [body("fetch") | changes])
    assert refusal.value.field == field


@pytest.mark.parametrize("wrong", [None, "fetch", [], [body("x")]])
def test_what_is_no_tool_is_refused(registry, wrong):
    with pytest.raises(Invalid):
        registry.register("web", 1, [wrong])


def test_flags_are_read_and_default_to_the_cautious(registry):
    flags = {"no_memory": True, "parallel_safe": True, "idempotent": True, "timeout_s": 5, "requires_approval": True}
    registry.register("web", 1, [body("fetch", flags=flags), body("post")])
    assert registry.get("fetch").flags == ToolFlags(
        no_memory=True, parallel_safe=True, idempotent=True, timeout_s=5.0, requires_approval=True
    )
    assert registry.get("post").flags == ToolFlags()


def test_a_tool_without_parameters_takes_none(registry):
    registry.register("web", 1, [{"name": "now", "description": "the time"}])
    assert registry.get("now").parameters == {"type": "object", "properties": {}}


def test_a_tool_that_is_not_there_is_answered_with_what_may_have_been_meant(registry):
    registry.register("timer", 1, [body("timer_set")])
    with pytest.raises(NotFound, match="no tool 'timer_sett'") as refusal:
        registry.get("timer_sett")
    assert "did you mean timer_set?" in refusal.value.hint
    assert "get_plugin_tools" in refusal.value.hint


def names(offer):
    return [schema["name"] for schema in offer.schemas]


def test_as_long_as_all_schemas_fit_the_model_is_shown_them_all(registry):
    registry.register("timer", 1, [body("timer_set")])
    registry.register("echo", 1, [body("echo")])
    registry.register(KERNEL, 0, [body("output_list_channels", flags={"always": True})])
    offer = registry.offer()
    assert names(offer) == ["output_list_channels", "echo", "timer_set"]
    assert offer.catalogue == ()
    assert offer.tokens == sum(len(json.dumps(schema)) for schema in offer.schemas)
    assert set(offer.schemas[0]) == {"name", "description", "parameters"}


def test_what_does_not_fit_is_a_line_in_the_catalogue_until_it_is_fetched(registry):
    registry.register("small", 1, [body("one")])
    registry.register("mcp", 1, [body(f"tool_{n}") for n in range(40)])
    offer = registry.offer()
    assert names(offer) == ["get_plugin_tools", "one"]
    (line,) = offer.catalogue
    assert line.startswith("mcp (40 tools): tool_0, tool_1, ")
    assert line.endswith("more")
    assert len(line) < 350
    fetched = registry.offer(["mcp", "no such plugin"])
    assert names(fetched)[:3] == ["get_plugin_tools", "one", "tool_0"]
    assert len(fetched.schemas) == 40 + 2
    assert fetched.catalogue == offer.catalogue
    assert fetched.tokens > 1000 > offer.tokens
    assert [tool["name"] for tool in registry.describe("mcp")][:2] == ["tool_0", "tool_1"]
    with pytest.raises(NotFound) as refusal:
        registry.describe("mpc")
    assert "mcp, small" in refusal.value.hint


def test_a_line_that_is_short_enough_says_what_the_tools_do(registry):
    registry.register("small", 1, [body("one")])
    registry.register("mcp", 1, [body("read"), body("write", description="writes " + "very " * 900)])
    (line,) = registry.offer().catalogue
    assert line.startswith("mcp (2 tools): read: what read does; write: writes very very")


def test_the_same_registrations_give_the_same_offer_in_whatever_order_they_came():
    offers = []
    for order in (("a", "b", "c"), ("c", "b", "a")):
        registry = ToolRegistry()
        for plugin in order:
            registry.register(plugin, 1, [body(f"{plugin}_{n}") for n in range(3)])
        offers.append(registry.offer())
        assert registry.offer() is offers[-1]
    assert offers[0] == offers[1]


def test_a_change_is_seen_in_the_next_offer(registry):
    assert registry.offer().schemas == ()
    registry.register("echo", 1, [body("echo")])
    assert names(registry.offer()) == ["echo"]
    registry.unregister("echo")
    assert names(registry.offer()) == []


def tool(**flags):
    return Tool("t", "p", "d", {}, ToolFlags(**flags))


SAFE, PLAIN = tool(parallel_safe=True), tool()


@pytest.mark.parametrize(
    ("tools", "groups"),
    [
        ([], []),
        ([PLAIN], [[0]]),
        ([SAFE, SAFE, SAFE], [[0, 1, 2]]),
        ([PLAIN, PLAIN], [[0], [1]]),
        ([PLAIN, SAFE, PLAIN, SAFE], [[0], [1, 3], [2]]),
        ([SAFE, None, SAFE], [[0, 2], [1]]),
        ([SAFE, tool(parallel_safe=True, serial=True), SAFE], [[0, 2], [1]]),
    ],
)
def test_safe_calls_of_a_batch_run_together_and_the_others_one_by_one(tools, groups):
    assert plan(tools) == groups
