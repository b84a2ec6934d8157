"""`korch cache`: the measured costs kept on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, say

# All that Korch puts into the folder: KORCH_CACHE_DIR may name one that holds other things.
_CONTENTS = ("costs.sqlite*", "libkorch-*.so", ".libkorch-*", "zig", "code")

cache = typer.Typer(help="Show, clear, export or import the measured costs.", no_args_is_help=True)


@cache.command()
def show(json: JsonOption = False) -> None:
    """Say where the cache lies and what it holds."""
    from korch.costs.database import Database, database_path

    with errors_in_one_line(json=json):
        path = database_path()
        counts = {"costs": 0, "dropped": 0}
        if path.exists():
            with Database(path) as database:
                counts = database.counts()
        size = path.stat().st_size if path.exists() else 0
        if json:
            print_json({"path": str(path), "bytes": size, **counts})
        else:
            say(f"{path}: {counts['costs']} measured kernels, {counts['dropped']} of them dropped, {size} bytes")


@cache.command()
def clear(json: JsonOption = False) -> None:
    """Forget all measured costs and the compiler's leftovers; other files in the folder stay."""
    from korch.cache_dir import korch_cache_dir

    with errors_in_one_line(json=json):
        path = korch_cache_dir()
        found = [p for pattern in _CONTENTS for p in path.glob(pattern)]
        for item in found:
            if item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink()
        if json:
            print_json({"path": str(path), "cleared": bool(found)})
        else:
            say(f"cleared {path}" if found else f"nothing to clear at {path}")


@cache.command("export")
def export_costs(file: Annotated[Path, typer.Argument(help="The file to write.")], json: JsonOption = False) -> None:
    """Write the measured costs to FILE, to be imported on an equal machine."""
    from korch.costs.database import Database, database_path

    with errors_in_one_line(json=json), Database(database_path()) as database:
        count = database.export_to(file)
        if json:
            print_json({"file": str(file), "costs": count})
        else:
            say(f"wrote {count} costs to {file}")


@cache.command("import")
def import_costs(
    file: Annotated[Path, typer.Argument(help="A file that `korch cache export` wrote.")],
    json: JsonOption = False,
) -> None:
    """Add the costs in FILE; costs known here stay as they are."""
    from korch.costs.database import Database, database_path

    with errors_in_one_line(json=json), Database(database_path()) as database:
        count = database.import_from(file)
        if json:
            print_json({"file": str(file), "costs": count})
        else:
            say(f"added {count} costs from {file}")
