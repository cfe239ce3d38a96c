"""Whatever the handlers of a stage are and however long they take: nothing is lost, and the result is the same."""

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from homeagent_sdk.errors import TimedOut
from kernel.stage_host import StageHost, StageSpec

FIELDS = ("text", "tool_calls", "response")
BEHAVIOURS = ("works", "works", "works", "silent", "crashes", "late", "garbage", "undeclared")


@dataclass(frozen=True)
class Rogue:
    """One handler: what it declares and does. ``pauses`` says for how many turns of the loop it takes, run by run."""

    plugin: str
    changes: frozenset[str]
    priority: int
    behaviour: str
    pauses: tuple[int, int]

    def answer(self, fields):
        if self.behaviour == "garbage":
            return {"changes": dict.fromkeys(self.changes, 3.5), "more": b"\xff"} if self.changes else [1]
        if self.behaviour == "undeclared":
            return {"changes": {"final_text": "x"}}
        if self.behaviour == "silent" or not self.changes:
            return None
        made = {
            "text": fields["text"] + f" {self.plugin}",
            "tool_calls": [*fields["tool_calls"], {"id": self.plugin, "name": self.plugin}],
            "response": (fields.get("response") or "") + f" {self.plugin}",
        }
        changes = {name: made[name] for name in self.changes if name != "response"}
        return {"changes": changes, "response": made["response"] if "response" in self.changes else None}


@st.composite
def rogues(draw):
    names = draw(st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=8))
    return [
        Rogue(
            plugin=name,
            changes=draw(st.frozensets(st.sampled_from(FIELDS))),
            priority=draw(st.integers(-2, 2)),
            behaviour=draw(st.sampled_from(BEHAVIOURS)),
            pauses=(draw(st.integers(0, 6)), draw(st.integers(0, 6))),
        )
        for name in names
    ]


async def run(handlers, which):
    """Run the stage, and return its result with all that each handler was shown."""
    host = StageHost()
    by_plugin = {each.plugin: each for each in handlers}
    for each in handlers:
        host.register(each.plugin, "builtin", [StageSpec("post_action", each.changes, priority=each.priority)])
    seen = {}

    async def invoke(handler, fields, context):
        rogue = by_plugin[handler.plugin]
        seen[rogue.plugin] = dict(fields)
        for _ in range(rogue.pauses[which]):
            await asyncio.sleep(0)
        if rogue.behaviour == "crashes":
            raise RuntimeError("crash")
        if rogue.behaviour == "late":
            raise TimedOut("late")
        return rogue.answer(fields)

    return await host.run("post_action", {"text": "", "tool_calls": []}, {}, invoke), seen


def in_order(handlers, field):
    """Return the plugins whose change of a field must be in the result, in order."""
    writers = sorted(handlers, key=lambda each: (each.priority, each.plugin))
    return [each.plugin for each in writers if each.behaviour == "works" and field in each.changes]


@settings(max_examples=200, deadline=None)
@given(rogues())
def test_no_update_is_lost_and_updates_come_in_order(handlers):
    result, _ = asyncio.run(run(handlers, 0))
    assert result.fields["text"].split() == in_order(handlers, "text")
    assert [each["name"] for each in result.fields["tool_calls"]] == in_order(handlers, "tool_calls")
    assert (result.response or "").split() == in_order(handlers, "response")
    failed = {each.plugin for each in handlers if each.behaviour in ("crashes", "late", "garbage", "undeclared")}
    assert {each.plugin for each in result.skipped} == failed
    assert len(result.ran) + len(result.skipped) == len(handlers)


@settings(max_examples=200, deadline=None)
@given(rogues(), st.randoms())
def test_the_result_and_what_each_handler_sees_do_not_depend_on_timing_or_on_the_order_of_registration(
    handlers, random
):
    shuffled = list(handlers)
    random.shuffle(shuffled)
    assert asyncio.run(run(handlers, 0)) == asyncio.run(run(shuffled, 1))
