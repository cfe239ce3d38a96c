"""Logs: JSON lines in ``log/<service>.log``, readable ones on a terminal, and never a secret in either."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

# structlog loads rich where it is installed, for a console renderer that is not used here: 5 MB and a tenth of a second
# in every process.
_without_rich = "rich" not in sys.modules and "structlog" not in sys.modules
if _without_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _without_rich:
        del sys.modules["rich"]

LOG_FILE_BYTES = 10 * 1024 * 1024
LOG_FILES = 3
"""How many files of a service are kept, the current one included."""

_QUEUE_LINES = 10_000
_FLUSH_S = 2.0
_HIDDEN = "***"
_MAX_DEPTH = 6
_SECRET_KEY = re.compile(
    r"(api_?key|secret|passw(or)?d|authorization|cookie|credential|private_?key|bearer)|(^|[_.-])(token|proof)$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"\bha-[A-Za-z0-9_-]{43}\b|\bsk-[A-Za-z0-9_-]{8,}|(?<=bearer )\S+", re.IGNORECASE)
_LEVELS = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40, "critical": 50}
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

_known_secrets: set[str] = set()


def get_logger(name: str | None = None) -> structlog.typing.FilteringBoundLogger:
    """Return a logger whose methods take an event and fields: ``log.info("turn finished", seconds=1.2)``.

    The same as structlog's own, but for the memory: modules that take it from here load no console renderer.

    :param name: of the part that logs, field ``logger`` of each line
    """
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(*([name] if name else []))
    return logger


def hide(secret: str) -> None:
    """Mask this very text wherever it turns up in the log of this process, whatever it looks like."""
    if len(secret) >= 6:
        _known_secrets.add(secret)


def mask(value: Any, depth: int = 0) -> Any:
    """Return ``value`` with everything that looks like a secret replaced, inside mappings and lists too."""
    if isinstance(value, str):
        for secret in _known_secrets:
            if secret in value:
                value = value.replace(secret, _HIDDEN)
        return _SECRET_TEXT.sub(_HIDDEN, value)
    if depth >= _MAX_DEPTH or isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {key: _mask_field(str(key), inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [mask(inner, depth + 1) for inner in value]
    return mask(repr(value), depth + 1)


def _mask_field(key: str, value: Any, depth: int) -> Any:
    if value and isinstance(value, str | bytes) and _SECRET_KEY.search(key):
        return _HIDDEN
    return mask(value, depth)


def configure(service: str, data_dir: Path, level: str | None = None, *, show: bool | None = None) -> None:
    """Send the log of this process (structlog's and the standard library's) to ``<data_dir>/log/<service>.log``.

    The file turns over at 10 MB; three are kept. Lines are written by a thread of their own, which starts with the
    first line, so that no event loop waits for a disk; where 10,000 lines wait already, further ones are dropped and
    counted. On a terminal the lines go to stderr too, for people.

    :param service: the name of the process, field ``service`` of each line
    :param data_dir: the data directory; its folder ``log`` is made if missing
    :param level: debug, info, warn or error; default ``HOMEAGENT_LOG_LEVEL``, else info
    :param show: whether the lines go to stderr too; default: if that is a terminal or ``HOMEAGENT_LOG_SHOW`` is set
    """
    folder = Path(data_dir) / "log"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    shows = sys.stderr.isatty() or bool(os.environ.get("HOMEAGENT_LOG_SHOW")) if show is None else show
    _install(_Sink(service, _LogFile(folder / f"{service}.log"), shows), level)


def is_configured() -> bool:
    """Return whether this process has said where its log goes."""
    return structlog.is_configured()


def be_quiet() -> None:
    """Write no log at all: for a command that tells its user itself what there is to tell."""
    _install(_Sink("", None, False), "critical")


def _install(sink: _Sink, level: str | None) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _mask_event,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        logger_factory=lambda *name: _Logger(sink, name[0] if name else None),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge(sink))
    root.setLevel(max(_number(level), logging.INFO))
    logging.captureWarnings(True)


def set_level(level: str) -> None:
    """Change the level of a process that has called :func:`configure`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_number(level)))
    logging.getLogger().setLevel(max(_number(level), logging.INFO))


