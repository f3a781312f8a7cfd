"""The fear about freed memory: that the process keeps what large bodies and answers took."""

import subprocess
import sys

import pytest

HELD = """
import re
import threading
from coseek.serve.allocator import give_back, give_back_large_blocks

def held():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

give_back_large_blocks()
before, kept = held(), []

def load():
    for _ in range(4):  # blocks of 4 MiB, and small ones between them that stay
        large = []
        for _ in range(16):
            large.append(bytearray(4 * 2**20))
            kept.append(bytearray(1_000))

def small():
    pieces = [bytearray(20_000) for _ in range(4_000)]
    kept.append(pieces[-1])

for call in (load, small):
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if call is load:
        print(held() - before)
give_back()
print(held() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_what_large_requests_took_is_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True).stdout.split()
    large_mb, all_mb = map(float, told)
    assert large_mb < 20 and all_mb < 20  # of 256 at a time, and of 320
