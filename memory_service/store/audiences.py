"""Sets of principals, each stored once and known by a number: who may see what."""

from __future__ import annotations

import json
from collections.abc import Collection

import apsw

from homeagent_sdk.errors import Invalid

HOUSEHOLD = 0
"""The audience of what is shared with everybody."""

_MEMBERS = "SELECT json_group_array(value ORDER BY value) FROM (SELECT DISTINCT value FROM json_each(?))"
_SEES = (
    "SELECT audience FROM audience_member WHERE principal IN (SELECT value FROM json_each(?))"
    " GROUP BY audience HAVING count(*) = ?"
)


def intern(connection: apsw.Connection, visible_to: Collection[str], shared: bool) -> int:
    """Return the number of an audience, giving it one if it is new; inside the caller's transaction.

    :raises Invalid: nobody may see it, which must not be taken for everybody
    """
    number = number_of(connection, visible_to, shared)
    if number is None:
        members = connection.execute(_MEMBERS, (json.dumps(list(visible_to)),)).get
        connection.execute("INSERT INTO audience (members) VALUES (?)", (members,))
        number = connection.last_insert_rowid()
        connection.execute(
            "INSERT INTO audience_member (principal, audience) SELECT value, ? FROM json_each(?)", (number, members)
        )
    return int(number)


def number_of(connection: apsw.Connection, visible_to: Collection[str], shared: bool) -> int | None:
    """Return the number of an audience, None if it has none yet."""
    if shared:
        return HOUSEHOLD
    if not visible_to:
        raise Invalid("neither is it shared, nor is there anybody who may see it", field="visible_to")
    members = connection.execute(_MEMBERS, (json.dumps(list(visible_to)),)).get
    number = connection.execute("SELECT number FROM audience WHERE members = ?", (members,)).get
    return None if number is None else int(number)


def seen_by(connection: apsw.Connection, asking: Collection[str]) -> list[int]:
    """Return the audiences of what every one of these principals may see: the household, and those that have them all.

    :param asking: never empty: nobody may see everything
    """
    principals = sorted(set(asking))
    seen = connection.execute(_SEES, (json.dumps(principals), len(principals)))
    return [HOUSEHOLD, *(int(number) for (number,) in seen)]


def members(connection: apsw.Connection, number: int) -> tuple[str, ...]:
    """Return the principals of an audience; empty for the household."""
    return tuple(json.loads(connection.execute("SELECT members FROM audience WHERE number = ?", (number,)).get))
