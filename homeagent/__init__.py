"""The ``homeagent`` command: the launcher, the client commands and the doctor."""

__version__ = "0.1.0"
