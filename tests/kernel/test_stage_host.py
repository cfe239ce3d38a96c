"""What the host of the stages promises to turns and to plugins."""

import asyncio
import time

import pytest

from homeagent_sdk.errors import Denied, Internal, Invalid, TimedOut, Unavailable
from homeagent_sdk.plugin.messages import STAGES as SDK_STAGES
from kernel.errors import RequiredHandlerFailed
from kernel.stage_host import StageHost, StageSpec
from kernel.stages import FIELD_KINDS, STAGES


def spec(stage="on_input", *changes, **options) -> StageSpec:
    return StageSpec(stage, frozenset(changes), **options)


class Plugins:
    """Stands in for the bus: what each plugin's handler does, and what it was shown."""

    def __init__(self, **handlers) -> None:
        self.handlers = handlers
        self.seen = {}
        self.running = 0
        self.most_running = 0

    async def __call__(self, handler, fields, context):
        self.seen[handler.plugin] = dict(fields)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self.handlers[handler.plugin](fields)
        finally:
            self.running -= 1


def appending(field, text):
    async def handler(fields):
        await asyncio.sleep(0)
        return {"changes": {field: fields[field] + text}}

    return handler


def answering(answer):
    async def handler(fields):
        return answer

    return handler


def raising(error):
    async def handler(fields):
        raise error

    return handler


async def sleeping(fields):
    await asyncio.sleep(3600)


async def test_without_handlers_the_fields_come_back_at_once():
    host, fields = StageHost(), {"raw_message": "hi"}
    result = await host.run("on_input", fields, {}, Plugins())
    assert (result.fields, result.response, result.ran, result.skipped) == (fields, None, (), ())
    started = time.perf_counter()
    for _ in range(1000):
        await host.run("on_input", fields, {}, Plugins.__call__)
    assert (time.perf_counter() - started) / 1000 < 100e-6  # about 1 µs when nothing else runs


async def test_writers_of_one_field_run_in_order_and_each_sees_what_the_one_before_made():
    host = StageHost()
    host.register("zoe", "builtin", [spec("on_input", "raw_message", priority=-1)])
    host.register("bob", "builtin", [spec("on_input", "raw_message")])
    host.register("amy", "builtin", [spec("on_input", "raw_message")])
    plugins = Plugins(**{name: appending("raw_message", f" {name}") for name in ("amy", "bob", "zoe")})
    result = await host.run("on_input", {"raw_message": "hi"}, {}, plugins)
    assert result.fields["raw_message"] == "hi zoe amy bob"
    assert result.ran == ("zoe", "amy", "bob")
    assert plugins.most_running == 1


async def test_handlers_that_share_no_field_run_at_the_same_time():
    host = StageHost()
    meeting = asyncio.Barrier(3)

    def met(answer):
        async def handler(fields):
            async with asyncio.timeout(5):
                await meeting.wait()
            return answer

        return handler

    host.register("texts", "builtin", [spec("post_action", "text")])
    host.register("calls", "builtin", [spec("post_action", "tool_calls")])
    host.register("watches", "builtin", [spec("post_action")])
    plugins = Plugins(
        texts=met({"changes": {"text": "new"}}), calls=met({"changes": {"tool_calls": []}}), watches=met(None)
    )
    result = await host.run("post_action", {"text": "old", "tool_calls": [{"id": "1", "name": "x"}]}, {}, plugins)
    assert result.fields == {"text": "new", "tool_calls": []}
    assert result.skipped == ()


async def test_a_watcher_sees_the_stage_as_it_began():
    host = StageHost()
    host.register("a", "builtin", [spec("before_output", "final_text")])
    host.register("z", "builtin", [spec("before_output")])
    plugins = Plugins(a=appending("final_text", "!"), z=answering(None))
    result = await host.run("before_output", {"final_text": "hi"}, {}, plugins)
    assert (plugins.seen["z"], result.fields) == ({"final_text": "hi"}, {"final_text": "hi!"})
    assert set(result.ran) == {"a", "z"}


