"""Wants to be echo, which is taken."""

from homeagent_sdk.plugin import Plugin

plugin = Plugin()
