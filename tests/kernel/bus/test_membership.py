"""Joining, leaving, pings, and what strangers may not do; by the message and without sockets."""

from __future__ import annotations

import msgpack
import pytest

from homeagent_sdk.bus import prove, wire
from homeagent_sdk.errors import Invalid, Overloaded
from kernel.bus import access
from kernel.bus.admission import CHALLENGE_LIFE_S, MAX_TOKENS, TOKEN_LIFE_S
from kernel.bus.complaints import LINES_PER_WINDOW, WINDOW_S
from kernel.bus.membership import GONE_AFTER_S, MAX_HELLO_BYTES
from tests.kernel.bus.board import KEYS, Board


@pytest.fixture
def board() -> Board:
    return Board()


def answer(board: Board, identity: bytes, name: str, secret: str, generation: int = 0, **changes: object) -> str:
    """Go through the handshake; return the kind of the hub's last word."""
    nonce = board.hello(identity, name=name, generation=generation).body["nonce"]
    hello = {"name": name, "generation": generation, "nonce": nonce, "proof": prove(secret, name, nonce), **changes}
    return board.hello(identity, **hello).kind


# -- hello ------------------------------------------------------------------------------------------------------------


def test_a_welcome_names_epoch_name_tier_and_session(board: Board) -> None:
    assert answer(board, b"1", "memory", KEYS["memory"]) == "welcome"
    welcome = board.last(b"1").body
    assert (welcome["epoch"], welcome["name"], welcome["tier"]) == ("epoch-1", "memory", "service")
    assert len(welcome["session"]) == 32
    assert board.changes == [("memory", "up")]


@pytest.mark.parametrize(
    "hello",
    [
        None,
        [],
        {},
        {"name": 7},
        {"name": "Memory"},
        {"name": "memory", "generation": "1"},
        {"name": "memory", "generation": True},
        {"name": "memory", "generation": 0},
        {"name": "memory", "generation": 0, "protocols": 1},
        {"name": "memory", "generation": 0, "protocols": [[1]]},
        {"name": "memory", "generation": 0, "protocols": [2, "1", True, 1.0]},
        {"name": "nobody", "generation": 0, "protocols": [1]},
        {"name": "gateway", "generation": 0, "protocols": [1]},
        {"name": "memory", "generation": 0, "protocols": [1], "proof": b"x" * 32},
        {"name": "memory", "generation": 0, "protocols": [1], "proof": b"x" * 32, "nonce": b"n" * 40},
        {"name": "memory", "generation": 0, "protocols": [1], "proof": 7, "nonce": 7},
    ],
    ids=repr,
)
def test_a_hello_that_is_none_is_refused(board: Board, hello: object) -> None:
    board.switchboard.take_control(b"1", [wire.encode_header("hello"), msgpack.packb(hello)])
    assert (board.last(b"1").kind, board.last(b"1").body["code"]) == ("error", "denied")
    assert len(board.switchboard.peers) == 0


def test_a_large_hello_is_not_even_read(board: Board) -> None:
    board.switchboard.take_control(b"1", [wire.encode_header("hello"), b"\x00" * (MAX_HELLO_BYTES + 1)])
    assert board.last(b"1").body["code"] == "invalid"


def test_a_challenge_is_good_for_one_connection_one_name_and_ten_seconds(board: Board) -> None:
    nonce = board.hello(b"1", name="memory").body["nonce"]
    proof = prove(KEYS["memory"], "memory", nonce)
    assert board.hello(b"2", name="memory", nonce=nonce, proof=proof).kind == "error"
    provider = prove(KEYS["provider"], "provider", nonce)
    assert board.hello(b"1", name="provider", nonce=nonce, proof=provider).kind == "error"
    assert board.hello(b"1", name="memory", generation=1, nonce=nonce, proof=proof).kind == "error"
    board.now += CHALLENGE_LIFE_S + 0.1
    assert board.hello(b"1", name="memory", nonce=nonce, proof=proof).kind == "error"


def test_a_flood_of_hellos_keeps_nobody_out_and_leaves_nothing_behind(board: Board) -> None:
    nonce = board.hello(b"1", name="memory").body["nonce"]
    for number in range(5000):
        board.hello(b"flood-%d" % number, name="memory")
    assert board.hello(b"1", name="memory", nonce=nonce, proof=prove(KEYS["memory"], "memory", nonce)).kind == "welcome"
    state = vars(board.admission)
    assert all(len(state[name]) < 10 for name in state if isinstance(state[name], dict))


