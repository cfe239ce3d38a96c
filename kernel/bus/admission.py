"""Who may take part: names, keys, one-time tokens, and the challenge that a peer answers with them."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from homeagent_sdk.bus import prove, wire
from homeagent_sdk.errors import Conflict, Denied, Invalid, Overloaded
from kernel.bus import access

TOKEN_LIFE_S: Final = 60.0
CHALLENGE_LIFE_S: Final = 10.0
NONCE_BYTES: Final = 40
MAX_TOKENS: Final = 1024
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer that proved who it is."""

    name: str
    tier: str
    generation: int


@dataclass(frozen=True, slots=True)
class _Token:
    secret: str
    tier: str
    expires: float
    pid: int


def read_keys(directory: Path) -> dict[str, str]:
    """Read the key files of the services and the operator that are there; a service without one stays out."""
    keys = {}
    for name in (*access.SERVICES, access.OPERATOR):
        path = directory / f"{name}.key"
        try:
            key = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if len(key) >= 32:
            keys[name] = key
    return keys


class Admission:
    """Checks hellos. It keeps nothing of those who only knock: a challenge carries its own proof of origin.

    :param keys: the shared secret of each service and of ``operator``
    :param clock: seconds, monotonic
    """

    def __init__(self, keys: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = dict(keys)
        self._clock = clock
        self._tokens: dict[tuple[str, int], _Token] = {}
        self._nonce_key = secrets.token_bytes(32)

    def mint(self, name: str, generation: int, tier: str, pid: int = 0) -> str:
        """Make a one-time token for a plugin process; an older one of the same generation is void.

        :raises Invalid: the name is none, or reserved
        :raises Overloaded: too many tokens wait to be used
        """
        if not _NAME.fullmatch(name) or name in access.RESERVED or name.startswith("operator"):
            raise Invalid(f"{name[:80]!r} cannot be the name of a plugin", field="name", hint="choose another name")
        if tier not in access.PLUGIN_TIERS:
            raise Invalid(f"{tier[:80]!r} is not a tier of plugins", field="tier")
        if not 0 <= generation < 2**31:
            raise Invalid(f"{generation} is not a generation", field="generation", hint="count the starts from 1")
        now = self._clock()
        self._tokens = {key: token for key, token in self._tokens.items() if token.expires > now}
        if len(self._tokens) >= MAX_TOKENS:
            raise Overloaded(f"{MAX_TOKENS} tokens wait to be used")
        secret = secrets.token_hex(32)
        self._tokens[name, generation] = _Token(secret, tier, now + TOKEN_LIFE_S, pid)
        return secret

    def hello(self, identity: bytes, body: Any, pid: int) -> bytes | Admitted:
        """Handle a hello: the first one gets a nonce to answer, the one with the answer is admitted.

        :param pid: the sender's process id as the operating system tells it; 0 where it does not
        :raises Denied: for every reason, in words that do not say which half of a secret was right
        """
        if not isinstance(body, dict):
            raise Denied("a hello without a body")
        name, generation = body.get("name"), body.get("generation", 0)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or type(generation) is not int:
            raise Denied("a hello needs a name in lower case and a generation", field="name")
        protocols = body.get("protocols")
        if not isinstance(protocols, list) or not any(p in wire.ACCEPTED for p in protocols if type(p) is int):
            raise Denied(
                f"{name} speaks protocols {protocols!r}"[:120] + f", this kernel {sorted(wire.ACCEPTED)}",
                field="protocols",
                hint="install the homeagent-sdk that belongs to this release",
            )
        if body.get("proof") is None:
            self._secret_of(name, generation)
            return self._nonce(identity, name, generation, int(self._clock() * 1000))
        return self._check(identity, name, generation, body, pid)

    def _nonce(self, identity: bytes, name: str, generation: int, made_ms: int) -> bytes:
        """Make the nonce for one connection, peer and moment; only this process can, and it can do so again."""
        stamp = made_ms.to_bytes(8, "big")
        bound = b"|".join((stamp, identity.hex().encode(), name.encode(), str(generation).encode()))
        return stamp + hmac.new(self._nonce_key, bound, hashlib.sha256).digest()

    def _check(self, identity: bytes, name: str, generation: int, body: dict[Any, Any], pid: int) -> Admitted:
        nonce, proof = body.get("nonce"), body.get("proof")
        if not isinstance(nonce, bytes) or len(nonce) != NONCE_BYTES:
            raise Denied(f"{name} answered a challenge that it was not given", hint="say hello without a proof first")
        made_ms = int.from_bytes(nonce[:8], "big")
        age_s = self._clock() - made_ms / 1000
        is_ours = hmac.compare_digest(nonce, self._nonce(identity, name, generation, made_ms))
        if not is_ours or age_s > CHALLENGE_LIFE_S:
            raise Denied(f"{name} answered a challenge that it was not given", hint="say hello without a proof first")
        secret, tier, expected_pid = self._secret_of(name, generation)
        if not isinstance(proof, bytes) or not hmac.compare_digest(proof, prove(secret, name, nonce)):
            raise Denied(f"{name} could not prove who it is", hint="its key or token is wrong")
        if expected_pid and pid and expected_pid != pid:
            raise Denied(f"the token of {name} was given to another process")
        is_plugin = self._tokens.pop((name, generation), None) is not None
        return Admitted(name, tier, generation if is_plugin else 0)

    def _secret_of(self, name: str, generation: int) -> tuple[str, str, int]:
        role = access.OPERATOR if name.startswith("operator-") else name
        if role in access.RESERVED:
            if role not in self._keys:
                raise Denied(
                    f"the kernel has no key for {name}", hint="its key file was not there when the kernel started"
                )
            tier = role if role in (access.KERNEL, access.OPERATOR) else access.SERVICE
            return self._keys[role], tier, 0
        token = self._tokens.get((name, generation))
        if token is None or token.expires < self._clock():
            raise Denied(f"no token was minted for {name}", hint="plugins are started by the plugin host")
        return token.secret, token.tier, token.pid


def refuse_older(name: str, generation: int, known: int) -> None:
    """Refuse a plugin process that is older than the one in place.

    :raises Conflict: always, if it is older
    """
    if generation < known:
        raise Conflict(f"{name} generation {generation} is older than {known}, which is running")
