"""A kernel for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.kernel.world import World


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World(tmp_path).start()
    yield made
    await made.stop()
