"""What all commands share: where messages go, how errors end, and the options that several take."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from korch.errors import InvalidInput, KorchError

console = Console(stderr=True, highlight=False, soft_wrap=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
ThreadsOption = Annotated[
    int,
    typer.Option("--threads", min=0, help="Threads to optimize for; 0 takes all that this process may use."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1x3x224x224", help="The shape of an input; may be given again."),
]


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turns expected errors into one line on standard error and exit code 1."""
    try:
        yield
    except KorchError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("interrupted; what was measured so far is kept", markup=False)
        raise typer.Exit(130) from None


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value) + "\n")


def say(text: str) -> None:
    """A line for people, on standard output."""
    sys.stdout.write(text + "\n")


def parse_shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """`["x=1x3x224x224"]` as `{"x": (1, 3, 224, 224)}`; `x=` is a scalar."""
    found: dict[str, tuple[int, ...]] = {}
    for option in options or []:
        name, equals, text = option.rpartition("=")
        try:
            shape = tuple(int(d) for d in text.split("x")) if text else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(d < 0 for d in shape):
            raise InvalidInput(f"cannot read --shape {option}; write for example --shape x=1x3x224x224")
        if name in found and found[name] != shape:
            raise InvalidInput(f"--shape gives {name} two shapes; one artifact holds one shape for now")
        found[name] = shape
    return found


@contextmanager
def progress_bar() -> Iterator[ProgressReporter]:
    """A live line on standard error while long work goes on; silent when standard error is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield ProgressReporter(bar)


class ProgressReporter:
    """`progress(phase, done, total)`, as `korch.pipeline` calls it; `total` 0 is unknown.

    Where standard error is no terminal, each phase is printed once as a line.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)
        self._phase = ""

    def __call__(self, phase: str, done: int = 0, total: int = 0) -> None:
        if phase != self._phase and not console.is_terminal:
            console.print(phase, markup=False)
        self._phase = phase
        self._bar.update(self._task, description=phase, completed=done, total=total or None)
