"""The plugin's own secret, and what is sealed with it: login cookies, and tickets to follow a turn.

A cookie carries the key that was used to log in, so that each request can be checked against the kernel and a removed
key ends the login. It is covered with a keystream (SHAKE-256 over the secret and a nonce that is used once) and
authenticated with HMAC-SHA256, so that the cookie alone gives no key away and none can be made without the secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import struct
from pathlib import Path

COOKIE_DAYS = 30
COOKIE_S = COOKIE_DAYS * 24 * 3600

_SECRET_BYTES = 32
_NONCE_BYTES = 16
_TAG_BYTES = 32
_TICKET_TAG_BYTES = 16


def load_secret(path: Path) -> bytes:
    """Return the secret kept in ``path``, made at first use and readable by its owner only. Blocks: call in a thread.

    A file that is damaged is replaced; all it costs is that everyone has to log in again.

    :raises OSError: it can neither be read nor written
    """
    try:
        secret = path.read_bytes()
        if len(secret) == _SECRET_BYTES:
            path.chmod(0o600)
            return secret
    except FileNotFoundError:
        pass
    secret = secrets.token_bytes(_SECRET_BYTES)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(descriptor)
    partial.replace(path)
    return secret


class Seal:
    """Seals cookies and tickets with one secret, each use with a key of its own."""

    def __init__(self, secret: bytes) -> None:
        self._cover = hashlib.sha256(secret + b"cookie cover").digest()
        self._cookie = hashlib.sha256(secret + b"cookie tag").digest()
        self._ticket = hashlib.sha256(secret + b"turn ticket").digest()

    def cookie(self, key: str, now: float) -> str:
        """Return the value of a login cookie for ``key``, good for 30 days from ``now`` (wall clock)."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        body = struct.pack(">Q", int(now) + COOKIE_S) + nonce + self._covered(nonce, key.encode())
        tag = hmac.digest(self._cookie, body, "sha256")
        return base64.urlsafe_b64encode(body + tag).decode().rstrip("=")

    def key_of(self, cookie: str, now: float) -> str | None:
        """Return the key in a login cookie, or None if it is forged, damaged or too old."""
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
        except (binascii.Error, ValueError):
            return None
        body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        if not hmac.compare_digest(hmac.digest(self._cookie, body, "sha256"), tag):
            return None
        if struct.unpack(">Q", body[:8])[0] < now:
            return None
        nonce, covered = body[8 : 8 + _NONCE_BYTES], body[8 + _NONCE_BYTES :]
        return self._covered(nonce, covered).decode()

    def ticket(self, principal: str, turn_id: str) -> str:
        """Return a text with which ``principal``, and nobody else, may follow a turn."""
        return f"{turn_id}.{self._ticket_tag(principal, turn_id)}"

    def turn_of(self, principal: str, ticket: str) -> str | None:
        """Return the turn that a ticket of ``principal`` stands for, or None if it is not theirs."""
        turn_id, _, tag = ticket.rpartition(".")
        expected = self._ticket_tag(principal, turn_id)
        return turn_id if hmac.compare_digest(expected.encode(), tag.encode("utf-8", "replace")) else None

    def _covered(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._cover + nonce).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))

    def _ticket_tag(self, principal: str, turn_id: str) -> str:
        message = f"{len(principal)}:{principal}{turn_id}".encode("utf-8", "replace")
        return hmac.digest(self._ticket, message, "sha256")[:_TICKET_TAG_BYTES].hex()