@pytest.mark.parametrize("answer", [{"changes": {"raw_message": "x"}}, {"changes": {}, "response": "x"}])
async def test_what_a_watcher_returns_is_refused(answer):
    host = StageHost()
    host.register("w", "builtin", [spec("on_input")])
    result = await host.run("on_input", {"raw_message": "hi"}, {}, Plugins(w=answering(answer)))
    assert (result.fields["raw_message"], result.response) == ("hi", None)
    assert result.skipped[0].reason == "refused"
    assert host.counts["w", "on_input"] == {"refused": 1}


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ({"changes": {"raw_message": "x", "text": "y"}}, "'text', which it had not declared"),
        ({"changes": {"raw_message": 7}}, "made raw_message a int; it must be a text"),
        ({"changes": {"raw_message": None}}, "NoneType"),
        ({"changes": [1, 2]}, "not an object"),
        ("garbage", "not an object"),
        (b"\xff", "not an object"),
        ({"response": "quick"}, "'response', which it had not declared"),
        ({"changes": {5: "x"}}, "5, which it had not declared"),
    ],
)
async def test_garbage_is_refused_as_a_whole_and_the_turn_goes_on(answer, detail):
    host = StageHost()
    host.register("bad", "external", [spec("on_input", "raw_message")])
    host.register("good", "builtin", [spec("on_input", "raw_message")])
    plugins = Plugins(bad=answering(answer), good=appending("raw_message", "!"))
    result = await host.run("on_input", {"raw_message": "hi"}, {}, plugins)
    assert result.fields == {"raw_message": "hi!"}
    assert result.ran == ("good",)
    assert detail in result.skipped[0].detail


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (sleeping, "late"),
        (raising(TimedOut("the bus gave up")), "late"),
        (raising(Unavailable("gone")), "crashed"),
        (raising(Internal("oops")), "crashed"),
        (raising(ZeroDivisionError("oops")), "crashed"),
        (raising(TimeoutError("its own")), "crashed"),
        (answering(7), "refused"),
    ],
)
async def test_a_handler_that_fails_is_skipped_and_counted_or_ends_the_turn_if_required(handler, reason):
    for required in (False, True):
        host = StageHost()
        host.register("bad", "builtin", [spec("on_input", "raw_message", timeout_s=0.02, required=required)])
        host.register("good", "builtin", [spec("on_input", "raw_message")])
        run = host.run("on_input", {"raw_message": "hi"}, {}, Plugins(bad=handler, good=appending("raw_message", "!")))
        if required:
            with pytest.raises(RequiredHandlerFailed, match="plugin bad must approve on_input") as failure:
                await run
            assert failure.value.detail == {"plugin": "bad", "stage": "on_input"}
        else:
            result = await run
            assert result.fields["raw_message"] == "hi!"
            assert [(each.plugin, each.reason) for each in result.skipped] == [("bad", reason)]
        assert host.counts["bad", "on_input"] == {reason: 1}


async def test_a_required_failure_stops_the_others_and_leaves_no_task():
    host = StageHost()
    host.register("guard", "builtin", [spec("post_action", "text", required=True)])
    host.register("slow", "builtin", [spec("post_action", "tool_calls")])
    host.register("zzz", "builtin", [spec("post_action", "text")])
    plugins = Plugins(guard=raising(ValueError("no")), slow=sleeping, zzz=appending("text", "!"))
    with pytest.raises(RequiredHandlerFailed):
        await host.run("post_action", {"text": "t", "tool_calls": []}, {}, plugins)
    assert plugins.running == 0
    assert "zzz" not in plugins.seen
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_run_cancels_its_handlers():
    host = StageHost()
    for name in ("a", "b"):
        host.register(name, "builtin", [spec("on_input")])
    plugins = Plugins(a=sleeping, b=sleeping)
    task = asyncio.create_task(host.run("on_input", {}, {}, plugins))
    for _ in range(5):
        await asyncio.sleep(0)
    assert plugins.running == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert plugins.running == 0


async def test_a_response_is_used_once_all_handlers_are_done():
    host = StageHost()
    host.register("answers", "builtin", [spec("on_input", "response", priority=-1)])
    host.register("edits", "builtin", [spec("on_input", "raw_message")])
    host.register("signs", "builtin", [spec("on_input", "response")])

    async def signing(fields):
        return {"changes": {}, "response": f"{fields['response']} (signed)"}

    plugins = Plugins(
        answers=answering({"changes": {}, "response": "no model needed"}),
        edits=appending("raw_message", "!"),
        signs=signing,
    )
    result = await host.run("on_input", {"raw_message": "hi"}, {}, plugins)
    assert result.response == "no model needed (signed)"
    assert result.fields == {"raw_message": "hi!"}


async def test_an_empty_response_is_a_response():
    host = StageHost()
    host.register("mute", "builtin", [spec("before_output", "response")])
    result = await host.run("before_output", {"final_text": "x"}, {}, Plugins(mute=answering({"response": ""})))
    assert result.response == ""


async def test_own_tools_goes_only_to_the_owner_of_the_tool():
    host = StageHost()
    host.register("files", "builtin", [spec("before_toolcall", "arguments", scope="own_tools")])
    host.register("guard", "builtin", [spec("before_toolcall", "response")])
    assert [each.plugin for each in host.handlers("before_toolcall", "files")] == ["files", "guard"]
    assert [each.plugin for each in host.handlers("before_toolcall", "timer")] == ["guard"]
    assert [each.plugin for each in host.handlers("before_toolcall")] == ["guard"]
    plugins = Plugins(files=answering({"changes": {"arguments": {"a": 2}}}), guard=answering(None))
    foreign = await host.run("before_toolcall", {"arguments": {"a": 1}}, {}, plugins, tool_owner="timer")
    assert foreign.fields == {"arguments": {"a": 1}}
    assert "files" not in plugins.seen
    own = await host.run("before_toolcall", {"arguments": {"a": 1}}, {}, plugins, tool_owner="files")
    assert own.fields == {"arguments": {"a": 2}}


