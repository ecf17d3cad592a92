"""The figures of a step on a real model, worked out by hand."""

import subprocess
import sys

from benchmarks import real_step
from benchmarks.real_step import Usage


def test_figures_leave_out_the_first_two_steps() -> None:
    """Steps 3, 4 and 5 took 4, 10 and 6 seconds, and 8, 2 and 12 seconds of processors."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    usage = Usage(process, samples=[(0, 0), (150, 300), (154, 308), (164, 310), (170, 322)], peak=3 * 10**9)
    found = real_step.figures("ours", [50, 150, 154, 164, 170], [9, 9, 1, 2, 5], usage)
    process.wait()
    assert found == {
        "ours_seconds": 6,
        "ours_cpu": 8,
        "ours_peak_gb": 3.0,
        "ours_tokens": 2,
        "ours_steps": 3,
    }


def test_memory_and_processor_time_of_all_processes() -> None:
    """The child of the child holds 200 MB and works until it has used half a second."""
    work = "import time\nheld = b'x' * 200_000_000\nwhile time.process_time() < 0.5: pass\ntime.sleep(1)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    usage = Usage(subprocess.Popen([sys.executable, "-c", outer]), every=0.05).follow()
    usage.process.wait()
    assert 0.2e9 < usage.peak < 0.4e9
    assert 0.4 < usage.cpu_at(usage.samples[-1][0]) < 3
