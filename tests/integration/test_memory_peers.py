"""What is imported for many people through the command is found by each of them, and by nobody else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.home import Home

PEERS = 10
EVENTS = 200
QUESTIONS = 1_000
TOPICS = (
    "the garden gate",
    "自行车停在地下车库",
    "the dentist in Mill Street",
    "银行卡的密码",
    "a recipe for plum cake",
    "孩子的学校",
    "the insurance number",
    "去北京的火车",
    "a present for grandmother",
    "体检的结果",
)
"""All talk about the same things: only who may see it tells their events apart."""


def write_events(path: Path) -> dict[str, str | None]:
    """Write the file, all people's events mixed; returns whose each event is, None for one that is shared."""
    owner: dict[str, str | None] = {}
    with path.open("w") as file:
        for number in range(PEERS * EVENTS):
            peer, is_shared = f"peer{number % PEERS}", number % 101 == 0
            event = {
                "id": f"e{number}",
                "time": f"2026-{1 + number % 11:02}-{1 + number % 28:02}T12:00:00Z",
                "speaker": f"Speaker {number % PEERS}",
                "peer": peer,
                "text": f"{TOPICS[number // PEERS % len(TOPICS)]}: {number * 7919}",
                "reply": "noted",
                "shared": is_shared,
            }
            owner[f"e{number}"] = None if is_shared else peer
            file.write(json.dumps(event, ensure_ascii=False) + "\n")
    return owner


def write_questions(path: Path, chance: random.Random) -> dict[str, str]:
    """Write questions, half of them for a number that somebody said; returns who asks."""
    asks: dict[str, str] = {}
    with path.open("w") as file:
        for number in range(QUESTIONS):
            peer, topic = f"peer{chance.randrange(PEERS)}", chance.choice(TOPICS)
            said = chance.randrange(PEERS * EVENTS) * 7919
            query = f"{topic} {said}" if number % 2 else f"what about {topic}?"
            asks[f"q{number}"] = peer
            file.write(json.dumps({"id": f"q{number}", "query": query, "peer": peer}, ensure_ascii=False) + "\n")
    return asks


def answers_of(home: Home, path: Path, *options: str) -> list[dict[str, Any]]:
    done = home.command("memory", "search", "--batch", str(path), "--limit", "10", *options, timeout_s=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_thousand_questions_never_find_what_is_another_s(home: Home, tmp_path: Path) -> None:
    owner = write_events(tmp_path / "events.jsonl")
    asks = write_questions(tmp_path / "questions.jsonl", random.Random(20261201))
    with home:
        done = home.command("memory", "import", str(tmp_path / "events.jsonl"), "--json", timeout_s=100)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["new"] == PEERS * EVENTS
        answers = answers_of(home, tmp_path / "questions.jsonl")
        assert [answer["id"] for answer in answers] == list(asks)
        found = [(asks[answer["id"]], hit["id"]) for answer in answers for hit in answer["hits"]]
        assert [(peer, id) for peer, id in found if owner[id] not in (peer, None)] == []
        assert len(found) > QUESTIONS, "hardly anything was found: that nothing leaks would say little"
        assert {owner[id] for _, id in found} == {None, *(f"peer{number}" for number in range(PEERS))}
        # Asked for by the operator, without a peer, the same questions find everybody's.
        with (tmp_path / "all.jsonl").open("w") as file:
            file.write(json.dumps({"id": 1, "query": "a recipe for plum cake"}) + "\n")
        (everything,) = answers_of(home, tmp_path / "all.jsonl")
        assert len({owner[hit["id"]] for hit in everything["hits"]}) > 1
