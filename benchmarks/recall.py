#!/usr/bin/env python3
"""How well the memory recalls: ``python -m benchmarks.recall --sets DIR --scorer PROGRAM [--json] [SET…]``.

Starts a whole HomeAgent in a temporary directory for each set, imports the set's events with ``homeagent memory
import``, waits until each has its vector, asks its questions with ``homeagent memory search --batch``, and lets the
scorer judge the answers. The sets are not part of this repository: DIR holds one folder for each, with
``corpus.jsonl`` and ``queries.jsonl``; the scorer understands ``prepare SET EVENTS QUESTIONS`` and ``score SET ANSWERS
--json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from homeagent_sdk.bus import Credential, Peer  # noqa: E402
from homeagent_sdk.paths import DataDir  # noqa: E402
from tests.home import Home  # noqa: E402

_LIMIT = "20"
_ENOUGH_S = 900.0
_SHOWN = ("events", "import_per_s", "with_vectors_per_s", "questions", "question_ms", "R@1", "R@5", "R@10", "R@20")


def main() -> int:
    """Measure, print, and return 1 if the scorer finds a figure below its gate, or anything leaks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall")
    parser.add_argument("sets", nargs="*", metavar="SET", help="names of folders; all, if none is given")
    parser.add_argument("--sets", dest="folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--scorer", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each set")
    options = parser.parse_args()
    names = options.sets or sorted(each.name for each in options.folder.iterdir() if each.is_dir())
    if not names:
        parser.error(f"{options.folder} holds no set")
    below = [name for name in names if not _report(measure(options.folder / name, options.scorer), options.json)]
    return 1 if below else 0


def measure(folder: Path, scorer: Path) -> dict[str, Any]:
    """Run one set through a new HomeAgent, and return the figures."""
    with tempfile.TemporaryDirectory() as work:
        events, questions, answers = (Path(work) / name for name in ("events", "questions", "answers"))
        _run([scorer, "prepare", folder, events, questions])
        # Nobody talks to a model here; an address at which nobody listens spares the built-in one.
        home = Home(Path(work), "http://127.0.0.1:9/v1").start()
        try:
            began = time.perf_counter()
            imported = json.loads(_homeagent(home, "memory", "import", str(events), "--json"))
            until_words = time.perf_counter() - began
            asyncio.run(_until_vectors(home))
            until_vectors = time.perf_counter() - began
            began = time.perf_counter()
            answers.write_text(
                _homeagent(home, "memory", "search", "--batch", str(questions), "--limit", _LIMIT), encoding="utf-8"
            )
            asking = time.perf_counter() - began
        finally:
            home.stop()
        count = len(questions.read_text(encoding="utf-8").splitlines())
        judged = subprocess.run([scorer, "score", folder, answers, "--json"], capture_output=True, text=True)
        return {
            "set": folder.name,
            "events": imported["new"],
            "import_per_s": round(imported["new"] / until_words),
            "with_vectors_per_s": round(imported["new"] / until_vectors),
            "questions": count,
            "question_ms": round(asking / count * 1e3, 2),
            **json.loads(judged.stdout),
        }


async def _until_vectors(home: Home) -> None:
    """Wait until everything that was imported has its vector."""
    data = DataDir(home.data_dir)
    peer = Peer(data.run, Credential.from_key_file("operator-benchmark", data.key_file("operator")))
    await peer.start()
    try:
        async with asyncio.timeout(_ENOUGH_S):
            while not (await peer.call("memory.health", {}))["vectors"]["is_idle"]:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.1)
    finally:
        await peer.stop()


def _homeagent(home: Home, *arguments: str) -> str:
    return _run([sys.executable, "-m", "homeagent", *arguments, "--data-dir", str(home.data_dir)])


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "HOMEAGENT_LANG": "en"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    return done.stdout


def _report(result: dict[str, Any], as_json: bool) -> bool:
    if as_json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
    else:
        figures = "  ".join(f"{name} {result[name]}" for name in _SHOWN)
        print(f"{result['set']}: {figures}  leaks {result['leaks']}  below {result['below_gate']}", flush=True)
    return not result["below_gate"]


if __name__ == "__main__":
    sys.exit(main())
