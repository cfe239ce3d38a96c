"""What ``kernel.status`` says, as this command reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SERVICES = ("kernel", "memory_service", "provider_service", "plugin_host")
"""The names of the services, as people and processes call them."""

PEER_OF_SERVICE = {
    "kernel": "kernel",
    "memory_service": "memory",
    "provider_service": "provider",
    "plugin_host": "host",
}
"""The names by which the services are known on the bus."""

_SERVICE_OF_PEER = {peer: service for service, peer in PEER_OF_SERVICE.items()}
_SETTLED = frozenset({"running", "disabled"})


@dataclass(frozen=True, slots=True)
class Part:
    """A service or plugin: its state, and a sentence about it where there is one."""

    name: str
    state: str
    detail: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to come: it runs, or somebody switched it off."""
        return self.state in _SETTLED


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the whole system at one moment."""

    services: Mapping[str, Part]
    plugins: Mapping[str, Part]
    raw: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_status(cls, status: Mapping[str, Any]) -> Overview:
        """Read the reply of ``kernel.status``; a kernel that answers runs."""
        services = {"kernel": Part("kernel", "running")}
        for part in _parts(status.get("services") or []):
            name = _SERVICE_OF_PEER.get(part.name, part.name)
            services[name] = Part(name, part.state, part.detail)
        for name in SERVICES:
            services.setdefault(name, Part(name, "starting"))
        return cls(services, {part.name: part for part in _parts(status.get("plugins") or [])}, status)

    @property
    def is_complete(self) -> bool:
        """Whether every service and every plugin is up."""
        return self.serves and not self.waiting_for

    @property
    def serves(self) -> bool:
        """Whether it can be used: all services and the web interface are up."""
        webui = self.plugins.get("webui")
        return all(part.state == "running" for part in self.services.values()) and (
            webui is not None and webui.state == "running"
        )

    @property
    def waiting_for(self) -> list[Part]:
        """What is not up, services first."""
        return [part for part in (*self.services.values(), *self.plugins.values()) if not part.is_settled]


def _parts(rows: Iterable[Mapping[str, Any]]) -> list[Part]:
    return [Part(str(row["name"]), str(row["state"]), str(row.get("detail") or "")) for row in rows]
