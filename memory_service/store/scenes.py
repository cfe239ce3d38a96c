"""Scenes on SQLite: situations that were declared or noticed, and what belongs to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

import apsw

from homeagent_sdk.errors import Invalid, NotFound
from memory_service.graph.model import Observed, Scene, SceneMember
from memory_service.graph.scene_keys import (
    EVOKE,
    FLOOR,
    FOUNDING,
    HALF_LIFE_S,
    JOIN,
    MAX_FEATURES,
    fingerprint,
    key_of,
    label_of,
    problem_with_key,
    similarity,
)
from memory_service.store import scene_rows
from memory_service.store.audiences import intern
from memory_service.store.database import Database
from memory_service.store.graph_rows import Sight

_ITEMS: Mapping[str, str] = {
    "event": "SELECT number, id, audience FROM event",
    "document": "SELECT number, id, audience FROM document",
    "relation": "SELECT number, id, audience FROM relation WHERE status = 'active'",
}
"""Where the members of a scene are found, by kind."""


class SqliteScenes:
    """Implements :class:`memory_service.store.graph_abc.SceneStore`.

    :param now: seconds since 1970; the same clock writes and reads the times in the database
    """

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._now = now

    async def declare(self, key: str, visible_to: Collection[str], shared: bool) -> Scene:
        """Make a scene, or see it again; see :class:`memory_service.store.graph_abc.SceneStore`."""
        _check(key)

        def declare(connection: apsw.Connection) -> Scene:
            number = scene_rows.declare(connection, intern(connection, visible_to, shared), key, self._now())
            return _scene(connection, number)

        return await self._database.write(declare)

    async def observe(self, features: Iterable[str], visible_to: Collection[str], shared: bool) -> Observed:
        """Take note of a situation; see :class:`memory_service.store.graph_abc.SceneStore`."""
        seen = fingerprint(features)
        return await self._database.write(
            lambda connection: _observe(connection, intern(connection, visible_to, shared), seen, self._now())
        )

    async def evoked(self, features: Iterable[str], audience: Collection[str]) -> tuple[tuple[Scene, float], ...]:
        """Return similar scenes; see :class:`memory_service.store.graph_abc.SceneStore`."""
        seen = fingerprint(features)

        def read(connection: apsw.Connection) -> tuple[tuple[Scene, float], ...]:
            found = _similar(connection, Sight.of(connection, audience), seen)
            return tuple((_scene(connection, number), score) for score, number in found if score >= EVOKE)

        return await self._database.read(read)

    async def join(
        self, key: str, kind: str, id: str, weight: float, visible_to: Collection[str], shared: bool
    ) -> None:
        """Make something a member; see :class:`memory_service.store.graph_abc.SceneStore`."""
        if not 0 < weight <= 1:
            raise Invalid("the weight must be above 0 and at most 1", field="weight")
        if kind not in _ITEMS:
            raise Invalid(f"the kind must be one of {', '.join(_ITEMS)}", field="kind")
        await self._database.write(
            lambda connection: _join(
                connection, intern(connection, visible_to, shared), key_of(key), (kind, id), weight, self._now()
            )
        )

    async def members(self, key: str, audience: Collection[str], limit: int = 50) -> tuple[SceneMember, ...]:
        """Return what belongs to a scene; see :class:`memory_service.store.graph_abc.SceneStore`."""
        return await self._database.read(
            lambda connection: _members(connection, Sight.of(connection, audience), key_of(key), limit)
        )

    async def decay(self) -> int:
        """Let what is not seen any more fade; see :class:`memory_service.store.graph_abc.SceneStore`."""
        return await self._database.write(lambda connection: _decay(connection, self._now()), bulk=True)


def _check(key: str) -> None:
    if problem := problem_with_key(key):
        raise Invalid(f"the key {key:.100} {problem}", field="key")


def _scene(connection: apsw.Connection, number: int) -> Scene:
    return Scene(*connection.execute("SELECT key, origin, strength FROM scene WHERE number = ?", (number,)).get)


def _observe(connection: apsw.Connection, audience: int, seen: Mapping[str, float], now: float) -> Observed:
    similar = _similar(connection, Sight((audience,)), seen)
    if similar and similar[0][0] >= JOIN:
        number = similar[0][1]
        connection.execute("UPDATE scene SET strength = strength + 1, updated = ? WHERE number = ?", (now, number))
        _take_on(connection, number, seen, now)
        return Observed(_scene(connection, number).key)
    label = label_of(seen)
    if label is None:
        return Observed(None)
    connection.execute(
        "INSERT INTO scene_evidence (audience, label, count, updated) VALUES (?1, digest_of(?2), 1, ?3)"
        " ON CONFLICT (audience, label) DO UPDATE SET count = count + 1, updated = ?3",
        (audience, label, now),
    )
    of_this = "audience = ? AND label = digest_of(?)"
    count = int(connection.execute(f"SELECT count FROM scene_evidence WHERE {of_this}", (audience, label)).get)
    if count < FOUNDING:
        return Observed(None)
    # Of this label only: what was seen of other situations still counts.
    connection.execute(f"DELETE FROM scene_evidence WHERE {of_this}", (audience, label))
    key = _free_key(connection, audience, f"auto:{label}")
    connection.execute(
        "INSERT INTO scene (audience, key, origin, strength, created, updated) VALUES (?1, ?2, 'emergent', 1, ?3, ?3)",
        (audience, key, now),
    )
    _take_on(connection, connection.last_insert_rowid(), seen, now)
    return Observed(key, is_founded=True)


def _similar(connection: apsw.Connection, sight: Sight, seen: Mapping[str, float]) -> list[tuple[float, int]]:
    """Return the emergent scenes with what is seen, the most similar first; declared ones would swallow every turn."""
    features: dict[int, dict[str, float]] = {}
    for number, name, weight in connection.execute(
        "SELECT f.scene, f.feature, f.weight FROM scene_feature f JOIN scene s ON s.number = f.scene"
        f" WHERE s.origin = 'emergent' {sight.on('s')}"
    ):
        features.setdefault(number, {})[name] = weight
    scores = ((similarity(seen, of), number) for number, of in features.items())
    return sorted((each for each in scores if each[0] > 0), key=lambda each: (-each[0], each[1]))


def _take_on(connection: apsw.Connection, scene: int, seen: Mapping[str, float], now: float) -> None:
    """Give a scene the features of a situation; beyond the most it may have, the weakest and oldest go."""
    for name, weight in seen.items():
        scene_rows.feature(connection, scene, name, weight, now)
    connection.execute(
        "DELETE FROM scene_feature WHERE scene = ?1 AND feature NOT IN (SELECT feature FROM scene_feature"
        " WHERE scene = ?1 ORDER BY weight DESC, updated DESC, feature LIMIT ?2)",
        (scene, MAX_FEATURES),
    )


def _free_key(connection: apsw.Connection, audience: int, key: str) -> str:
    taken = "SELECT 1 FROM scene WHERE audience = ? AND key = ?"
    free, count = key, 1
    while connection.execute(taken, (audience, free)).get is not None:
        count += 1
        free = f"{key}.{count}"
    return free


def _join(
    connection: apsw.Connection, audience: int, key: str, item: tuple[str, str], weight: float, now: float
) -> None:
    kind, id = item
    scene = connection.execute("SELECT number FROM scene WHERE audience = ? AND key = ?", (audience, key)).get
    if scene is None:
        raise NotFound(f"there is no scene {key}", field="key", hint="declare it first")
    number = connection.execute(f"SELECT number FROM ({_ITEMS[kind]}) WHERE id = ?", (id,)).get
    if number is None:
        raise NotFound(f"there is no {kind} {id}", field="id")
    scene_rows.join(connection, scene, kind, number, weight, now)


def _members(connection: apsw.Connection, sight: Sight, key: str, limit: int) -> tuple[SceneMember, ...]:
    items = " UNION ALL ".join(
        f"SELECT '{kind}' AS kind, number, id FROM ({question}) i WHERE TRUE {sight.on('i')}"
        f" AND number IN (SELECT item FROM chosen WHERE kind = '{kind}')"
        for kind, question in _ITEMS.items()
    )
    found = connection.execute(
        # All narrower keys begin with this one and a stroke, after which 0 is the next character.
        "WITH chosen AS (SELECT s.key, m.kind, m.item, m.weight FROM scene s JOIN scene_member m ON m.scene = s.number"
        f" WHERE (s.key = ?1 OR (s.key > ?1 || '/' AND s.key < ?1 || '0')) {sight.on('s')})"
        f" SELECT c.key, c.kind, i.id, max(c.weight) AS most FROM chosen c JOIN ({items}) i"
        " ON i.kind = c.kind AND i.number = c.item"
        " GROUP BY c.kind, i.id ORDER BY most DESC, c.kind, i.number DESC LIMIT ?2",
        (key, limit),
    )
    return tuple(SceneMember(*row) for row in found)


def _decay(connection: apsw.Connection, now: float) -> int:
    """Halve what was not touched for a half-life, at most once in each; returns how much was let go."""
    before, gone = now - HALF_LIFE_S, 0
    connection.execute(
        "UPDATE scene_member SET weight = weight / 2, updated = ?1 WHERE updated <= ?2"
        " AND (SELECT updated FROM scene WHERE number = scene_member.scene) <= ?2",
        (now, before),
    )
    # Not held up by its scene being seen: else one that is seen often would grow until nothing is like it any more.
    connection.execute(
        "UPDATE scene_feature SET weight = weight / 2, updated = ?1 WHERE updated <= ?2"
        " AND (SELECT origin FROM scene WHERE number = scene_feature.scene) = 'emergent'",
        (now, before),
    )
    for table in ("scene_member", "scene_feature"):
        connection.execute(f"DELETE FROM {table} WHERE weight < ?", (FLOOR,))
        gone += connection.changes()
    connection.execute("DELETE FROM scene_evidence WHERE updated <= ?", (before,))
    connection.execute(
        "DELETE FROM scene WHERE origin = 'emergent'"
        " AND NOT EXISTS (SELECT 1 FROM scene_member WHERE scene = scene.number)"
        " AND NOT EXISTS (SELECT 1 FROM scene_feature WHERE scene = scene.number)"
    )
    return gone
