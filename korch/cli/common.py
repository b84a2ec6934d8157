"""What all commands share: where messages go, how errors end, and the options that several take."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import product
from json import dumps
from typing import Annotated, Any

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
    typer.Option(
        "--shape",
        metavar="NAME=1x3x224x224",
        help="The shape of an input. Given again for the same input, or as 1..8x3x224x224: one plan for each.",
    ),
]


@contextmanager
def errors_in_one_line(*, json: bool = False) -> Generator[None]:
    """Turns expected errors into one line on standard error and exit code 1; see `report_error` for `json`."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read the output has seen enough: typer ends the process quietly
    except KorchError as error:
        report_error(str(error), json=json)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        report_error(f"{where}{error.strerror or error}; check the path, its permissions and the space left", json=json)
    except MemoryError as error:
        report_error(f"not enough memory ({error or 'allocation failed'}); use smaller shapes", json=json)
    except KeyboardInterrupt:
        console.print("interrupted; what was measured so far is kept", markup=False)
        raise typer.Exit(130) from None
    else:
        return
    raise typer.Exit(1)


def report_error(message: str, *, json: bool) -> None:
    """One line on standard error; with `json` also an object `{"error": ...}` on standard output."""
    line = " ".join(message.split())
    console.print(f"error: {line}", style="red", markup=False)
    if json:
        print_json({"error": line})


def print_json(value: object) -> None:
    """One JSON object on standard output; what JSON cannot hold (infinities, NaN) becomes null."""
    sys.stdout.write(dumps(_finite(value), allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str) -> None:
    """A line for people, on standard output."""
    sys.stdout.write(text + "\n")


def say_on_stderr(text: str) -> None:
    """A line for people beside JSON, on standard error."""
    console.print(text, markup=False)


MOST_PLANS = 64


def parse_shapes(options: list[str] | None) -> tuple[dict[str, tuple[int, ...]], ...]:
    """The sets of shapes that `--shape` options stand for; one empty set when there are none.

    `x=1x3x224x224` gives an input its shape, `x=` makes it a scalar. A name given again begins the next set, and
    `x=1..8x3x224x224` stands for one set for each size; equal ranges in one set go together.
    """
    sets: list[dict[str, str]] = [{}]
    for option in options or []:
        name, equals, text = option.rpartition("=")
        if not equals or not name or not re.fullmatch(r"(\d+(\.\.\d+)?(x\d+(\.\.\d+)?)*)?", text):
            raise InvalidInput(
                f"cannot read --shape {option}; write for example --shape x=1x3x224x224, or --shape x=1..8x3x224x224"
            )
        if name in sets[-1]:
            sets.append({})
        sets[-1][name] = text
    found = [shapes for texts in sets for shapes in _expanded(texts)]
    if len(found) > MOST_PLANS:
        raise InvalidInput(f"--shape asks for {len(found)} plans; one file holds {MOST_PLANS} at most, give fewer")
    return tuple(found)


def one_shape_set(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """As `parse_shapes`, where only one set makes sense."""
    shapes, *more = parse_shapes(options)
    if more:
        raise InvalidInput(f"--shape gives {1 + len(more)} sets of shapes; this command takes one shape for each input")
    return shapes


def _expanded(texts: Mapping[str, str]) -> list[dict[str, tuple[int, ...]]]:
    """A set for each choice of a size from each range."""
    ranges = list(dict.fromkeys(r for text in texts.values() for r in re.findall(r"\d+\.\.\d+", text)))
    sizes: list[range] = []
    for text in ranges:
        low, high = map(int, text.split(".."))
        if high < low:
            raise InvalidInput(f"the range {text} in --shape is empty; write the smaller size first")
        sizes.append(range(low, min(high, low + MOST_PLANS) + 1))
    found: list[dict[str, tuple[int, ...]]] = []
    for chosen in product(*sizes):
        size_of = dict(zip(ranges, chosen, strict=True))
        found.append(
            {
                name: tuple(size_of[d] if d in size_of else int(d) for d in text.split("x")) if text else ()
                for name, text in texts.items()
            }
        )
    return found


@contextmanager
def progress_bar() -> Generator[ProgressReporter]:
    """A live line on standard error while long work goes on; plain lines where standard error is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield ProgressReporter(bar)


class ProgressReporter:
    """`progress(phase, done, total)`, as `korch.pipeline` calls it; `total` 0 is unknown.

    Where standard error is no terminal, a line is printed when a phase begins, at most every `_SECONDS`: work that
    ends at once, or fails at once, says nothing but its result.
    """

    _SECONDS = 2.0

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)
        self._phase = ""
        self._printed = time.monotonic()

    def __call__(self, phase: str, done: int = 0, total: int = 0) -> None:
        self._bar.update(self._task, description=phase, completed=done, total=total or None)
        now = time.monotonic()
        if phase == self._phase or console.is_terminal or now < self._printed + self._SECONDS:
            return
        self._phase, self._printed = phase, now
        console.print(phase, markup=False)
