"""What was said to a running HomeAgent and is then forgotten is in none of its files any more."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.replies import text
from tests.home import Home, wait_until

SECRET = "zebraquokka77"


def files_with(folder: Path, word: str) -> list[str]:
    """Return every file of the data directory that holds a word, byte by byte."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and word.encode() in path.read_bytes()
    )


def events(home: Home) -> int:
    return int(json.loads(home.command("memory", "stats", "--json").stdout)["events"])


def test_no_file_keeps_what_was_forgotten(home: Home, far_end: FakeOpenAI, tmp_path: Path) -> None:
    far_end.push(text(f"{SECRET} it is"), text("sunny"), text("I do not know"))
    with home:
        assert home.say(f"my word is {SECRET}") == (200, f"{SECRET} it is")
        assert home.say("how is the weather?")[0] == 200
        lines = tmp_path / "lines.jsonl"
        line = {"id": "i1", "time": "2026-11-01", "speaker": "Owner", "peer": "owner", "text": f"{SECRET} again"}
        lines.write_text(json.dumps(line))
        assert home.command("memory", "import", str(lines)).returncode == 0
        wait_until(lambda: events(home) == 3, what="three events in the memory")
        log = home.data_dir / "memory" / "conversations"
        wait_until(lambda: len(files_with(log, SECRET)) == 1, what="the log of conversations")
        held = files_with(home.data_dir, SECRET)
        assert any(name.startswith("kernel/journal.db") for name in held)
        assert any(name.startswith("memory/memory.db") for name in held)

        found = json.loads(home.command("memory", "search", SECRET, "--json").stdout)
        ids = [hit["id"] for hit in found if SECRET in hit["text"]]
        done = home.command("memory", "forget", *ids, "--yes", "--json")
        assert done.returncode == 0, done.stderr
        receipts = json.loads(done.stdout)["receipts"]
        assert receipts["journal"]["turns"] == 1 and receipts["memory"]["events"] == 2
        assert files_with(home.data_dir, SECRET) == []

        assert events(home) == 1
        again = home.command("memory", "import", str(lines), "--json")
        assert json.loads(again.stdout)["forgotten"] == 1
        assert home.say("what was my word?")[0] == 200
        assert SECRET not in json.dumps(far_end.chats[-1].body)
        doctor = {check["name"]: check for check in json.loads(home.command("doctor", "--json").stdout)}
        assert doctor["ledger"]["state"] == "ok", doctor["ledger"]
    assert files_with(home.data_dir, SECRET) == []
