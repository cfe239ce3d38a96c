"""The test kit: a bus in memory and a fake kernel, for tests that need no process."""

from homeagent_sdk.testing.fake_kernel import FakeKernel, answers, outcome
from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer

__all__ = ["FakeKernel", "LocalBus", "LocalPeer", "answers", "outcome"]
