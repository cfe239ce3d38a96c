"""What the harness is worth: every mistake that is planted in the store is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.memory.campaign import OPENING, VERIFY, Campaign
from tests.chaos.memory.faults import FAULTS

pytestmark = pytest.mark.chaos

_ATTEMPTS = 60
_OLD_EVENTS = 20

CAUGHT = {
    "synchronous is NORMAL": ("cut", "append", "is absent, not"),
    "synchronous is OFF": ("cut", "append", ""),
    "acknowledged before the commit": ("cut", "append", ""),
    "archived in two transactions": ("kill", "archive", "an archive has no events"),
    "returned one by one": ("kill", "return", "half of return"),
    "words in a second transaction": ("kill", "append", "an event has no words"),
    "no words of some events": ("kill", "append", "an event has no words"),
    "no place in the queue": ("kill", "append", "neither a vector nor a place in the queue"),
    "answers imported later": ("kill", "import", "is not what was stored"),
    "forgotten without a trace": ("kill", "forget", "forgotten"),
    "migrated in two transactions": ("cut", OPENING, "the store does not open any more"),
}
"""How each is looked for, in which operation, and what is said of it; where that is chance, nothing."""


STORE_SEES = {
    "archived in two transactions",
    "words in a second transaction",
    "no words of some events",
    "no place in the queue",
}
"""What the store's own check must find as well: what is missing that nobody but a ledger knows of, it cannot."""


def test_every_fault_has_a_test() -> None:
    assert CAUGHT.keys() == FAULTS.keys() > STORE_SEES


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    how, aim, told = CAUGHT[fault]
    problems: tuple[str, ...] = ()
    with Campaign(tmp_path, 11, fault=fault) as campaign:
        for _ in range(_ATTEMPTS):
            campaign.renew(_OLD_EVENTS)
            problems = getattr(campaign, how)(aim).problems
            if any(told in problem for problem in problems if not problem.startswith(VERIFY)):
                break
        else:
            raise AssertionError(f"{fault} was not found in {_ATTEMPTS} attempts, but {problems}")
    assert fault not in STORE_SEES or any(problem.startswith(VERIFY) for problem in problems), problems


def test_a_disk_that_lies_is_found(tmp_path: Path) -> None:
    with Campaign(tmp_path, 12, lies=True) as campaign:
        assert any(campaign.cut("append").problems for _ in range(_ATTEMPTS))
