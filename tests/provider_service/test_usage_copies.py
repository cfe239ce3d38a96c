"""The provider's part of a backup."""

from __future__ import annotations

import sqlite3
from contextlib import aclosing, closing
from pathlib import Path

from homeagent_sdk.testing import LocalBus
from provider_service.service import ProviderService


async def test_the_ledger_is_copied_and_the_copy_vanishes_with_the_stream(tmp_path: Path) -> None:
    left = tmp_path / "backup" / "old"
    left.mkdir(parents=True)
    bus = LocalBus()
    service = ProviderService(bus.peer("provider"), tmp_path, environ={}, secrets={}, embedded_is_allowed=False)
    service.serve()
    await service.start()
    try:
        assert not left.exists()
        kernel = bus.peer("kernel", "kernel")
        async with aclosing(aiter(kernel.stream("provider.snapshot", {"backup": "b1"}))) as items:  # type: ignore[type-var]
            found = [await anext(items)]
            while found[-1]["type"] != "done":
                found.append(await anext(items))
            with closing(sqlite3.connect(tmp_path / "backup" / "b1" / "usage.db")) as copy:
                assert list(copy.execute("SELECT count(*) FROM calls")) == [(0,)]
        assert [row["name"] for row in found[-1]["databases"]] == ["usage.db"]
        assert not (tmp_path / "backup").exists()
    finally:
        await service.stop()
