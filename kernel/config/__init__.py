"""The configuration: which settings there are, their values, and the database that keeps them."""

from kernel.config.definitions import Definition
from kernel.config.registry import ConfigRegistry, parse_overrides
from kernel.config.schema import config_database

__all__ = ["ConfigRegistry", "Definition", "config_database", "parse_overrides"]
