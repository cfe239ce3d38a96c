"""What tests of several parts of the kernel begin with."""

import pytest

from kernel.config import config_database


@pytest.fixture
async def database(tmp_path):
    database = config_database(tmp_path / "config.db")
    await database.open()
    yield database
    await database.close()
