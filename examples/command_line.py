"""What the programs with a table and a picture are asked with on the command line, beside what each has of its own."""

import argparse
from pathlib import Path


def parser(description: str, out: str) -> argparse.ArgumentParser:
    """Reads --seed, --quick and --out."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--quick", action="store_true", help="a run of seconds that shows the parts, not the result")
    made.add_argument("--out", type=Path, default=Path(out), help="the curves (default %(default)s)")
    return made
