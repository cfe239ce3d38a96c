"""Wants to be the memory service."""

from homeagent_sdk.plugin import Plugin

plugin = Plugin()