async def test_registering_again_replaces_the_group_and_unregistering_removes_it():
    host = StageHost()
    host.register("p", "builtin", [spec("on_input"), spec("after_output")])
    host.register("p", "builtin", [spec("pre_action")])
    assert [stage for stage in STAGES if host.handlers(stage)] == ["pre_action"]
    host.unregister("p")
    host.unregister("p")
    assert not any(host.handlers(stage) for stage in STAGES)


async def test_a_refused_registration_changes_nothing():
    host = StageHost()
    host.register("p", "builtin", [spec("on_input")])
    with pytest.raises(Invalid):
        host.register("p", "builtin", [spec("pre_action"), spec("no_such_stage")])
    assert host.handlers("on_input") and not host.handlers("pre_action")


async def test_what_a_dead_plugin_guarded_stays_shut_until_it_is_back():
    host = StageHost()
    host.register("guard", "builtin", [spec("on_input", "response", required=True), spec("after_output")])
    host.unregister("guard", keep_required=True)
    assert not host.handlers("after_output")
    with pytest.raises(RequiredHandlerFailed, match="not running"):
        await host.run("on_input", {"raw_message": "x"}, {}, Plugins())
    assert host.counts["guard", "on_input"] == {"absent": 1}
    host.register("guard", "builtin", [spec("on_input", "response", required=True)])
    assert (await host.run("on_input", {}, {}, Plugins(guard=answering(None)))).ran == ("guard",)
    host.unregister("guard")
    assert (await host.run("on_input", {}, {}, Plugins())).ran == ()


@pytest.mark.parametrize(
    ("specs", "message", "hint"),
    [
        ([spec("on_inptu")], "plugin p registers for the stage 'on_inptu'", "before_toolcall"),
        ([spec("on_input", "text")], "change text in on_input", "raw_message"),
        ([spec("after_output", "response")], "change response in after_output", "nothing"),
        ([spec("on_input", scope="own_tools")], "on_input is about no tool", "before_toolcall and after_toolcall"),
        ([spec("on_input", scope="local")], "the scope 'local'", "global"),
        ([spec("on_input", timeout_s=0)], "a time limit of 0 s", "at most 60 s"),
        ([spec("on_input", timeout_s=61)], "a time limit of 61 s", "at most 60 s"),
        ([spec("on_input", timeout_s=float("nan"))], "a time limit of nan s", "at most 60 s"),
        ([spec("on_input", priority=10**9)], "the priority 1000000000", "1000000"),
        ([spec("on_input"), spec("on_input")], "two handlers for on_input", "one handler"),
    ],
)
def test_a_mismatch_is_named_with_both_sides_when_it_is_registered(specs, message, hint):
    with pytest.raises(Invalid) as refusal:
        StageHost().register("p", "builtin", specs)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


def test_the_manifest_bounds_what_an_external_plugin_may_register():
    grants = {"on_input": frozenset({"raw_message"}), "after_output": frozenset()}
    StageHost().register("p", "external", [spec("on_input", "raw_message"), spec("after_output")], grants=grants)
    with pytest.raises(Denied, match="does not let it change response in on_input"):
        StageHost().register("p", "external", [spec("on_input", "response")], grants=grants)
    with pytest.raises(Denied, match="does not list the stage pre_action"):
        StageHost().register("p", "external", [spec("pre_action")], grants=grants)


def test_a_registration_is_read_strictly_from_the_wire():
    body = {
        "stage": "before_toolcall",
        "scope": "own_tools",
        "changes": ["arguments"],
        "priority": 3,
        "timeout_s": 2,
        "required": True,
    }
    assert StageSpec.from_wire(body) == StageSpec(
        "before_toolcall", frozenset({"arguments"}), "own_tools", 3, 2.0, True
    )
    assert StageSpec.from_wire({"stage": "on_input"}) == StageSpec("on_input")
    for wrong in (None, [], {}, {"stage": 1}, body | {"chnages": []}, body | {"changes": "text"}):
        with pytest.raises(Invalid):
            StageSpec.from_wire(wrong)
    for wrong in ({"priority": "1"}, {"timeout_s": True}, {"priority": 1.5}, {"changes": [1]}):
        with pytest.raises(Invalid):
            StageSpec.from_wire(body | wrong)


def test_the_table_of_stages_fits_the_one_of_the_sdk_and_the_kinds_of_fields():
    assert {name: stage.changes for name, stage in STAGES.items()} == SDK_STAGES
    assert {name for stage in STAGES.values() for name in stage.changes} == set(FIELD_KINDS)
    assert (next(iter(STAGES)), list(STAGES)[-1]) == ("on_input", "after_output")
