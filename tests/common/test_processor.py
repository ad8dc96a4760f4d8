"""What is asked of the machine."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from spikestill.common.processor import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(4):
    torch.zeros(64 << 18)  # 64 MiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(64 << 18)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word):
    shown = subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=True)
    return int(shown.stdout.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own option")
def test_a_large_tensors_pages_fault_once():
    # 16,384 pages of 4 KiB; those of a large one are 32.
    assert faults("keep") < 16
    assert faults("default") >= 32
