"""Command line: `python -m benchmarks.models [NAME ...] [--output DIR]` exports the networks to ONNX."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import DIRECTORY, NAMES


def main() -> None:
    """Export the networks named on the command line, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"networks to export: {', '.join(NAMES)}")
    parser.add_argument("--output", type=Path, default=DIRECTORY, metavar="DIR", help="default: %(default)s")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown networks: {', '.join(unknown)}")

    from .export import export

    for name in arguments.names or NAMES:
        print(export(name, arguments.output), flush=True)


if __name__ == "__main__":
    main()
