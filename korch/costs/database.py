"""Measured costs, kept in one SQLite database in the user's cache directory.

A row is one implementation of one fragment on one device: keyed by the fragment's canonical text, the source of
the kernel, the device and the toolchain, and the state it was measured in. Two processes may use the database at
once (write-ahead log, short transactions); a process that is killed loses at most what it had not yet stored.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from korch.cache_dir import korch_cache_dir
from korch.errors import KorchError

VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS costs (
    fragment TEXT NOT NULL, kernel TEXT NOT NULL, setting TEXT NOT NULL,
    label TEXT NOT NULL, microseconds REAL, failure TEXT, calibration REAL,
    PRIMARY KEY (fragment, kernel, setting)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS offers (
    fragment TEXT NOT NULL, generator TEXT NOT NULL, offers TEXT NOT NULL, PRIMARY KEY (fragment, generator)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT NOT NULL, setting TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (name, setting)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Cost:
    """The result of measuring one kernel: microseconds per call, or the reason why it was dropped.

    `setting` names the device, toolchain, threads and cache state; `calibration` is the time of the calibration
    kernel beside it over its best time ever seen here (machines drift; 1 is an undisturbed machine).
    """

    fragment: str
    kernel: str
    setting: str
    label: str
    microseconds: float | None
    failure: str | None = None
    calibration: float = 1.0


def _row(c: Cost) -> tuple[object, ...]:
    return c.fragment, c.kernel, c.setting, c.label, c.microseconds, c.failure, c.calibration


def database_path() -> Path:
    """Where the costs of this user lie."""
    return korch_cache_dir() / "costs.sqlite"


class Database:
    """Open with a path; use as a context manager or call `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, VERSION):
                raise KorchError(
                    f"the cost database {path} has version {found}, this Korch reads {VERSION}; "
                    "run `korch cache clear` or set KORCH_CACHE_DIR to another folder"
                )
            self._connection.executescript(_SCHEMA)
            self._connection.execute(f"PRAGMA user_version={VERSION}")
        except OSError as error:
            raise KorchError(
                f"cannot make the cache {path.parent} ({error.strerror}); set KORCH_CACHE_DIR to another folder"
            ) from None
        except sqlite3.DatabaseError as error:
            raise KorchError(
                f"cannot use the cost database {path} ({error}); run `korch cache clear` or set KORCH_CACHE_DIR"
            ) from None

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def costs(self, fragment: str, setting: str) -> dict[str, Cost]:
        """All costs of a fragment in a setting, by kernel hash."""
        rows = self._connection.execute(
            "SELECT kernel, label, microseconds, failure, calibration FROM costs WHERE fragment=? AND setting=?",
            (fragment, setting),
        )
        return {r[0]: Cost(fragment, r[0], setting, r[1], r[2], r[3], r[4]) for r in rows}

    def all_costs(self) -> Iterator[Cost]:
        for r in self._connection.execute(
            "SELECT fragment, kernel, setting, label, microseconds, failure, calibration FROM costs"
        ):
            yield Cost(*r)

    def store(self, costs: Iterable[Cost]) -> None:
        """Stores costs in one transaction; a newer measurement replaces an older one."""
        rows = [_row(c) for c in costs]
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO costs VALUES (?,?,?,?,?,?,?)", rows)

    def export_to(self, path: Path) -> int:
        """Writes all costs to a JSON file; the number written."""
        rows = [asdict(c) for c in self.all_costs()]
        try:
            path.write_text(json.dumps({"korch_costs": VERSION, "costs": rows}))
        except OSError as error:
            raise KorchError(f"cannot write {path} ({error.strerror}); give another file") from None
        return len(rows)

    def import_from(self, path: Path) -> int:
        """Adds the costs of a file that `export_to` wrote, where none is known; the number added."""
        try:
            data = json.loads(path.read_text())
            rows = [Cost(**row) for row in data["costs"]]
            if data["korch_costs"] != VERSION:
                raise ValueError(f"version {data['korch_costs']}")
        except OSError as error:
            raise KorchError(f"cannot read {path} ({error.strerror}); give a file of `korch cache export`") from None
        except (ValueError, KeyError, TypeError) as error:
            raise KorchError(f"{path} holds no costs of this version ({error}); export them again") from None
        before = self.counts()["costs"]
        with self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO costs VALUES (?,?,?,?,?,?,?)", [_row(c) for c in rows])
        return self.counts()["costs"] - before

    def offers(self, fragment: str, generator: str) -> object | None:
        """What a version of the code generator offers for a fragment, as `store_offers` was given it."""
        row = self._connection.execute(
            "SELECT offers FROM offers WHERE fragment=? AND generator=?", (fragment, generator)
        ).fetchone()
        return json.loads(row[0]) if row else None

    def store_offers(self, generator: str, offers: Mapping[str, object]) -> None:
        """Keeps JSON values by fragment, so that known fragments need not be generated again."""
        rows = [(fragment, generator, json.dumps(value)) for fragment, value in offers.items()]
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO offers VALUES (?,?,?)", rows)

    def fact(self, name: str, setting: str) -> object | None:
        """A stored JSON value, such as this machine's ceilings."""
        row = self._connection.execute("SELECT value FROM facts WHERE name=? AND setting=?", (name, setting)).fetchone()
        return json.loads(row[0]) if row else None

    def store_fact(self, name: str, setting: str, value: object) -> None:
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?,?,?)", (name, setting, json.dumps(value)))

    def counts(self) -> dict[str, int]:
        """Rows in all, and those that record a dropped kernel."""
        total, failed = self._connection.execute("SELECT count(*), count(failure) FROM costs").fetchone()
        return {"costs": total, "dropped": failed}

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
