"""Rights that a process gives up for good, before it touches what a stranger made.

Three fences, each where the system has it: ``resource`` (memory, processor time, no files written, no core dumps),
Landlock (no path of the file system, no network; Linux 5.13), seccomp (a list of system calls that arithmetic, threads
and pipes need, all others fail with EPERM; Linux on x86-64 and AArch64). What is open already stays open.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
# asm-generic numbers, the same on every architecture.
LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446
LANDLOCK_VERSION = 1
# Rights of each Landlock version: files (1), refer (2), truncate (3), TCP (4), ioctl (5), sockets and signals (6).
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# What Python, NumPy, HDF5, PyTorch and ONNX Runtime call to compute, start threads and read and write open pipes.
CALLS = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10,
        "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17,
        "readv": 19, "writev": 20, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35,
        "getpid": 39, "exit": 60, "uname": 63, "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "times": 100,
        "sigaltstack": 131, "gettid": 186, "futex": 202, "sched_getaffinity": 204, "set_tid_address": 218,
        "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
        "exit_group": 231, "set_robust_list": 273, "getcpu": 309, "getrandom": 318, "membarrier": 324, "rseq": 334,
    },
    "aarch64": {
        "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73,
        "close": 57, "fstat": 80, "exit": 93, "exit_group": 94, "set_tid_address": 96, "futex": 98,
        "set_robust_list": 99, "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
        "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132,
        "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160,
        "getrusage": 165, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "gettid": 178, "sysinfo": 179,
        "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278,
        "membarrier": 283, "rseq": 293,
    },
}  # fmt: skip
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
CLONE_THREAD = 0x10000
PRLIMIT = {"x86_64": 302, "aarch64": 261}
# seccomp_data: number, architecture, instruction pointer, six 64-bit arguments (little-endian).
NUMBER_AT, ARCH_AT, ARGUMENTS_AT = 0, 4, 16
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38


def limit(memory: int | None, seconds: float | None) -> None:
    """Set this process's limits for good: no file is written, no core dumped.

    Args:
        memory: bytes of address space that it may take beside what it has; None: no limit.
        seconds: processor seconds that it may use from now on, > 0; None: no limit. SIGPROF ends it on time, and the
            kernel's own limit, which counts whole seconds, soon after.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if memory is not None:
        _lower(resource.RLIMIT_AS, _address_space() + memory)
    if seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds) + 1)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _lower(which: int, wanted: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def _address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 32


def confine() -> tuple[str, ...]:
    """Give up files, network and other processes; return which fences stand, of ``landlock`` and ``seccomp``.

    After it nothing can be opened: import and warm up before.
    """
    if sys.platform != "linux":
        return ()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        return ()
    fences = []
    with contextlib.suppress(OSError, ValueError):
        if _landlock(libc):
            fences.append("landlock")
    if _seccomp(libc):
        fences.append("seccomp")
    return tuple(fences)


def _landlock(libc: ctypes.CDLL) -> bool:
    version = libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    if version < 1:
        return False
    files = (1 << FILE_RIGHTS.get(version, 16)) - 1
    fields = struct.pack("<QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(LANDLOCK_CREATE, fields, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    # A ruleset without a rule: nothing is allowed. Its descriptor goes with the process.
    return bool(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0) == 0)


def filter_program(machine: str) -> bytes:
    """Return the seccomp filter of ``machine`` (``x86_64``, ``aarch64``) as classic BPF instructions.

    Listed calls pass; ``clone`` passes for threads alone; ``prlimit64`` may ask and not set; ``clone3``, whose flags a
    filter cannot see, is said not to exist, so that the C library takes ``clone``; all else fails with EPERM.
    """
    steps: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCH_AT), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT),
    ]  # fmt: skip
    for number in sorted(CALLS[machine].values()):
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    steps += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ERRNO | ENOSYS)]
    steps += [
        (EQUAL, 0, 4, CLONE[machine]), (LOAD, 0, 0, ARGUMENTS_AT),
        (ANY_BIT, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM),
    ]  # fmt: skip
    third = ARGUMENTS_AT + 2 * 8
    steps += [
        (EQUAL, 0, 5, PRLIMIT[machine]), (LOAD, 0, 0, third), (EQUAL, 0, 3, 0), (LOAD, 0, 0, third + 4),
        (EQUAL, 0, 1, 0), (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    steps.append((RETURN, 0, 0, ERRNO | EPERM))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _seccomp(libc: ctypes.CDLL) -> bool:
    machine = platform.machine()
    if machine not in CALLS or sys.maxsize < 1 << 32:
        return False
    content = filter_program(machine)
    program = _Program(len(content) // 8, content)
    return bool(libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0)
