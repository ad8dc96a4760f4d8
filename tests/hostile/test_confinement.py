"""The lists of system calls: their numbers against the kernel's headers, and what the filters made of them decide.

The filter for AArch64 runs here too, in an interpreter of its instructions: there is no such machine to run it on.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from spikestill.common.confinement import (
    ALLOW,
    AUDIT_ARCH,
    CALLS,
    CLONE,
    CLONE3,
    CLONE_THREAD,
    ENOSYS,
    EPERM,
    ERRNO,
    KILL,
    LANDLOCK_CREATE,
    LANDLOCK_RESTRICT,
    PRLIMIT,
    filter_program,
)

HEADERS = {
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
}
"""Where Linux has the numbers: AArch64 has the generic table."""
X32 = 0x40000000
REFUSED = ERRNO | EPERM


def numbers(machine: str) -> dict[str, int]:
    """Return name to number, as the kernel's header for ``machine`` has them."""
    for header in map(Path, HEADERS[machine]):
        if header.is_file():
            # A call whose form differs between 32 and 64 bits has a name of its own; 64 bits take the plain one.
            found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\b", header.read_text(), re.M)
            return {name: int(number) for name, number in found}
    pytest.skip("the kernel's headers are not installed here: apt-get install linux-libc-dev")


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_every_number_is_the_kernels(machine):
    known = numbers(machine)
    assert len(known) > 250
    listed = CALLS[machine] | {"clone": CLONE[machine], "clone3": CLONE3, "prlimit64": PRLIMIT[machine]}
    listed |= {"landlock_create_ruleset": LANDLOCK_CREATE, "landlock_restrict_self": LANDLOCK_RESTRICT}
    assert {name: known.get(name) for name in listed} == listed


def test_the_architectures_are_the_kernels():
    header = Path("/usr/include/linux/elf-em.h")
    if not header.is_file():
        pytest.skip("the kernel's headers are not installed here: apt-get install linux-libc-dev")
    known = dict(re.findall(r"^#define EM_(\w+)\s+(\d+)\b", header.read_text(), re.M))
    # 64 bits, little-endian.
    found = {
        machine: int(known[name]) | 3 << 30
        for machine, name in (("x86_64", "X86_64"), ("aarch64", "AARCH64"))
    }
    assert found == AUDIT_ARCH


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_the_list_has_nothing_that_opens_sends_or_starts(machine):
    wicked = re.compile(
        r"open|creat|link|stat|access|exec|fork|socket|connect|send|recv|bind|listen|accept|kill|ptrace|mount|chdir"
        r"|chmod|chown|rename|unlink|mkdir|write64|writev2|ioctl|fcntl|dup|pipe|memfd|shm|msg|sem|bpf|perf|module|keyctl"
        r"|io_uring|process|pid_|setns|unshare|prctl|seccomp|truncate|fallocate|splice|copy_file|sendfile"
    )
    assert [name for name in CALLS[machine] if wicked.search(name)] == ["fstat"]


def decision(machine: str, number: int, arguments: tuple[int, ...] = (), arch: int | None = None) -> int:
    """Return what the filter says to a call: classic BPF, as far as the filter uses it (seccomp_filter.rst)."""
    content = filter_program(machine)
    steps = [struct.unpack_from("<HBBI", content, at) for at in range(0, len(content), 8)]
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, AUDIT_ARCH[machine] if arch is None else arch, 0, *padded)
    accumulator, at = 0, 0
    while True:
        code, when, otherwise, value = steps[at]
        at += 1
        if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:  # BPF_RET | BPF_K
            return int(value)
        elif code in (0x15, 0x45):  # BPF_JMP | BPF_JEQ or BPF_JSET | BPF_K
            met = accumulator == value if code == 0x15 else accumulator & value
            at += when if met else otherwise
        else:
            raise AssertionError(f"instruction {at - 1} has the code {code:#x}")


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_listed_calls_pass_and_all_others_fail(machine):
    listed = set(CALLS[machine].values())
    special = {CLONE[machine], CLONE3, PRLIMIT[machine]}
    for number in range(600):
        if number not in special:
            assert decision(machine, number, (7, 7, 7)) == (ALLOW if number in listed else REFUSED), number
            assert decision(machine, number | X32) == REFUSED


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_clone_makes_threads_alone(machine):
    flags = 0x3D0F00  # what pthread_create gives
    assert flags & CLONE_THREAD
    assert decision(machine, CLONE[machine], (flags,)) == ALLOW
    assert decision(machine, CLONE[machine], (flags & ~CLONE_THREAD,)) == REFUSED
    assert decision(machine, CLONE[machine], (17,)) == REFUSED  # fork
    assert decision(machine, CLONE[machine], (CLONE_THREAD << 32,)) == REFUSED
    assert decision(machine, CLONE3, (flags,)) == ERRNO | ENOSYS


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_limits_may_be_asked_and_not_set(machine):
    assert decision(machine, PRLIMIT[machine], (0, 3, 0, 0x7FFF12345678)) == ALLOW
    for new in (0x1000, 1 << 32, 0x7FFF00000000, 0x7FFF12345678):
        assert decision(machine, PRLIMIT[machine], (0, 3, new, 0)) == REFUSED


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_a_call_of_another_architecture_ends_the_process(machine):
    """A program of 32 bits has other numbers: 3 is read there, and close here."""
    for arch in (0, 3, 0x40000003, 0x40000028, *(set(AUDIT_ARCH.values()) - {AUDIT_ARCH[machine]})):
        for number in (3, *CALLS[machine].values()):
            assert decision(machine, number, arch=arch) == KILL