def test_a_wrong_key_and_a_wrong_proof_are_refused_in_the_same_words(board: Board) -> None:
    assert answer(board, b"1", "memory", "y" * 40) == "error"
    wrong_key = board.last(b"1").body["message"]
    assert answer(board, b"1", "memory", KEYS["memory"], proof=b"short") == "error"
    assert board.last(b"1").body["message"] == wrong_key


def test_a_generation_that_a_service_claims_is_ignored(board: Board) -> None:
    assert answer(board, b"1", "memory", KEYS["memory"], generation=2**40) == "welcome"
    assert answer(board, b"2", "memory", KEYS["memory"]) == "welcome"


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_good_once_for_its_generation_and_a_minute(board: Board) -> None:
    token = board.admission.mint("echo", 3, "builtin")
    assert board.hello(b"1", name="echo", generation=4).kind == "error"
    assert answer(board, b"1", "echo", token, 3) == "welcome"
    assert board.hello(b"2", name="echo", generation=3).kind == "error"
    token = board.admission.mint("echo", 4, "builtin")
    board.now += TOKEN_LIFE_S + 1
    assert board.hello(b"2", name="echo", generation=4).kind == "error"


def test_an_older_generation_is_refused_even_with_a_token(board: Board) -> None:
    board.join("echo", "builtin", 5)
    token = board.admission.mint("echo", 4, "builtin")
    assert answer(board, b"2", "echo", token, 4) == "error"
    assert board.last(b"2").body["code"] == "conflict"
    assert board.switchboard.peers.named("echo") is board.switchboard.peers.at_control(b"echo")


def test_a_newer_generation_takes_the_place_of_the_older(board: Board) -> None:
    old = board.join("echo", "builtin", 5)
    new = board.join("echo", "builtin", 6, identity=b"new")
    assert board.switchboard.peers.named("echo") is new
    assert old not in board.switchboard.peers
    assert (board.last(b"echo").kind, board.last(b"echo").body["replaced"]) == ("bye", True)
    assert board.changes == [("echo", "up"), ("echo", "gone"), ("echo", "up")]


def test_a_token_for_a_certain_process_admits_no_other(board: Board) -> None:
    for pid, kind in ((42, "welcome"), (43, "error"), (0, "welcome")):
        token = board.admission.mint("echo", 1, "builtin", pid=42)
        nonce = board.hello(b"1", name="echo", generation=1).body["nonce"]
        hello = {
            "name": "echo",
            "generation": 1,
            "protocols": [1],
            "nonce": nonce,
            "proof": prove(token, "echo", nonce),
        }
        frames = [wire.encode_header("hello"), msgpack.packb(hello)]
        board.switchboard.take_control(b"1", frames, lambda pid=pid: pid)
        assert board.last(b"1").kind == kind


@pytest.mark.parametrize(
    "name", ["", "Echo", "memory", "hub", "operator-x", "operatorx", "gateway", "a" * 65, "a.b", "1a"]
)
def test_a_token_is_minted_for_names_of_plugins_only(board: Board, name: str) -> None:
    with pytest.raises(Invalid):
        board.admission.mint(name, 1, "builtin")


def test_tokens_are_bounded_and_the_stale_ones_make_room(board: Board) -> None:
    for number in range(MAX_TOKENS):
        board.admission.mint(f"p{number}", 1, "external")
    with pytest.raises(Overloaded):
        board.admission.mint("one-more", 1, "external")
    board.now += TOKEN_LIFE_S + 1
    board.admission.mint("one-more", 1, "external")
    for bad in (("echo", 1, "kernel"), ("echo", -1, "builtin"), ("echo", 2**31, "builtin")):
        with pytest.raises(Invalid):
            board.admission.mint(*bad)


def test_an_external_plugin_has_no_right_by_the_name_that_it_chose() -> None:
    assert access.is_allowed("webui", "builtin", "provider.sources")
    assert not access.is_allowed("webui", "external", "provider.sources")
    assert not access.is_allowed("host", "external", "hub.mint_token")
    assert access.is_allowed("host", "service", "hub.mint_token")


