"""No sequence of frames, from anybody, on either socket, at any time, makes the switchboard raise or lose count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgpack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homeagent_sdk.bus import wire
from kernel.bus.access import METHODS
from kernel.bus.parking import MAX_PARKED
from kernel.bus.peers import MAX_EARLY_CANCELS, OUTBOX_ANSWER_BYTES, OUTBOX_ANSWER_MESSAGES
from tests.kernel.bus.board import Board

MEMBERS = [b"kernel", b"memory", b"provider", b"operator-1", b"echo", b"rogue"]
STRANGERS = [b"stranger", b"", b"\x00\xff" * 100]
IDS = [0, 1, 2, 3, 7, 2**32, 2**63 - 1]
ODD: list[Any] = [None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), "", "x" * 200, b"bytes", [], [[]], {}, {"a": []}]
METHOD_NAMES = [
    *METHODS,
    "echo.tool",
    "rogue.stage",
    "nobody.tool",
    "memory",
    "..",
    "memory.recall\n",
    "a" * 160,
    "ä.b",
]

odd = st.sampled_from(ODD)
fields = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just(1) | odd,
        "k": st.sampled_from(sorted(wire.KINDS)) | odd,
        "i": st.sampled_from(IDS) | odd,
        "m": st.sampled_from(METHOD_NAMES) | odd,
        "d": st.sampled_from([0, 1, 50, 60_000, 2**62]) | odd,
        "t": st.just("trace") | odd,
        "n": st.sampled_from([0, 1, 64, 2**62]) | odd,
        "o": odd,
        "z": odd,
    },
)
plausible = st.fixed_dictionaries(
    {"v": st.just(1), "k": st.sampled_from(sorted(wire.KINDS)), "i": st.sampled_from(IDS)},
    optional={"m": st.sampled_from(METHOD_NAMES), "d": st.sampled_from([1, 500]), "n": st.sampled_from([1, 64])},
)
values = st.recursive(
    odd | st.sampled_from([{"session": "x"}, {"name": "memory", "protocols": [1]}, {"topic": "a", "payload": b"\xc0"}]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "topics", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)
ugly_frames = st.sampled_from(
    [
        b"",
        b"\xc1",
        b"\x81\xa1",
        b"\x91" * 3000,
        b"\xdd\xff\xff\xff\xff",
        b"\xd4\x01\x00",
        b"\xd6\x01\x00\x00\x00\x07",
        b"\xd6\xff\x00\x00\x00\x00",
        b"x" * 5000,
        msgpack.packb({"v": 1, "k": "bye"}) + b"tail",
        msgpack.packb({"v": 1, "k": "call", "i": 1, "m": "hub.stats"})[:-3],
    ]
)
headers = st.one_of(plausible, plausible, fields).map(msgpack.packb) | ugly_frames
bodies = values.map(msgpack.packb) | ugly_frames | st.binary(max_size=30)
messages = st.one_of(
    st.tuples(headers, st.lists(bodies, max_size=3)).map(lambda parts: [parts[0], *parts[1]]),
    st.lists(ugly_frames, max_size=3),
    st.sampled_from([63, 64, 65, 200]).map(lambda count: [wire.encode_header("cast", method="memory.append")] * count),
)
senders = st.sampled_from(MEMBERS + STRANGERS)
steps = st.one_of(
    st.tuples(st.just("control"), senders, messages),
    st.tuples(st.just("control"), senders, messages),
    st.tuples(st.just("urgent"), senders, messages),
    st.tuples(st.just("join"), st.sampled_from(MEMBERS), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.01, 0.6, 3.0, 61.0, 1e6]), st.just(None)),
    st.tuples(st.just("ping"), st.booleans(), st.just(None)),
    st.tuples(st.just("full"), senders, st.booleans()),
    st.tuples(st.just("gone"), senders, st.booleans()),
    st.tuples(st.just("flush"), st.just(None), st.just(None)),
)


class Fuzzed:
    """A board on which anything is done, and what must be true of it at any time."""

    def __init__(self) -> None:
        self.board = Board()
        self.generation = 0
        self.calls: Counter[tuple[bytes, int]] = Counter()
        self.finals: Counter[tuple[bytes, int]] = Counter()
        for member in MEMBERS:
            self.join(member, True)

    def join(self, member: bytes, urgent: bool) -> None:
        if {member, b"u-" + member} & (self.board.gone | self.board.full):
            return
        name = member.decode()
        tier = {"echo": "builtin", "rogue": "external"}.get(name, "")
        self.generation += 1
        self.count_answers()
        self.board.join(name, tier, self.generation if tier else 0, urgent=urgent)

    def do(self, what: str, subject: Any, argument: Any) -> None:
        board = self.board
        if what == "control":
            self.note_call(subject, argument)
            board.switchboard.take_control(subject, argument)
        elif what == "urgent":
            board.switchboard.take_urgent(b"u-" + subject, argument)
        elif what == "join":
            self.join(subject, argument)
        elif what == "time":
            board.pass_time(subject)
        elif what == "ping":
            board.switchboard.ping(count_misses=subject)
        elif what in ("full", "gone"):
            affected = getattr(board, what)
            for identity in (subject, b"u-" + subject):
                (affected.add if argument else affected.discard)(identity)
        else:
            board.switchboard.flush()
        self.check()

    def note_call(self, sender: bytes, frames: list[bytes]) -> None:
        try:
            header = wire.decode_header(frames[0])
        except (wire.Malformed, IndexError):
            return
        if header["k"] == wire.CALL:
            self.calls[sender, header.get("i", 0)] += 1

    def count_answers(self) -> None:
        """Move what callers were answered into the count: as many as they made calls, and no more."""
        for identity, sent in self.board.control.items():
            for message in sent:
                if message.call_id and message.kind in (wire.REPLY, wire.ERROR, wire.END):
                    self.finals[identity, message.call_id] += 1
            sent.clear()

    def check(self) -> None:
        switchboard = self.board.switchboard
        peers, routes = switchboard.peers, switchboard.routes
        known = list(peers)
        for route in routes._routes.values():
            assert route.caller in peers
            assert route.callee in peers
        assert len(routes._by_caller) == len(routes._routes) == sum(routes._open_by_caller.values())
        assert all(count > 0 for count in routes._open_by_caller.values())
        assert switchboard.parked <= 4 * MAX_PARKED
        assert all(call.caller in peers for call in switchboard._exchange._parking._calls.values())
        assert {id(peer) for peer in peers._by_control.values()} == {id(peer) for peer in known}
        assert {id(peer) for peer in peers._by_session.values()} == {id(peer) for peer in known}
        assert all(peer in peers for peer in peers._by_urgent.values())
        for peer in known:
            assert len(peer.outbox) <= OUTBOX_ANSWER_MESSAGES
            assert peer.outbox_bytes == sum(wire.size_of(frames) for frames in peer.outbox) <= OUTBOX_ANSWER_BYTES
            assert len(peer._early_cancels) <= MAX_EARLY_CANCELS
        deadline = switchboard.next_deadline()
        assert (deadline is not None) == bool(len(routes) or switchboard.parked)
        self.count_answers()
        assert all(count <= self.calls[key] for key, count in self.finals.items())


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=40))
def test_nothing_that_is_sent_breaks_the_switchboard(sequence: list[tuple[str, Any, Any]]) -> None:
    fuzzed = Fuzzed()
    for step in sequence:
        fuzzed.do(*step)
    fuzzed.board.full.clear()
    fuzzed.board.gone.clear()
    fuzzed.do("flush", None, None)
    fuzzed.do("time", 100_000.0, None)
    assert len(fuzzed.board.switchboard.routes) == 0
    assert fuzzed.board.switchboard.parked == 0
    for peer in fuzzed.board.switchboard.peers:
        fuzzed.board.switchboard.remove(peer, "the end")
        fuzzed.check()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(MEMBERS), plausible, st.integers(0, 3)), max_size=80))
def test_well_formed_nonsense_of_members_leaves_no_call_without_an_end(
    sequence: list[tuple[bytes, dict[str, Any], int]],
) -> None:
    """Every call of a member that stays gets exactly one answer, whatever the others do meanwhile."""
    fuzzed = Fuzzed()
    for sender, header, body in sequence:
        if header["k"] in (wire.CALL, wire.CAST, wire.REPLY, wire.NEXT, wire.END, wire.ERROR, wire.CREDIT):
            header = {**header, "i": header["i"] or 5}
            fuzzed.do("control", sender, [msgpack.packb(header), msgpack.packb(body)])
        elif header["k"] == wire.CANCEL:
            fuzzed.do("urgent", sender, [msgpack.packb(header)])
    fuzzed.do("time", 100_000.0, None)
    assert fuzzed.finals == +fuzzed.calls
