"""Scenes as rows: inside the caller's transaction, for those who write facts and scenes together."""

from __future__ import annotations

import apsw

from memory_service.graph.scene_keys import key_of, weight_of


def declare(connection: apsw.Connection, audience: int, text: str, now: float) -> int:
    """Return the number of a scene that somebody named, making it if it is new; each time makes it stronger.

    :raises ValueError: never for a key that :func:`~memory_service.graph.scene_keys.problem_with_key` lets pass
    """
    key = key_of(text)
    connection.execute(
        "INSERT INTO scene (audience, key, origin, strength, created, updated) VALUES (?1, ?2, 'declared', 1, ?3, ?3)"
        " ON CONFLICT (audience, key) DO UPDATE SET origin = 'declared', strength = strength + 1, updated = ?3",
        (audience, key, now),
    )
    number = int(connection.execute("SELECT number FROM scene WHERE audience = ? AND key = ?", (audience, key)).get)
    # Its own layers only: with the features of a turn it would swallow all later ones.
    for layer in key.split("/"):
        feature(connection, number, layer, weight_of(layer), now)
    return number


def join(connection: apsw.Connection, scene: int, kind: str, item: int, weight: float, now: float) -> None:
    """Make something a member of a scene; of two weights the greater stays."""
    connection.execute(
        "INSERT INTO scene_member (scene, kind, item, weight, updated) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (scene, kind, item)"
        " DO UPDATE SET weight = max(weight, excluded.weight), updated = excluded.updated",
        (scene, kind, item, weight, now),
    )


def pass_on(connection: apsw.Connection, kind: str, item: int, other: int) -> None:
    """Let something be a member of all scenes of which another is one, with the same weight."""
    connection.execute(
        "INSERT INTO scene_member (scene, kind, item, weight, updated)"
        " SELECT scene, kind, ?, weight, updated FROM scene_member WHERE kind = ? AND item = ?"
        " ON CONFLICT (scene, kind, item) DO UPDATE SET weight = max(weight, excluded.weight)",
        (other, kind, item),
    )


def feature(connection: apsw.Connection, scene: int, name: str, weight: float, now: float) -> None:
    """Say that a scene has a feature, or has it still."""
    connection.execute(
        "INSERT INTO scene_feature (scene, feature, weight, updated) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (scene, feature) DO UPDATE SET weight = excluded.weight, updated = excluded.updated",
        (scene, name, weight, now),
    )
