"""A frame survives being saved, by this program and by an earlier one."""

from __future__ import annotations

import msgpack
import pytest

from homeagent_sdk.errors import Invalid
from kernel.turns.frame import SCHEMA_VERSION, ToolCall, TurnFrame


def frame() -> TurnFrame:
    made = TurnFrame("t1", "webui", "c1", "owner", "你好", 1.5, speaker="Anna", hits=[{"id": "e1", "score": 0.5}])
    made.calls = [ToolCall("c1", "echo", "{}", state="started")]
    made.usage.add({"prompt_tokens": 3, "completion_tokens": None})
    return made


def test_a_frame_comes_back_as_it_was() -> None:
    assert TurnFrame.unpack(frame().pack(), SCHEMA_VERSION) == frame()


def test_fields_that_a_later_program_dropped_or_an_earlier_one_lacked_do_not_matter() -> None:
    values = msgpack.unpackb(frame().pack())
    del values["hits"], values["usage"]
    values["something_old"] = 1
    read = TurnFrame.unpack(msgpack.packb(values), SCHEMA_VERSION)
    assert read.text == "你好" and read.hits == [] and read.usage.total_tokens == 0


def test_a_frame_of_a_newer_program_is_refused_with_what_to_do() -> None:
    with pytest.raises(Invalid, match="newer"):
        TurnFrame.unpack(frame().pack(), SCHEMA_VERSION + 1)


def test_what_is_kept_of_a_finished_turn_is_what_was_said_and_not_the_way_to_it() -> None:
    made = frame()
    made.raw_message, made.tools_used = "as plugins left it", ["echo"]
    made.tail = [{"role": "tool", "content": "a long result"}]
    made.context = [{"role": "system", "content": "the prompt"}]
    made.llm_text = made.final_text = "the answer"
    packed = made.pack_finished()
    for left_out in (b"a long result", b"the prompt", b"the answer", b"e1"):
        assert left_out not in packed
    kept = TurnFrame.unpack(packed, SCHEMA_VERSION)
    assert (kept.text, kept.message, kept.tools_used) == ("你好", "as plugins left it", ["echo"])
    assert kept.usage == made.usage and kept.calls == []


def test_what_an_earlier_program_knew_of_a_call_and_this_one_does_not_is_left_out() -> None:
    values = msgpack.unpackb(frame().pack())
    values["calls"][0]["output"] = {"old": True}
    values["usage"]["odd_tokens"] = 3
    assert TurnFrame.unpack(msgpack.packb(values), SCHEMA_VERSION) == frame()
