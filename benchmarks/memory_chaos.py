"""Whether the memory survives: ``python -m benchmarks.memory_chaos [--kills 300] [--cuts 300] [--seed 1] [--json]``.

Kills the memory's store with SIGKILL, and takes its power away, at random moments of everything that it does, and
looks after each whether all that was acknowledged is there once, whole, in one tier, and in every index. How this is
done, and what shows that it finds mistakes, stands in ``tests/chaos/memory``. Fails if anything is wrong even once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.chaos.memory.campaign import AIMS, OPENING, Campaign, Round

_GENERATION = 24
"""So many rounds in a row go on with the same memory."""

_MIGRATIONS = 3
"""So many of them, at the beginning, fall into its migration or its making."""

_OLD_EVENTS = 150


def main() -> int:
    """Run, print, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_chaos")
    parser.add_argument("--kills", type=int, default=300, help="how often it is killed")
    parser.add_argument("--cuts", type=int, default=300, help="how often the power goes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    result: dict[str, Any] = {"seed": options.seed}
    planned = {"kill": options.kills, "cut": options.cuts}
    with _progress(planned) as advance:
        for how, rounds in planned.items():
            with tempfile.TemporaryDirectory() as folder:
                result[how] = measure(Path(folder), how, rounds, options.seed, advance)
    wrong = sum(len(result[how]["problems"]) for how in ("kill", "cut"))
    print(json.dumps(result, ensure_ascii=False) if options.json else _written(result))
    return 1 if wrong else 0


def measure(folder: Path, how: str, rounds: int, seed: int, advance: Callable[[str], None]) -> dict[str, Any]:
    """Let the memory be hurt so many times, and return what was found.

    :param how: ``kill`` or ``cut``
    :param advance: called after each round with what was done
    """
    started = time.monotonic()
    done: list[Round] = []
    problems: list[dict[str, Any]] = []
    with Campaign(folder, seed) as campaign:
        for number in range(rounds):
            place = number % _GENERATION
            if place == 0:
                # Every other memory is one of the first release, which is migrated first.
                campaign.renew(_OLD_EVENTS * (number // _GENERATION % 2))
            aim = OPENING if place < _MIGRATIONS else AIMS[number % len(AIMS)]
            done.append(campaign.kill(aim) if how == "kill" else campaign.cut(aim))
            if done[-1].problems:
                fell_in, told = done[-1].fell_in, done[-1].problems
                problems.append({"round": number, "aim": aim, "fell_in": fell_in, "problems": told})
                campaign.renew()
            advance(how)
    return {
        "rounds": rounds,
        "fell_in": dict(Counter(kind for each in done for kind in set(each.fell_in)).most_common()),
        "in_the_middle_of_something": sum(each.fell_in != ("nothing",) for each in done),
        "acknowledged": sum(each.acknowledged for each in done),
        "problems": problems,
        "took_s": round(time.monotonic() - started, 1),
    }


def _written(result: dict[str, Any]) -> str:
    lines = []
    for how, name in (("kill", "kill -9"), ("cut", "power cut")):
        told = result[how]
        lines.append(f"{name}: {told['rounds']} times, {told['acknowledged']} operations acknowledged,")
        lines.append(f"  under way at that moment: {told['fell_in']}")
        lines.append(f"  wrong: {len(told['problems'])}; took {told['took_s']} s")
        lines += [json.dumps(problem, ensure_ascii=False) for problem in told["problems"]]
    return "\n".join(lines)


@contextmanager
def _progress(planned: dict[str, int]) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, nothing elsewhere."""
    names = {"kill": "kill -9", "cut": "power cuts"}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        tasks = {how: progress.add_task(names[how], total=rounds) for how, rounds in planned.items()}
        yield lambda how: progress.advance(tasks[how])


if __name__ == "__main__":
    sys.exit(main())
