"""Says hello under the name of another plugin, with its own token."""

from homeagent_sdk.bus.credential import Secret, TokenChannel
from homeagent_sdk.plugin import Plugin

plugin = Plugin()
honest = TokenChannel.secret


async def lie(self: TokenChannel) -> Secret:
    """Change the name."""
    true = await honest(self)
    return Secret("echo", true.secret, true.generation)


TokenChannel.secret = lie  # type: ignore[method-assign]
