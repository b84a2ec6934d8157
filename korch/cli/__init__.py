"""The `korch` command: one file per subcommand."""

from __future__ import annotations

import sys
from typing import Annotated, cast

import typer

from korch import __version__
from korch.cli.bench import bench
from korch.cli.cache import cache
from korch.cli.check import check
from korch.cli.common import report_error, say
from korch.cli.demo import demo
from korch.cli.doctor import doctor
from korch.cli.explain import explain
from korch.cli.export import export
from korch.cli.optimize import optimize
from korch.cli.run import run
from korch.cli.verify import verify

app = typer.Typer(
    name="korch",
    help="Find the cheapest set of kernels that computes a trained model, generate it, and write one file.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (optimize, run, check, verify, bench, explain, export, demo, doctor):
    app.command()(command)
app.add_typer(cache, name="cache")


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Find the cheapest set of kernels that computes a trained model, generate it, and write one file."""
    if version:
        say(f"korch {__version__}")
    elif context.invoked_subcommand is None:
        say(context.get_help())


# What is wrong with a command line; all versions of typer have the class, none exports it.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def main() -> None:
    """The entry point. Exit code 0 only on success; 2 for a wrong command line; 130 when interrupted."""
    try:
        sys.exit(app(standalone_mode=False))
    except typer.Abort:
        sys.exit(130)
    except UsageError as error:
        context = error.ctx
        command = context.command_path if context is not None else "korch"
        if message := error.format_message().rstrip("."):  # empty when the help was printed instead
            report_error(f"{message}; see {command} --help", json="--json" in sys.argv)
        sys.exit(2)
