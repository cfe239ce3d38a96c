"""A socket for the terminal: the owner of this machine talks to the agent without a key."""
