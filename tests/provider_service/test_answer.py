"""Answers are put together from pieces of all sorts."""

import json

import pytest

from provider_service.answer import Answer, estimate_tokens


def of(*pieces):
    answer = Answer("openai")
    for piece in pieces:
        answer.add(piece)
    return answer


def call(index=None, call_id=None, name=None, arguments=None):
    return {"tool_calls": [{"index": index, "id": call_id, "name": name, "arguments": arguments}]}


def test_text_and_reasoning_grow():
    answer = of({"reasoning": "hm "}, {"reasoning": "so"}, {"content": "a"}, {"content": "b", "finish_reason": "stop"})
    assert answer.message()["content"] == "ab"
    assert answer.message()["reasoning"] == "hm so"
    assert answer.finish_reason == "stop"


def test_an_emoji_cut_between_two_chunks_is_whole():
    answer = Answer("openai")
    assert answer.add({"content": "a\ud83d"}) == ("a", "")
    assert answer.add({"content": "\ude00b"}) == ("😀b", "")
    assert answer.message()["content"] == "a😀b"


def test_half_an_emoji_becomes_a_replacement_character():
    assert of({"content": "a\ude00b"}, {"content": "\ud83d"}).message()["content"] == "a�b�"


@pytest.mark.parametrize(
    "pieces",
    [
        [call(0, "a", "t", '{"x"'), call(0, None, None, ":1}"), call(1, "b", "u", "{}")],
        [call(0, "a", "t", '{"x"'), call(0, "a", None, ":1}"), call(0, "b", "u", "{}")],
        [call(None, "a", "t", '{"x"'), call(None, None, None, ":1}"), call(None, "b", "u", "{}")],
        [call(None, "a", "t", '{"x"'), call(None, "a", "t", ":1}"), call(None, "b", "u", None)],
        [call(0, "a", "t", {"x": 1}), call(1, "b", "u", "")],
        [call(1, "b", "u", "{}"), call(0, "a", "t", '{"x":1}')],
    ],
    ids=["index", "one index, two ids", "no index", "id repeated", "objects", "out of order"],
)
def test_fragments_of_calls_find_together(pieces):
    calls = {c["id"]: (c["name"], json.loads(c["arguments"])) for c in of(*pieces).message()["tool_calls"]}
    assert calls == {"a": ("t", {"x": 1}), "b": ("u", {})}


def test_a_call_without_id_gets_one_and_without_name_is_dropped():
    calls = of(call(0, None, "t", "{}"), call(1, "b", None, "{}")).message()["tool_calls"]
    assert len(calls) == 1
    assert calls[0]["id"].startswith("call_")


def test_a_cut_off_answer_has_no_calls():
    assert of(call(0, "a", "t", "{")).message(with_calls=False)["tool_calls"] == []


def test_opaque_lists_grow_and_keep_their_order():
    answer = of({"opaque": {"d": [{"z": 1, "a": 2**70}]}}, {"opaque": {"d": [{"b": None}], "s": "x"}})
    opaque = answer.message()["opaque"]
    assert opaque == {
        "adapter": "openai",
        "json": '{"d": [{"z": 1, "a": 1180591620717411303424}, {"b": null}], "s": "x"}',
    }


def test_usage_that_was_told_is_taken_and_summed_up():
    usage = of({"usage": {"prompt_tokens": 7, "completion_tokens": 3.0, "cached_tokens": 5, "total_tokens": -1}}).usage(
        ""
    )
    assert usage == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "cached_tokens": 5,
        "reasoning_tokens": 0,
        "reported": True,
    }


def test_usage_that_was_not_told_is_estimated_and_says_so():
    usage = of({"content": "four letters each"}).usage("你好你好你")
    assert usage["prompt_tokens"] == 4
    assert usage["completion_tokens"] == 5
    assert usage["reported"] is False


def test_an_empty_answer_is_one_only_with_a_standard_end():
    assert of().is_empty
    assert of({"finish_reason": "error"}).is_empty
    assert not of({"finish_reason": "stop"}).is_empty
    assert not of(call(0, "a", "t", "{}")).is_empty


def test_nonsense_is_passed_over():
    answer = of({"content": 7, "tool_calls": "x", "usage": [], "opaque": 1, "finish_reason": {}})
    assert answer.message() == {"content": "", "reasoning": "", "tool_calls": [], "opaque": None}


def test_chinese_counts_more_than_latin():
    assert estimate_tokens("a" * 40) == 10
    assert estimate_tokens("你" * 40) == 32