def _number(level: str | None) -> int:
    return _LEVELS.get((level or os.environ.get("HOMEAGENT_LOG_LEVEL") or "info").lower(), logging.INFO)


def _mask_event(_: Any, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
    return (), {"fields": {key: _mask_field(key, value, 1) for key, value in event.items()}}


class _Sink:
    """Where finished events go: the file, and stderr if a person sits before it."""

    def __init__(self, service: str, file: _LogFile | None, person_reads: bool) -> None:
        self._service = service
        self._file = file
        self._person_reads = person_reads

    def write(self, fields: dict[str, Any]) -> None:
        level = str(fields.pop("level", "info"))
        event = str(fields.pop("event", ""))
        now = time.time()
        line = {"time": round(now, 6), "level": level, "service": self._service, "event": event, **fields}
        if self._file is not None:
            self._file.write(json.dumps(line, ensure_ascii=False, default=repr))
        if self._person_reads:
            clock = time.strftime("%H:%M:%S", time.localtime(now))
            rest = " ".join(f"{key}={value}" for key, value in fields.items())
            sys.stderr.write(f"{clock} {level:<8}{self._service:<17}{event} {rest}".rstrip() + "\n")


class _Logger:
    """What structlog calls with a finished event; ``name`` is that of the part that logs."""

    def __init__(self, sink: _Sink, name: str | None) -> None:
        self._sink = sink
        self._name = name

    def _log(self, *, fields: dict[str, Any]) -> None:
        if self._name is not None:
            fields.setdefault("logger", self._name)
        self._sink.write(fields)

    debug = info = warning = warn = error = critical = fatal = exception = msg = log = _log


class _Bridge(logging.Handler):
    """Hands what the standard library logs to the same sink."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"event": record.getMessage(), "level": record.levelname.lower()}
        fields["logger"] = record.name
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
        fields.update(extra)
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        self._sink.write(mask(fields))


class _LogFile:
    """Writes lines from a thread of its own, and turns the file over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUE_LINES)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dropped = 0
        os.register_at_fork(after_in_child=self._forget_thread)
        atexit.register(self.flush)

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        """Wait until what was logged so far is written, two seconds at most."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._lines.put(None, timeout=_FLUSH_S)
        except queue.Full:
            return
        thread.join(_FLUSH_S)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
                self._thread.start()

    def _forget_thread(self) -> None:
        self._lines = queue.Queue(_QUEUE_LINES)
        self._lock = threading.Lock()
        self._thread = None

    def _write_lines(self) -> None:
        lines = self._lines
        while (line := lines.get()) is not None:
            batch = [line]
            stopping = False
            while len(batch) < 200:
                try:
                    more = lines.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    stopping = True
                    break
                batch.append(more)
            self._append(batch)
            if stopping:
                return

    def _append(self, batch: list[str]) -> None:
        if self._dropped:
            batch.append(json.dumps({"time": time.time(), "level": "warning", "event": f"{self._dropped} lines lost"}))
            self._dropped = 0
        try:
            self._turn_over_if_full()
            with open(self._path, "a", encoding="utf-8", errors="replace", opener=_private) as file:
                file.write("\n".join(batch) + "\n")
        except OSError as error:
            # A full disk must not stop a service; the loss is counted and told once there is room again.
            self._dropped += len(batch)
            sys.stderr.write(f"cannot write {self._path}: {error.strerror}\n")

    def _turn_over_if_full(self) -> None:
        try:
            if self._path.stat().st_size < LOG_FILE_BYTES:
                return
        except FileNotFoundError:
            return
        for number in range(LOG_FILES - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
