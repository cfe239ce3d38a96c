"""Bodies are cut into their JSON texts, however the server sends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider_service.errors import CallFailed
from provider_service.framing import MAX_EVENT_BYTES, LineFraming, SseFraming, WholeFraming, choose_framing

BODY = (
    b': comment\r\nevent: message\r\ndata: {"a":"\xe4\xbd\xa0"}\r\n\r\n'
    b'data: {\ndata: "b": 2}\n\nid: 7\rdata:{"c":3}\r\rdata: [DONE]\n\ndata: after\n\n'
)
EVENTS = [b'{"a":"\xe4\xbd\xa0"}', b'{\n"b": 2}', b'{"c":3}']


def cut(framing, body, sizes):
    events, start = [], 0
    for size in sizes:
        events += framing.feed(body[start : start + size])
        start += size
    events += framing.feed(body[start:])
    return events + framing.end()


@given(st.lists(st.integers(1, 40), max_size=60))
def test_events_do_not_depend_on_where_the_network_cuts(sizes):
    framing = SseFraming()
    assert cut(framing, BODY, sizes) == EVENTS
    assert framing.is_done


def test_a_last_event_without_blank_line_counts():
    framing = SseFraming()
    assert framing.feed(b'data: {"a":1}') == []
    assert framing.end() == [b'{"a":1}']
    assert not framing.is_done


def test_a_byte_order_mark_is_skipped():
    assert SseFraming().feed(b"\xef\xbb\xbfdata: 1\n\n") == [b"1"]


def test_an_endless_event_is_refused():
    framing = SseFraming()
    with pytest.raises(CallFailed, match="larger than"):
        for _ in range(MAX_EVENT_BYTES // 2**20 + 1):
            framing.feed(b"x" * 2**20)


@given(st.lists(st.integers(1, 9), max_size=20))
def test_lines_do_not_depend_on_where_the_network_cuts(sizes):
    assert cut(LineFraming(), b'{"a":1}\n\n{"b":2}\r\n{"c":3}', sizes) == [b'{"a":1}', b'{"b":2}\r', b'{"c":3}']


@pytest.mark.parametrize(
    ("content_type", "first", "kind"),
    [
        ("text/event-stream", b"data: {}\n\n", SseFraming),
        ("application/json", b"data: {}\n\n", SseFraming),
        ("text/plain", b"\n\n: hi\n", SseFraming),
        ("text/plain", b"da", SseFraming),
        ("text/event-stream", b"", SseFraming),
        ("text/event-stream", b'{"error": 1}', WholeFraming),
        ("application/json", b'  {"a": 1}', WholeFraming),
        ("application/x-ndjson", b'{"a": 1}\n', LineFraming),
        ("text/html", b"<html>", WholeFraming),
    ],
)
def test_the_first_bytes_tell_more_than_the_type(content_type, first, kind):
    assert isinstance(choose_framing(content_type, first), kind)
