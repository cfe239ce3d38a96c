"""Who may speak to the agent, and how they prove it: principals and their keys, in ``config.db``.

Only hashes of keys are stored. A key has 256 random bits, so a fast hash is as good as a slow one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import apsw

from homeagent_sdk.errors import Conflict, Denied, Invalid, NotFound
from kernel.database import Database

T = TypeVar("T")

OWNER = "owner"
MEMBER = "member"
KEY_PREFIX = "ha-"
SHORTEST_KEY = 16
_LONGEST_KEY = 512
_MOST_KEYS = 64
_MOST_PRINCIPALS = 1000
_NAME = re.compile(r"\w[\w .@'-]{0,39}")
_IMPORTABLE = re.compile(rf"[\x21-\x7e]{{{SHORTEST_KEY},{_LONGEST_KEY}}}")


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or system that may speak to the agent.

    :ivar principal: its id, never used again after it was removed; what memories are bound to
    :ivar name: what people call it
    :ivar role: ``owner`` or ``member``
    :ivar created: wall clock, seconds since 1970
    :ivar keys: how many keys it has
    """

    principal: str
    name: str
    role: str
    created: float
    keys: int


class Principals:
    """All principals and their keys, read from memory and written through.

    :param database: ``config.db``, opened by the caller
    :param wall_clock: seconds since 1970
    """

    def __init__(self, database: Database, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._now = wall_clock
        self._by_id: dict[str, Principal] = {}
        self._by_hash: dict[bytes, str] = {}
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read what is stored; called once, at start.

        :raises Unavailable: the database cannot be used
        """
        self._by_id, self._by_hash = await self._database.read(_read_all)

    def list(self) -> list[Principal]:
        """Return all principals, the owner first, then by name."""
        return sorted(self._by_id.values(), key=lambda each: (each.role != OWNER, each.name.casefold()))

    def exists(self, principal: str) -> bool:
        """Say whether there is a principal with this id."""
        return principal in self._by_id

    def authenticate(self, key: str) -> Principal:
        """Return whose key it is, in a time that tells nothing about the keys that there are.

        :raises Denied: it is nobody's
        """
        wanted = _hash(key)
        found = None
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(known, wanted):
                found = principal
        if found is None:
            raise Denied("the key is not valid", field="key", hint="`homeagent principal key-new` makes another one")
        return self._by_id[found]

    async def add(self, name: str) -> tuple[Principal, str]:
        """Make a member with a first key.

        :param name: 1 to 40 letters, digits, spaces and . _ - @ ', of any language; no other principal may bear it
        :returns: the principal, and its key, which is shown this once and stored nowhere
        :raises Invalid: the name cannot be
        :raises Conflict: the name is taken, or there are too many principals
        """
        clean = _checked_name(name)
        return await self._apply(lambda: self._add(clean))

    async def remove(self, principal: str) -> None:
        """Remove a principal, by id or name; from now on its keys are nobody's. What it said stays remembered.

        :raises NotFound: there is none
        :raises Invalid: it is the owner
        """
        found = self._find(principal)
        if found.role == OWNER:
            raise Invalid(
                "the owner cannot be removed", field="principal", hint="`homeagent principal list` shows others"
            )
        await self._apply(lambda: self._remove(found.principal))

    async def key_new(self, principal: str, *, replace: bool = False) -> str:
        """Make a key for a principal, by id or name.

        :param replace: whether all other keys of it stop working
        :returns: the key, which is shown this once and stored nowhere
        :raises NotFound: there is no such principal
        :raises Conflict: it has too many keys
        """
        found = self._find(principal)
        key = _new_key()
        forget = "principal = :principal" if replace else None
        await self._apply(lambda: self._put_key(found.principal, key, forget))
        return key

    async def import_key(self, principal: str, key: str) -> None:
        """Take over a key that a person chose, as ``HOMEAGENT_API_KEY`` does; one imported before stops working.

        :raises Invalid: it is too short or has characters that cannot be sent in a header
        :raises NotFound: there is no such principal
        :raises Conflict: it is the key of another principal
        """
        if not _IMPORTABLE.fullmatch(key):
            raise Invalid(
                "the API key that was given cannot be used",
                field="key",
                hint=f"it needs {SHORTEST_KEY} to {_LONGEST_KEY} characters: ASCII letters, digits, signs, no spaces; "
                "`openssl rand -hex 24` makes a good one",
            )
        found = self._find(principal)
        holder = self._by_hash.get(_hash(key))
        if holder is not None and holder != found.principal:
            raise Conflict(
                "the API key that was given is the key of another principal", field="key", hint="choose another"
            )
        forget = "principal = :principal AND is_imported = 1"
        await self._apply(lambda: self._put_key(found.principal, key, forget, is_imported=True))

    def _find(self, principal: str) -> Principal:
        found = self._by_id.get(principal)
        if found is None:
            wanted = principal.casefold()
            found = next((each for each in self._by_id.values() if each.name.casefold() == wanted), None)
        if found is None:
            raise NotFound(
                f"there is no principal {principal!r}", field="principal", hint="`homeagent principal list` shows all"
            )
        return found

    async def _apply(self, change: Callable[[], Awaitable[T]]) -> T:
        async def locked() -> T:
            async with self._changing:
                result = await change()
                await self.load()
                return result

        # Shielded, so that a caller who gives up cannot part what is stored from what is in force.
        return await asyncio.shield(asyncio.create_task(locked()))

    async def _add(self, name: str) -> tuple[Principal, str]:
        if len(self._by_id) >= _MOST_PRINCIPALS:
            raise Conflict(f"there are {_MOST_PRINCIPALS} principals already", hint="remove some that are not used")
        if any(each.name.casefold() == name.casefold() for each in self._by_id.values()):
            raise Conflict(f"the name {name!r} is taken", field="name", hint="choose another name")
        principal, key, now = f"p{secrets.token_hex(8)}", _new_key(), self._now()

        def write(connection: apsw.Connection) -> None:
            connection.execute("INSERT INTO principals VALUES (?, ?, ?, ?)", (principal, name, MEMBER, now))
            connection.execute("INSERT INTO keys VALUES (?, ?, ?, 0)", (_hash(key), principal, now))

        await self._database.write(write)
        return Principal(principal, name, MEMBER, now, keys=1), key

    async def _remove(self, principal: str) -> None:
        await self._database.write(
            lambda connection: connection.execute("DELETE FROM principals WHERE principal = ?", (principal,)) and None
        )

    async def _put_key(self, principal: str, key: str, forget: str | None, *, is_imported: bool = False) -> None:
        """Store a key, and forget those of the principal that the condition ``forget`` names."""
        if not self.exists(principal):
            raise NotFound(f"the principal {principal} was removed meanwhile", field="principal")
        if forget is None and self._by_id[principal].keys >= _MOST_KEYS:
            raise Conflict(
                f"{self._by_id[principal].name} has {_MOST_KEYS} keys already",
                field="principal",
                hint="make one that replaces all others",
            )
        row = (_hash(key), principal, self._now(), int(is_imported))

        def write(connection: apsw.Connection) -> None:
            if forget is not None:
                connection.execute(f"DELETE FROM keys WHERE {forget}", {"principal": principal})
            connection.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?)", row)

        await self._database.write(write)


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _checked_name(name: str) -> str:
    clean = " ".join(unicodedata.normalize("NFC", name).split())
    if not _NAME.fullmatch(clean):
        raise Invalid(
            f"{name[:60]!r} cannot be a name",
            field="name",
            hint="use 1 to 40 letters, digits, spaces and . _ - @ ', beginning with a letter or digit",
        )
    return clean


def _read_all(connection: apsw.Connection) -> tuple[dict[str, Principal], dict[bytes, str]]:
    by_hash = dict(connection.execute("SELECT sha256, principal FROM keys"))
    rows = connection.execute(
        """SELECT p.principal, p.name, p.role, p.created, (SELECT count(*) FROM keys WHERE principal = p.principal)
        FROM principals AS p"""
    )
    return {row[0]: Principal(*row) for row in rows}, by_hash
