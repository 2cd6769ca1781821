"""The command line: `inspect` directories of checkpoints, `datasets` to train from."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from functional_rb import __version__
from functional_rb.base.errors import CheckpointError
from functional_rb.datasets import command as command_of_datasets
from functional_rb.datasets.description import is_dataset
from functional_rb.inspection import inspect, page
from functional_rb.inspection.of_datasets import draw_dataset
from functional_rb.inspection.page import printable
from functional_rb.inspection.picture import draw
from functional_rb.inspection.report import is_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name.

    Args:
        arguments: those of the program by default.

    Returns:
        0 if all went well and no file is damaged, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m functional_rb", description="Replay buffers as values.")
    parser.add_argument("--version", action="version", version=f"functional_rb {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "inspect",
        help="tell what lies in a directory of checkpoints, or of a converted dataset, and verify every file",
        description="Tell what lies in a directory of checkpoints, or of a converted dataset. "
        "Every file is verified; the exit code is 1 if one is damaged.",
    )
    command.add_argument("path", metavar="PATH", help="a directory that frb.save or datasets have written to")
    command.add_argument("--json", action="store_true", help="print JSON in place of a page")
    command.add_argument("--plot", metavar="OUT", help="draw the distributions to a file too, out.png say")
    command.add_argument(
        "--known",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="a class or function of yours that the spec names, imported from there; may be given several times",
    )
    command_of_datasets.add_to(commands)
    options = parser.parse_args(arguments)
    if options.command == "datasets":
        return command_of_datasets.run(options, draw_dataset)
    return _inspect(options)


def _inspect(options: argparse.Namespace) -> int:
    try:
        if is_dataset(options.path):
            return command_of_datasets.run_inspect(options, draw_dataset)
        report = inspect(options.path, [_imported(name) for name in options.known])
        sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else page(report))
        if options.plot:
            draw(report, options.plot)
    except (CheckpointError, ImportError, OSError, ValueError) as error:
        print(printable(f"inspect: {error}"), file=sys.stderr)
        return 1
    return 0 if is_whole(report) else 1


def _imported(name: str) -> object:
    """What a module has under a name.

    Raises:
        ValueError: if there is no such thing.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--known {name}: expected MODULE:NAME of what can be imported: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
