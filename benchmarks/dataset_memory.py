"""How much memory a conversion takes, in a process of its own: `python -m benchmarks.dataset_memory WHO SOURCE TO`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import ours
from functional_rb.datasets.reader import open_reader

TORCHRL = "torchrl"
# Bytes, or why it did not run, by format, size of the file, and who converts.
Peaks = dict[tuple[str, int, str], int | str]


def peaks_of(who: str, source: str) -> int | str:
    """Bytes that a process has in memory at most while it converts, beyond those before; or why it did not run.

    Args:
        who: ours, or torchrl.
        source: the dataset's name, with the path of its files.
    """
    with tempfile.TemporaryDirectory() as to:
        run = [sys.executable, "-m", "benchmarks.dataset_memory", who, source, to]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:200]
    return int(done.stdout.split()[-1])


def held(name: str) -> int:
    """Bytes of this process's memory, as Linux counts them: "VmRSS" now, "VmHWM" at most."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main(who: str, source: str, to: str) -> None:
    """Convert, and print the memory that it took."""
    if who == ours.NAME:
        import h5py  # noqa: F401  # used by our readers: imported before, so that its memory does not count
        import minari  # likewise

        import functional_rb as frb

        def convert() -> object:
            return frb.datasets.convert(open_reader(source), Path(to) / "made")
    else:
        import minari  # noqa: F401  # used by torchrl: imported before, so that its memory does not count

        from benchmarks.peers_torchrl_datasets import made

        def convert() -> object:
            return made(source, Path(to) / "made", 1, 1)

    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what it is now
    before = held("VmRSS")
    convert()
    print(held("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
