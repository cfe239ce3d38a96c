"""The hub's rules for calls, answers, cancels, credit and deadlines, by the message and without sockets."""

from __future__ import annotations

import pytest

from homeagent_sdk.bus import wire
from kernel.bus.parking import MAX_PARKED, MAX_PARKED_BYTES
from kernel.bus.peers import MAX_EARLY_CANCELS, OUTBOX_ANSWER_MESSAGES, OUTBOX_BYTES, OUTBOX_MESSAGES
from kernel.bus.routes import MAX_PER_CALLER
from tests.kernel.bus.board import Board


@pytest.fixture
def board() -> Board:
    board = Board()
    board.join("kernel")
    board.join("memory")
    board.join("provider")
    return board


def test_a_call_is_passed_on_with_origin_and_what_is_left_of_its_time(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall", {"query": "cat"}, deadline_ms=1500, trace="abc")
    call = board.last(b"memory")
    assert call.header == {
        "v": 1,
        "k": "call",
        "i": call.call_id,
        "m": "memory.recall",
        "d": 1500,
        "t": "abc",
        "o": {"name": "kernel", "tier": "kernel", "generation": 0},
    }
    assert call.body == {"query": "cat"}
    board.send(b"memory", wire.REPLY, ["found"], call_id=call.call_id)
    assert board.last(b"kernel").header == {"v": 1, "k": "reply", "i": 7}


def test_an_origin_that_a_peer_writes_itself_is_ignored(board: Board) -> None:
    header = wire.encode_header(wire.CALL, call_id=1, method="memory.recall", origin={"name": "host", "tier": "kernel"})
    board.switchboard.take_control(b"kernel", [header])
    assert board.last(b"memory").header["o"]["name"] == "kernel"


def test_a_call_without_a_deadline_gets_the_default_and_none_gets_more_than_a_day(board: Board) -> None:
    board.call(b"kernel", 1, "memory.recall")
    assert board.last(b"memory").header["d"] == 60_000
    board.call(b"kernel", 2, "memory.recall", deadline_ms=2**62)
    assert board.last(b"memory").header["d"] == wire.MAX_DEADLINE_MS


def test_an_answer_to_the_call_of_someone_else_is_counted_and_not_passed_on(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall")
    stolen = board.last(b"memory").call_id
    board.send(b"provider", wire.REPLY, "lie", call_id=stolen)
    assert board.control[b"kernel"] == []
    assert board.switchboard.counters["late_answers"] == 1
    board.send(b"memory", wire.REPLY, "truth", call_id=stolen)
    assert board.last(b"kernel").body == "truth"


def test_only_the_first_answer_counts(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall")
    route = board.last(b"memory").call_id
    for kind in (wire.REPLY, wire.REPLY, wire.ERROR, wire.NEXT, wire.END):
        board.send(b"memory", kind, "x", call_id=route)
    assert [sent.kind for sent in board.control[b"kernel"]] == ["reply"]
    assert board.switchboard.counters["late_answers"] == 4


def test_two_calls_under_way_with_one_id_are_a_conflict(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall")
    board.call(b"kernel", 7, "provider.sources")
    assert board.last(b"kernel").body["code"] == "conflict"
    assert board.control[b"provider"] == []
    assert len(board.switchboard.routes) == 1


def test_a_call_without_an_id_drops_its_sender(board: Board) -> None:
    board.call(b"kernel", 0, "memory.recall")
    assert board.last(b"kernel").kind == "bye"
    assert board.switchboard.peers.named("kernel") is None


def test_a_caller_has_a_limited_number_of_calls_under_way(board: Board) -> None:
    for number in range(MAX_PER_CALLER):
        board.call(b"kernel", number + 1, "memory.recall")
    board.call(b"kernel", MAX_PER_CALLER + 1, "memory.recall")
    assert board.last(b"kernel").body["code"] == "overloaded"
    assert len(board.switchboard.routes) == MAX_PER_CALLER


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_a_cancel_reaches_the_callee_over_the_urgent_socket_and_answers_the_caller(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall")
    route = board.last(b"memory").call_id
    board.send_urgent(b"kernel", wire.CANCEL, call_id=7)
    assert (board.urgent[b"u-memory"][-1].kind, board.urgent[b"u-memory"][-1].call_id) == ("cancel", route)
    assert board.last(b"kernel").body["code"] == "cancelled"
    assert len(board.switchboard.routes) == 0


def test_a_cancel_takes_the_control_socket_while_the_callee_has_no_urgent_one() -> None:
    board = Board()
    board.join("kernel")
    board.join("memory", urgent=False)
    board.call(b"kernel", 7, "memory.recall")
    board.send_urgent(b"kernel", wire.CANCEL, call_id=7)
    assert [sent.kind for sent in board.control[b"memory"]] == ["call", "cancel"]


def test_a_cancel_that_the_callee_does_not_take_is_counted(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall")
    board.full.add(b"u-memory")
    board.send_urgent(b"kernel", wire.CANCEL, call_id=7)
    assert board.last(b"kernel").body["code"] == "cancelled"
    assert board.switchboard.counters["cancels_dropped"] == 1


def test_a_cancel_that_overtakes_its_call_stops_it_once(board: Board) -> None:
    board.send_urgent(b"kernel", wire.CANCEL, call_id=7)
    board.call(b"kernel", 7, "memory.recall")
    assert board.last(b"kernel").body["code"] == "cancelled"
    assert board.control[b"memory"] == []
    board.call(b"kernel", 7, "memory.recall")
    assert len(board.control[b"memory"]) == 1


def test_one_peer_cannot_make_the_hub_forget_the_early_cancels_of_another(board: Board) -> None:
    board.send_urgent(b"kernel", wire.CANCEL, call_id=7)
    for number in range(4 * MAX_EARLY_CANCELS):
        board.send_urgent(b"provider", wire.CANCEL, call_id=number + 1)
    board.call(b"kernel", 7, "memory.recall")
    assert board.last(b"kernel").body["code"] == "cancelled"


def test_nobody_cancels_the_call_of_someone_else(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall")
    board.send_urgent(b"provider", wire.CANCEL, call_id=7)
    board.send_urgent(b"provider", wire.CANCEL, call_id=board.last(b"memory").call_id)
    assert len(board.switchboard.routes) == 1


# -- streams ----------------------------------------------------------------------------------------------------------


def test_credit_goes_from_caller_to_callee_and_is_capped(board: Board) -> None:
    board.call(b"kernel", 7, "provider.chat", number=2**62)
    call = board.last(b"provider")
    assert call.header["n"] == wire.MAX_WINDOW
    board.send(b"kernel", wire.CREDIT, call_id=7, number=2**62)
    credit = board.last(b"provider")
    assert (credit.kind, credit.call_id, credit.header["n"]) == ("credit", call.call_id, wire.MAX_WINDOW)


def test_credit_for_no_call_of_the_sender_goes_nowhere(board: Board) -> None:
    board.call(b"kernel", 7, "provider.chat", number=64)
    before = len(board.control[b"provider"])
    board.send(b"memory", wire.CREDIT, call_id=7, number=5)
    board.send(b"kernel", wire.CREDIT, call_id=8, number=5)
    assert len(board.control[b"provider"]) == before


def test_a_stream_to_a_peer_that_dies_is_cancelled_at_its_writer(board: Board) -> None:
    board.call(b"kernel", 7, "provider.chat", number=64)
    route = board.last(b"provider").call_id
    board.send(b"provider", wire.NEXT, "one", call_id=route, number=0)
    board.gone.add(b"kernel")
    board.send(b"provider", wire.NEXT, "two", call_id=route, number=1)
    assert board.switchboard.peers.named("kernel") is None
    assert (board.urgent[b"u-provider"][-1].kind, board.urgent[b"u-provider"][-1].call_id) == ("cancel", route)
    assert len(board.switchboard.routes) == 0


# -- slow peers -------------------------------------------------------------------------------------------------------


def test_calls_to_a_slow_peer_wait_in_a_bounded_outbox_then_fail_and_others_are_not_touched(board: Board) -> None:
    board.full.add(b"memory")
    for number in range(OUTBOX_MESSAGES):
        board.call(b"kernel", number + 1, "memory.recall")
    assert board.control[b"kernel"] == []
    board.call(b"kernel", 9999, "memory.recall")
    assert board.last(b"kernel").body["code"] == "overloaded"
    assert board.switchboard.counters["calls_refused_full"] == 1
    board.call(b"kernel", 10_000, "provider.sources")
    assert board.last(b"provider").header["m"] == "provider.sources"
    board.full.clear()
    assert board.switchboard.flush() is False
    assert len(board.control[b"memory"]) == OUTBOX_MESSAGES
    assert [sent.call_id for sent in board.control[b"memory"]] == sorted(s.call_id for s in board.control[b"memory"])


def test_an_outbox_is_bounded_by_bytes_too(board: Board) -> None:
    board.full.add(b"memory")
    size = OUTBOX_BYTES // 4
    for number in range(4):
        board.call(b"kernel", number + 1, "memory.recall", b"x" * size)
    assert board.last(b"kernel").body["code"] == "overloaded"
    memory = board.switchboard.peers.named("memory")
    assert memory is not None
    assert memory.outbox_bytes <= OUTBOX_BYTES


def test_a_peer_that_does_not_take_its_answers_is_dropped(board: Board) -> None:
    board.join("operator-1")
    board.full.add(b"operator-1")
    for number in range(OUTBOX_ANSWER_MESSAGES + 1):
        board.call(b"operator-1", number + 1, "memory.stats")
        board.send(b"memory", wire.REPLY, 1, call_id=board.last(b"memory").call_id)
    assert board.switchboard.peers.named("operator-1") is None
    assert board.switchboard.counters["dropped_peers"] == 1
    board.full.clear()
    board.call(b"operator-1", 1, "memory.stats")
    assert board.last(b"operator-1").kind == "bye"


def test_a_peer_that_is_flooded_with_calls_still_gets_its_own_answers(board: Board) -> None:
    board.call(b"memory", 1, "kernel.status")
    route = board.last(b"kernel").call_id
    board.full.add(b"memory")
    for number in range(OUTBOX_MESSAGES + 5):
        board.call(b"kernel", number + 1, "memory.recall")
    board.send(b"kernel", wire.REPLY, "ready", call_id=route)
    board.full.clear()
    board.switchboard.flush()
    assert board.last(b"memory").body == "ready"


def test_a_cast_that_cannot_be_delivered_is_counted(board: Board) -> None:
    board.full.add(b"memory")
    for _ in range(OUTBOX_MESSAGES + 3):
        board.send(b"kernel", wire.CAST, method="memory.append")
    board.send(b"kernel", wire.CAST, method="provider.set_key")
    board.send(b"kernel", wire.CAST, method="host.health")
    assert board.switchboard.counters["casts_dropped"] == 4
    assert board.switchboard.counters["casts_refused"] == 1


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_call_ends_at_its_deadline_on_both_sides(board: Board) -> None:
    board.call(b"kernel", 7, "memory.recall", deadline_ms=2000)
    route = board.last(b"memory").call_id
    assert board.switchboard.next_deadline() == board.now + 2
    board.pass_time(1.9)
    assert board.control[b"kernel"] == []
    board.pass_time(0.2)
    assert board.last(b"kernel").body["code"] == "timeout"
    assert board.urgent[b"u-memory"][-1].call_id == route
    board.send(b"memory", wire.REPLY, "late", call_id=route)
    assert len(board.control[b"kernel"]) == 1
    assert board.switchboard.next_deadline() is None


def test_the_next_deadline_is_found_without_looking_at_every_call(board: Board) -> None:
    for number in range(4000):
        board.call(b"kernel", number + 1, "memory.recall", deadline_ms=1000 + number)
        board.send(b"memory", wire.REPLY, 1, call_id=board.last(b"memory").call_id)
    assert len(board.switchboard.routes) == 0
    assert len(board.switchboard.routes._deadlines) <= 1025


# -- calls that wait for a service ------------------------------------------------------------------------------------


def test_a_call_to_an_absent_service_waits_and_goes_out_with_what_is_left_of_its_time(board: Board) -> None:
    board.call(b"kernel", 7, "host.plugins", deadline_ms=5000)
    assert board.switchboard.parked == 1
    board.pass_time(2)
    board.join("host")
    assert board.switchboard.parked == 0
    # `join` forgets what the connection was sent; the route remembers
    assert len(board.switchboard.routes) == 1
    board.pass_time(3.1)
    assert board.last(b"kernel").body["code"] == "timeout"


def test_a_parked_call_expires_with_unavailable(board: Board) -> None:
    board.call(b"kernel", 7, "host.plugins", deadline_ms=500)
    board.pass_time(0.6)
    error = board.last(b"kernel").body
    assert (error["code"], error["detail"]) == ("unavailable", {"bus": True, "sent": False})
    assert board.switchboard.parked == 0


def test_a_parked_call_can_be_cancelled_and_its_id_used_again(board: Board) -> None:
    board.call(b"kernel", 7, "host.plugins", deadline_ms=500)
    board.send_urgent(b"kernel", wire.CANCEL, call_id=7)
    assert board.last(b"kernel").body["code"] == "cancelled"
    board.call(b"kernel", 7, "host.plugins", deadline_ms=5000)
    board.pass_time(1)
    assert board.switchboard.parked == 1


def test_parked_calls_are_bounded_in_number_and_bytes(board: Board) -> None:
    for number in range(MAX_PARKED + 1):
        board.call(b"kernel", number + 1, "host.plugins")
    assert board.last(b"kernel").body["code"] == "overloaded"
    board = Board()
    board.join("kernel")
    for number in range(3):
        board.call(b"kernel", number + 1, "host.plugins", b"x" * (MAX_PARKED_BYTES // 2 - 1000))
    assert board.last(b"kernel").body["code"] == "overloaded"
    assert board.switchboard.parked == 2


def test_the_parked_calls_of_a_caller_go_with_it(board: Board) -> None:
    board.call(b"kernel", 7, "host.plugins")
    board.send(b"kernel", wire.BYE)
    assert board.switchboard.parked == 0


def test_a_call_to_a_plugin_that_is_away_fails_at_once_and_to_one_never_seen_is_not_found(board: Board) -> None:
    board.join("echo", "builtin", 1)
    board.send(b"echo", wire.BYE)
    board.call(b"kernel", 7, "echo.tool")
    assert board.last(b"kernel").body["code"] == "unavailable"
    board.call(b"kernel", 8, "other.tool")
    assert board.last(b"kernel").body["code"] == "not_found"


# -- what the hub answers itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (KeyError("topic"), "invalid"),
        (TypeError("no"), "invalid"),
        (ValueError("no"), "invalid"),
        (OverflowError("no"), "invalid"),
        (ZeroDivisionError(), "internal"),
    ],
)
def test_what_goes_wrong_in_a_hub_method_is_a_typed_error(board: Board, failure: Exception, code: str) -> None:
    board.hub_answer = failure
    board.call(b"kernel", 1, "hub.stats")
    assert board.last(b"kernel").body["code"] == code
    board.send(b"kernel", wire.CAST, method="hub.publish")
    assert board.switchboard.counters["casts_refused"] == 1


def test_the_hub_reads_no_large_bodies(board: Board) -> None:
    board.call(b"kernel", 1, "hub.stats", b"x" * 200_000)
    assert board.last(b"kernel").body["code"] == "invalid"
    assert board.hub_calls == []


def test_an_answer_of_the_hub_may_come_later_even_when_the_asker_is_gone(board: Board) -> None:
    replies = []
    board.hub_answer = replies.append
    board.call(b"kernel", 1, "hub.lag")
    board.call(b"kernel", 2, "hub.lag")
    replies[0]({"p99_ms": 1})
    assert board.last(b"kernel").body == {"p99_ms": 1}
    board.send(b"kernel", wire.BYE)
    replies[1]({"p99_ms": 1})
    assert len(board.control[b"kernel"]) == 1
