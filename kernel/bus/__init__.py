"""The bus hub: admission, routing, rights, the event ring."""

from kernel.bus.admission import read_keys
from kernel.bus.hub import Hub
from kernel.bus.kernel_peer import KernelPeer

__all__ = ["Hub", "KernelPeer", "read_keys"]
