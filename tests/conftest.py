"""Fixtures for tests of the whole: the scripted far end and a running HomeAgent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from tests.fakes.openai_server import FakeOpenAI
from tests.home import API_KEY, Home


@pytest.fixture(autouse=True)
def _own_log_configuration() -> Iterator[None]:
    """Undo what a test made of structlog's configuration: it is global, and other tests read what is logged."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


@contextmanager
def far_end_in_thread() -> Iterator[FakeOpenAI]:
    """Run the scripted OpenAI-compatible server in a thread, so that a test may block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="far-end")
    thread.start()
    fake = FakeOpenAI()
    try:
        asyncio.run_coroutine_threadsafe(fake.__aenter__(), loop).result(10)
        yield fake
        asyncio.run_coroutine_threadsafe(fake.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def far_end() -> Iterator[FakeOpenAI]:
    """The scripted far end."""
    with far_end_in_thread() as fake:
        yield fake


@pytest.fixture
def home(tmp_path: Path, far_end: FakeOpenAI) -> Iterator[Home]:
    """A HomeAgent whose only source is the far end. It is not started: the test says ``with home:``."""
    running = Home(tmp_path, far_end.url)
    yield running
    if running.process is not None:
        running.stop()


@pytest.fixture
def api_key() -> str:
    """The owner's key."""
    return API_KEY
