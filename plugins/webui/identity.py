"""Who is asking: keys checked by the kernel and remembered for a moment, and a brake on guessing."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from homeagent_sdk.errors import Denied
from homeagent_sdk.plugin import Principal

from .errors import Refused

REMEMBERED_S = 30.0
"""How long a key that the kernel accepted is taken without asking again; so long may a removed key still work."""

REFUSED_S = 10.0
"""How long a key that the kernel refused is refused again without asking, and without counting as another guess."""

LONGEST_KEY = 512
_REMEMBERED_KEYS = 256
_ATTEMPTS = 10
_ATTEMPTS_WINDOW_S = 60.0
_REMEMBERED_ADDRESSES = 1024

Clock = Callable[[], float]


class AttemptLimiter:
    """Counts failed logins by address: ten within a minute, then none until the minute is over.

    The table holds 1,024 addresses; the one that failed longest ago is forgotten first.
    """

    def __init__(self, monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, address: str) -> None:
        """Refuse an address that failed too often.

        :raises Refused: 429, with ``Retry-After``
        """
        since, count = self._failures.get(address, (0.0, 0))
        left_s = since + _ATTEMPTS_WINDOW_S - self._monotonic()
        if count >= _ATTEMPTS and left_s > 0:
            seconds = int(left_s) + 1
            raise Refused("too_many_attempts", headers={"Retry-After": str(seconds)}, seconds=seconds)

    def failed(self, address: str) -> None:
        """Count one more failure."""
        now = self._monotonic()
        since, count = self._failures.pop(address, (now, 0))
        if now - since >= _ATTEMPTS_WINDOW_S:
            since, count = now, 0
        self._failures[address] = (since, count + 1)
        if len(self._failures) > _REMEMBERED_ADDRESSES:
            self._failures.popitem(last=False)


class KeyRing:
    """Tells whose key it is.

    What the kernel said of a key is remembered for :data:`REMEMBERED_S`, under the key's hash, so that neither the key
    lies in memory nor the time of a look-up tells anything about it.
    """

    def __init__(
        self,
        authenticate: Callable[[str], Awaitable[Principal]],
        limiter: AttemptLimiter,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._authenticate = authenticate
        self._limiter = limiter
        self._monotonic = monotonic
        self._remembered: OrderedDict[bytes, tuple[float, Principal | None]] = OrderedDict()
        """Digest of a key → until when, and whose it is; None: nobody's."""

    async def principal(self, key: str, address: str) -> Principal:
        """Return the principal of ``key``.

        :param address: where the request came from; failures are counted against it
        :raises Refused: the key is nobody's, or the address failed too often
        """
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        until, principal = self._remembered.get(digest, (0.0, None))
        if self._monotonic() >= until:
            self._limiter.check(address)
            principal = await self._ask(key)
            if principal is None:
                self._limiter.failed(address)
            self._remember(digest, principal)
        if principal is None:
            raise Refused("wrong_key", headers={"WWW-Authenticate": "Bearer"})
        return principal

    async def _ask(self, key: str) -> Principal | None:
        if len(key) > LONGEST_KEY or not key.isascii():
            return None
        try:
            return await self._authenticate(key)
        except Denied:
            return None

    def _remember(self, digest: bytes, principal: Principal | None) -> None:
        for_s = REFUSED_S if principal is None else REMEMBERED_S
        self._remembered[digest] = (self._monotonic() + for_s, principal)
        self._remembered.move_to_end(digest)
        if len(self._remembered) > _REMEMBERED_KEYS:
            self._remembered.popitem(last=False)


def bearer_key(authorization: str | None) -> str:
    """Return the key in an ``Authorization`` header.

    :raises Refused: there is none
    """
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Refused("no_key", headers={"WWW-Authenticate": "Bearer"})
    return key.strip()
