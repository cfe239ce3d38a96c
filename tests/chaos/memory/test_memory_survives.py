"""The memory survives ``kill -9`` and power cuts in the middle of everything that it does.

Each round starts on what the one before has left, so that damage adds up; now and then a memory of the first release
takes its place, so that the kill falls into its migration. ``benchmarks/memory_chaos.py`` does the same at length.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.memory.campaign import AIMS, OPENING, Campaign, Round

pytestmark = pytest.mark.chaos

_OLD_EVENTS = 40
_OPENINGS = 3
"""So many rounds in a row fall into the migration of a memory, before the others begin."""


def assert_whole(done: Round) -> None:
    assert not done.problems, f"after {done.fell_in}:\n" + "\n".join(done.problems)


@pytest.mark.parametrize("how", ["kill", "cut"])
@pytest.mark.parametrize("old_events", [0, _OLD_EVENTS], ids=["new", "of the first release"])
def test_nothing_is_lost_or_doubled(tmp_path: Path, how: str, old_events: int) -> None:
    with Campaign(tmp_path, 21) as campaign:
        campaign.renew(old_events)
        rounds = []
        for aim in (*(OPENING,) * _OPENINGS, *AIMS[1:]):
            rounds.append(getattr(campaign, how)(aim))
            assert_whole(rounds[-1])
    fell_in = {kind for done in rounds for kind in done.fell_in}
    assert OPENING in fell_in and len(fell_in) >= 5, fell_in
    assert sum(done.acknowledged for done in rounds) >= 10
