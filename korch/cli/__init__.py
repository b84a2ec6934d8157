"""The `korch` command: one file per subcommand."""

from __future__ import annotations

import typer

from korch.cli.bench import bench
from korch.cli.cache import cache
from korch.cli.check import check
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
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (optimize, run, check, verify, bench, explain, export, demo, doctor):
    app.command()(command)
app.add_typer(cache, name="cache")


def main() -> None:
    """The entry point; exit code 0 only on success."""
    app()
