"""Locks a process into its own folders with Landlock, so that a mistake or an intruder in it reaches no further.

Needs no privilege and cannot be undone: what is given up here is given up by this process and all its children. Where
the system lacks Landlock (before Linux 5.13, or switched off), nothing happens and :class:`Confinement` says so.

Landlock does not restrict UDP, nor connecting to a socket file; and for root with ``CAP_PERFMON`` Linux shows the
environment of other processes in ``/proc`` in spite of it. Secrets therefore never lie in an environment.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import stat
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = 0b1_1111_1111 << 4
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_ABI_REFER, _ABI_TRUNCATE, _ABI_TCP, _ABI_IOCTL, _ABI_SCOPES = 2, 3, 4, 5, 6

_SYSTEM_FOLDERS = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/etc/ssl",
    "/etc/pki",
    "/proc",
    "/sys/fs/cgroup",
)
_SYSTEM_FILES = (
    *("/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/localtime", "/etc/timezone", "/etc/locale.alias"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/nsswitch.conf", "/etc/host.conf"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols"),
    *("/etc/passwd", "/etc/group", "/etc/mime.types", "/etc/os-release"),
    *("/run/systemd/resolve", "/sys/devices/system/cpu", "/dev/random", "/dev/urandom"),
)
_ALWAYS_WRITABLE = ("/dev/null", "/dev/zero")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What holds for this process from now on.

    :ivar abi: version of Landlock that the system has, 0 if none
    :ivar files: the file system beyond the given folders is out of reach
    :ivar tcp: TCP can neither be bound nor connected (other sockets are not restricted by Landlock)
    :ivar scoped: processes outside can neither be signalled nor reached by abstract sockets
    :ivar missing: paths that were asked for and are not there, hence out of reach even if they appear later
    :ivar reason: why something that was asked for is not in force, for ``doctor`` and the log; empty if all is
    """

    abi: int
    files: bool
    tcp: bool
    scoped: bool
    missing: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether everything that was asked for is in force."""
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Return it as a mapping, for a log line or a status answer."""
        return asdict(self)


def landlock_abi() -> int:
    """Return the version of Landlock that this system offers, 0 if it offers none."""
    version = _syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return max(version, 0)


def confine(
    read_write: Sequence[Path], read_only: Sequence[Path], *, tcp: bool, listable: Sequence[Path] = ()
) -> Confinement:
    """Give up, for this process and its children, all files but those given, and more where the system can.

    Call it on the main thread after the imports and before any other thread exists: Landlock binds the thread that
    calls it and what that thread starts, so threads that exist already would stay free. What is open stays open.
    Never raises: what the system lacks is reported.

    :param read_write: folders and files that may be read, written, made and removed
    :param read_only: folders and files that may be read and executed; :func:`standard_read_only` gives what Python
        itself needs
    :param listable: folders below which names may be listed, but no file read; see :func:`import_roots`
    :param tcp: whether TCP stays allowed; if not, neither bind nor connect works (from Linux 6.7 on)
    """
    abi = landlock_abi()
    if abi == 0:
        return Confinement(0, False, False, False, reason="this system has no Landlock (Linux 5.13 or newer needed)")
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return Confinement(abi, False, False, False, reason=f"{threads} threads run already; confine before they start")
    forbid_tcp = not tcp and abi >= _ABI_TCP
    scoped = abi >= _ABI_SCOPES
    try:
        missing = _enforce(abi, read_write, read_only, listable, forbid_tcp=forbid_tcp, scoped=scoped)
    except OSError as error:
        return Confinement(abi, False, False, False, reason=f"Landlock refused: {error.strerror}")
    lacking = [] if scoped else [f"signals need Landlock {_ABI_SCOPES}"]
    if not tcp and not forbid_tcp:
        lacking.append(f"TCP needs Landlock {_ABI_TCP}")
    reason = f"{' and '.join(lacking)}, this system has {abi}" if lacking else ""
    return Confinement(abi, True, forbid_tcp, scoped, missing, reason)


def standard_read_only(*packages: str) -> list[Path]:
    """Return what a Python service reads: the interpreter, its libraries, its own code, and facts of the system.

    The current directory is not among them, whatever ``sys.path`` says: it may be somebody's home.

    :param packages: names of the packages of the service's own, besides the sdk
    """
    wanted: list[str | None] = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    wanted += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    wanted += [os.path.dirname(os.path.realpath(sys.executable or "/usr/bin/python3"))]
    for package in ("homeagent_sdk", *packages):
        spec = importlib.util.find_spec(package)
        wanted += list(spec.submodule_search_locations or ()) if spec else ()
    wanted += [*_SYSTEM_FOLDERS, *_SYSTEM_FILES]
    return [Path(path) for path in dict.fromkeys(wanted) if path and os.path.exists(path) and path != "/"]


def import_roots(*packages: str) -> list[Path]:
    """Return the folders in which packages lie: a child that imports them anew has to list these.

    :param packages: names of the packages of the service's own, besides the sdk
    """
    roots = []
    for package in ("homeagent_sdk", *packages):
        spec = importlib.util.find_spec(package)
        roots += [Path(each).parent for each in (spec.submodule_search_locations or ())] if spec else []
    return list(dict.fromkeys(roots))


def _enforce(
    abi: int,
    read_write: Iterable[Path],
    read_only: Iterable[Path],
    listable: Iterable[Path],
    *,
    forbid_tcp: bool,
    scoped: bool,
) -> tuple[str, ...]:
    everything = _all_rights(abi)
    attributes = struct.pack(
        "QQQ", everything, _TCP_BIND_AND_CONNECT if forbid_tcp else 0, _ABSTRACT_SOCKETS_AND_SIGNALS if scoped else 0
    )
    # Older systems take only as much of the structure as they know.
    attributes = attributes[: 24 if abi >= _ABI_SCOPES else 16 if abi >= _ABI_TCP else 8]
    ruleset = _checked(_syscall(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        missing = [str(path) for path in read_only if not _allow(ruleset, path, everything & _READ)]
        missing += [str(path) for path in listable if not _allow(ruleset, path, _READ_DIR)]
        writable = [*map(Path, _ALWAYS_WRITABLE), *read_write]
        missing += [str(path) for path in writable if not _allow(ruleset, path, everything)]
        _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return tuple(missing)


def _all_rights(abi: int) -> int:
    rights = _EXECUTE | _WRITE_FILE | _READ_FILE | _READ_DIR | _REMOVE_AND_MAKE
    for since, right in ((_ABI_REFER, _REFER), (_ABI_TRUNCATE, _TRUNCATE), (_ABI_IOCTL, _IOCTL_DEVICE)):
        if abi >= since:
            rights |= right
    return rights


def _allow(ruleset: int, path: Path, rights: int) -> bool:
    """Add a rule for a path; False if it does not exist."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return False
        raise
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(_syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)
    return True


_libc = ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    converted = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *converted)
    return result


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