def test_names_beyond_a_bound_are_forgotten_oldest_first_but_never_of_who_is_there(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel.bus.peers.MAX_SEEN", 100)
    board.join("first", "builtin", 7)
    for number in range(110):
        name = f"p{number}"
        board.join(name, "external", 1)
        board.send(name.encode(), wire.BYE)
    peers = board.switchboard.peers
    assert peers.newest_generation("first") == 7
    assert peers.newest_generation("p0") is None
    assert peers.newest_generation("p109") == 1
    assert len(peers._seen) <= 100


# -- connections ------------------------------------------------------------------------------------------------------


def test_a_second_hello_on_the_same_connection_is_one_change_each(board: Board) -> None:
    board.join("memory")
    board.join("kernel")
    board.call(b"kernel", 1, "memory.recall")
    board.changes.clear()
    board.join("memory")
    assert board.changes == [("memory", "gone"), ("memory", "up")]
    assert board.last(b"kernel").body["code"] == "unavailable"


def test_a_peer_leaves_once(board: Board) -> None:
    memory = board.join("memory")
    for _ in range(2):
        board.switchboard.remove(memory, "its process ended")
        board.switchboard.drop(memory, "again")
    assert board.changes == [("memory", "up"), ("memory", "gone")]
    assert board.control[b"memory"] == []


def test_strangers_are_told_to_say_hello(board: Board) -> None:
    board.call(b"stranger", 1, "memory.recall")
    assert board.last(b"stranger").body == {"reason": "say hello first"}
    board.send(b"stranger", wire.BYE)
    assert len(board.control[b"stranger"]) == 1
    board.send_urgent(b"stranger", wire.PONG)
    board.send_urgent(b"stranger", wire.CANCEL, call_id=1)
    assert board.switchboard.counters["strangers"] == 4


def test_the_urgent_socket_is_bound_by_the_session_and_confirmed(board: Board) -> None:
    peer = board.join("memory", urgent=False)
    hello = wire.encode_header("hello")
    for body in (None, [], {"session": 7}, {"session": "guess"}, {"session": peer.session[:-1] + "z"}):
        board.switchboard.take_urgent(b"u", [hello, msgpack.packb(body)])
    board.switchboard.take_urgent(b"u", [hello, b"\xc1"])
    assert board.urgent[b"u"] == []
    board.switchboard.take_urgent(b"u", [hello, msgpack.packb({"session": peer.session})])
    assert board.urgent[b"u"][-1].kind == "welcome"
    assert peer.urgent_identity == b"u"
    board.switchboard.take_urgent(b"u2", [hello, msgpack.packb({"session": peer.session})])
    assert board.switchboard.peers.at_urgent(b"u") is None
    assert board.switchboard.peers.at_urgent(b"u2") is peer


@pytest.mark.parametrize("kind", ["welcome", "challenge", "event", "ping", "pong", "cancel"])
def test_a_kind_on_the_wrong_socket_drops_its_sender(board: Board, kind: str) -> None:
    board.join("memory")
    board.send(b"memory", kind)
    assert board.last(b"memory").kind == "bye"
    assert board.switchboard.peers.named("memory") is None


@pytest.mark.parametrize("kind", ["call", "reply", "cast", "event", "bye", "credit", "challenge"])
def test_a_kind_that_is_not_urgent_drops_its_sender(board: Board, kind: str) -> None:
    board.join("memory")
    board.send_urgent(b"memory", kind)
    assert board.switchboard.peers.named("memory") is None


def test_garbage_of_a_peer_drops_it_and_of_a_stranger_is_logged_slowly(board: Board, capsys: object) -> None:
    board.join("memory")
    board.switchboard.take_control(b"memory", [b"\xc1garbage"])
    assert board.last(b"memory").body["reason"].startswith("sent garbage")
    for _ in range(1000):
        board.switchboard.take_control(b"stranger", [b"garbage"])
    board.now += WINDOW_S + 1
    board.switchboard.take_control(b"stranger", [])
    text = capsys.readouterr().out  # type: ignore[attr-defined]
    assert text.count("peer dropped") == 1
    assert text.count("garbage from a stranger") == LINES_PER_WINDOW + 1
    assert "suppressed=990" in text
    assert board.switchboard.counters["malformed"] == 1002


def test_more_frames_or_bytes_than_a_message_has_are_garbage(board: Board) -> None:
    board.join("memory")
    board.switchboard.take_control(b"memory", [wire.encode_header("cast")] * (wire.MAX_FRAMES + 1))
    assert board.switchboard.peers.named("memory") is None
    board.join("memory")
    blob = b"x" * (wire.MAX_MESSAGE_BYTES // 2 + 1)
    board.switchboard.take_control(b"memory", [wire.encode_header("cast"), blob, blob])
    assert board.switchboard.peers.named("memory") is None


# -- pings ------------------------------------------------------------------------------------------------------------


def ping(board: Board, times: int, *, answered: tuple[bytes, ...] = ()) -> None:
    for _ in range(times):
        board.now += 2
        board.switchboard.ping(count_misses=True)
        for name in answered:
            board.send_urgent(name, wire.PONG)


def test_three_missed_pings_make_a_peer_suspect_and_a_pong_makes_it_good_again(board: Board) -> None:
    board.join("kernel")
    memory = board.join("memory")
    board.changes.clear()
    ping(board, 3, answered=(b"kernel",))
    assert memory.state == "running"
    ping(board, 1, answered=(b"kernel",))
    assert board.changes == [("memory", "suspect")]
    board.call(b"kernel", 1, "memory.recall")
    error = board.last(b"kernel").body
    assert (error["code"], error["detail"]["sent"]) == ("unavailable", False)
    board.send_urgent(b"memory", wire.PONG)
    assert board.changes[-1] == ("memory", "running")
    board.call(b"kernel", 2, "memory.recall")
    assert board.last(b"memory").header["m"] == "memory.recall"


def test_a_call_under_way_survives_suspicion_and_ends_when_the_peer_is_gone(board: Board) -> None:
    board.join("kernel")
    board.join("memory")
    board.call(b"kernel", 1, "memory.recall", deadline_ms=600_000)
    ping(board, int(GONE_AFTER_S / 2), answered=(b"kernel",))
    assert board.control[b"kernel"] == []
    ping(board, 1, answered=(b"kernel",))
    error = board.last(b"kernel").body
    assert (error["code"], error["detail"]) == ("unavailable", {"bus": True, "sent": True})
    assert board.changes[-1] == ("memory", "gone")
    assert board.last(b"memory").kind == "bye"


def test_a_jump_of_the_clock_is_nobodys_miss(board: Board) -> None:
    memory = board.join("memory")
    ping(board, 3)
    board.now += 8 * 3600
    board.switchboard.ping(count_misses=False)
    assert (memory.state, memory.missed_pings) == ("running", 0)
    ping(board, 1, answered=(b"memory",))
    assert memory.state == "running"


def test_a_peer_without_an_urgent_socket_becomes_suspect(board: Board) -> None:
    memory = board.join("memory", urgent=False)
    ping(board, 4)
    assert memory.state == "suspect"


def test_a_peer_whose_urgent_connection_is_gone_is_told_to_come_back(board: Board) -> None:
    board.join("memory")
    board.gone.add(b"u-memory")
    ping(board, 1)
    assert board.switchboard.peers.named("memory") is None
    assert board.last(b"memory").kind == "bye"


def test_a_peers_own_ping_is_answered(board: Board) -> None:
    board.join("memory")
    board.send_urgent(b"memory", wire.PING, call_id=9)
    assert (board.urgent[b"u-memory"][-1].kind, board.urgent[b"u-memory"][-1].call_id) == ("pong", 9)


def test_a_thousand_peers_that_die_at_once_are_seen_off_one_by_one(board: Board) -> None:
    """Each waits for the next, so that ending the calls of one finds the next one dead."""
    names = [f"operator-{number}" for number in range(1500)]
    for name in names:
        board.join(name)
    board.join("memory")
    for number, name in enumerate(names):
        board.call(name.encode(), number + 1, "memory.stats")
    board.gone.update(name.encode() for name in names)
    board.changes.clear()
    board.send(b"memory", wire.BYE)
    assert len(board.switchboard.peers) == 0
    assert len(board.switchboard.routes) == 0
    assert len(board.changes) == len(set(board.changes)) == 1501
