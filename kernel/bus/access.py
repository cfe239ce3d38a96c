"""Who may call what. What the table does not list is refused: the hub fails closed.

A caller is a tier (kernel, service, operator, builtin, external) or, where only one peer may, ``=name``; an external
plugin has no right by its name, since whoever wrote it chose that.
"""

from __future__ import annotations

from typing import Final

KERNEL, SERVICE, OPERATOR, BUILTIN, EXTERNAL = "kernel", "service", "operator", "builtin", "external"
PLUGIN_TIERS: Final = (BUILTIN, EXTERNAL)
TIERS: Final = (KERNEL, SERVICE, OPERATOR, *PLUGIN_TIERS)

SERVICES: Final = ("kernel", "memory", "provider", "host")
"""Peers that are expected to be there: a call to one that is restarting waits within its deadline."""
RESERVED: Final = frozenset({*SERVICES, "hub", "gateway", "operator", "ring", "core", "plugin"})
"""Names that no plugin may have."""

METHODS: Final[dict[str, frozenset[str]]] = {
    "hub.publish": frozenset({KERNEL, SERVICE, BUILTIN}),
    "hub.replay": frozenset({KERNEL, SERVICE, OPERATOR, BUILTIN}),
    "hub.positions": frozenset({KERNEL, SERVICE, OPERATOR, BUILTIN}),
    "hub.peers": frozenset({KERNEL, SERVICE, OPERATOR}),
    "hub.stats": frozenset({KERNEL, SERVICE, OPERATOR}),
    "hub.lag": frozenset({KERNEL, OPERATOR}),
    "hub.mint_token": frozenset({"=host"}),
    "kernel.define_settings": frozenset({BUILTIN, EXTERNAL}),
    "kernel.register": frozenset({BUILTIN, EXTERNAL, "=memory"}),
    "kernel.authenticate": frozenset({BUILTIN}),
    "kernel.submit": frozenset({BUILTIN, EXTERNAL}),
    "kernel.follow": frozenset({BUILTIN, EXTERNAL}),
    "kernel.stop": frozenset({BUILTIN, OPERATOR}),
    "kernel.history": frozenset({BUILTIN, OPERATOR}),
    "kernel.conversations": frozenset({BUILTIN, OPERATOR}),
    "kernel.status": frozenset({SERVICE, OPERATOR, BUILTIN}),
    "kernel.config_get": frozenset({SERVICE, OPERATOR}),
    "kernel.config_list": frozenset({SERVICE, OPERATOR}),
    "kernel.config_set": frozenset({OPERATOR}),
    "kernel.config_unset": frozenset({OPERATOR}),
    "kernel.persona_get": frozenset({OPERATOR}),
    "kernel.persona_set": frozenset({OPERATOR}),
    "kernel.persona_reset": frozenset({OPERATOR}),
    "kernel.principal_add": frozenset({OPERATOR}),
    "kernel.principal_list": frozenset({OPERATOR}),
    "kernel.principal_remove": frozenset({OPERATOR}),
    "kernel.key_new": frozenset({OPERATOR}),
    "kernel.turn_ids": frozenset({OPERATOR}),
    "kernel.forget": frozenset({"=memory"}),
    "kernel.backup": frozenset({OPERATOR}),
    "memory.append": frozenset({KERNEL}),
    "memory.recall": frozenset({KERNEL}),
    "memory.window": frozenset({KERNEL}),
    "memory.tool": frozenset({KERNEL}),
    "memory.search": frozenset({KERNEL, OPERATOR}),
    "memory.import": frozenset({OPERATOR}),
    "memory.show": frozenset({OPERATOR}),
    "memory.known": frozenset({KERNEL, OPERATOR}),
    "memory.forget": frozenset({OPERATOR}),
    "memory.verify": frozenset({OPERATOR}),
    "memory.repair": frozenset({OPERATOR}),
    "memory.stats": frozenset({KERNEL, OPERATOR}),
    "memory.snapshot": frozenset({KERNEL}),
    "memory.health": frozenset({KERNEL, OPERATOR}),
    "provider.chat": frozenset({KERNEL}),
    "provider.sources": frozenset({KERNEL, OPERATOR, "=webui"}),
    "provider.set_key": frozenset({OPERATOR}),
    "provider.usage": frozenset({KERNEL, OPERATOR}),
    "provider.snapshot": frozenset({KERNEL}),
    "provider.health": frozenset({KERNEL, OPERATOR}),
    "host.plugins": frozenset({KERNEL, OPERATOR}),
    "host.restart": frozenset({KERNEL, OPERATOR}),
    "host.reload": frozenset({KERNEL, OPERATOR}),
    "host.enable": frozenset({KERNEL, OPERATOR}),
    "host.disable": frozenset({KERNEL, OPERATOR}),
    "host.health": frozenset({KERNEL, OPERATOR}),
}
PLUGIN_VERBS: Final[dict[str, frozenset[str]]] = {
    "tool": frozenset({KERNEL}),
    "stage": frozenset({KERNEL}),
    "output": frozenset({KERNEL}),
}
"""What may be called of a plugin, by verb."""


def is_allowed(name: str, tier: str, method: str) -> bool:
    """Tell whether the peer ``name`` of ``tier`` may call ``method``."""
    target, _, verb = method.partition(".")
    callers = METHODS.get(method)
    if callers is None and target not in RESERVED:
        callers = PLUGIN_VERBS.get(verb)
    if callers is None:
        return False
    return tier in callers or (tier != EXTERNAL and f"={name}" in callers)
