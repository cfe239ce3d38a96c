"""The bus hub: admission, routing, rights, the event ring."""

from kernel.bus.admission import read_keys
from kernel.bus.hub import Hub, tune_interpreter

__all__ = ["Hub", "read_keys", "tune_interpreter"]
