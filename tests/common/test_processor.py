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
for _ in range(60):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(64 << 18)  # 64 MiB
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word):
    """Return the pages that faulted in each of the last of many tensors, one after the other."""
    shown = subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=True)
    return [int(line) for line in shown.stdout.split()[-30:]]


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own option")
def test_the_pages_of_large_tensors_are_kept():
    # 16,384 pages of 4 KiB; those of a large one are 32. Of the first eight or so none fits where another one was:
    # glibc keeps the few bytes before an aligned one for small requests, until it has seven of them.
    assert max(faults("keep")) < 16
    assert min(faults("default")) >= 32
