"""Integer index expressions: which element of a value, or of a buffer, a point of a loop nest reads.

An `Index` is a sum of atoms with integer coefficients, plus a constant. An atom is a loop variable with a
known range, a floor division or remainder by a constant, an entry of a constant table, or an integer that the
kernel has loaded. The operators `+ - * // %` (by constants) and `lookup` simplify as they build: intervals
decide divisions, and quotient and remainder of one expression recombine, so that a reshape undone by another,
or by the strides of a row-major buffer, leaves a plain sum of variables.

Expressions are immutable and compare by their text. Two variables of one name are one variable: within one
nest a name has one range.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

_NONE: frozenset[str] = frozenset()
TableName = Callable[[tuple[int, ...]], str]
MOST_PROGRESSIONS = 8  # into which a table is cut
_MAX_TABLE = 1 << 16  # tables are re-indexed by the innermost atom up to this many entries


@dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """A part of an index that takes one of the integers `low..high` and depends on `variables`."""

    text: str
    low: int
    high: int
    variables: frozenset[str]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, eq=False, slots=True)
class Variable(Atom):
    """A loop variable."""


@dataclass(frozen=True, eq=False, slots=True)
class Loaded(Atom):
    """An integer that the kernel computes or reads at run time; `source` says how (it is the emitter's)."""

    source: object = None


@dataclass(frozen=True, eq=False, slots=True)
class Quotient(Atom):
    """floor(base / divisor)"""

    base: Index = field(kw_only=True)
    divisor: int = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Remainder(Atom):
    """base - divisor * floor(base / divisor)"""

    base: Index = field(kw_only=True)
    divisor: int = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Entry(Atom):
    """values[at]"""

    values: tuple[int, ...] = field(kw_only=True)
    at: Index = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Index:
    """`constant` plus the sum of coefficient times atom over `terms` (sorted by text, no coefficient zero)."""

    constant: int
    terms: tuple[tuple[Atom, int], ...]
    low: int
    high: int
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @property
    def variables(self) -> frozenset[str]:
        """The names of the variables that occur anywhere inside."""
        if not self.terms:
            return _NONE
        return _NONE.union(*(atom.variables for atom, _ in self.terms))

    @property
    def value(self) -> int | None:
        """The integer that this is, when it is one."""
        return None if self.terms else self.constant

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self if other == 0 else _index(self.constant + other, self.terms)
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        sums = dict(self.terms)
        for atom, k in other.terms:
            sums[atom] = sums.get(atom, 0) + k
        return _recombine(self.constant + other.constant, sums)

    def __radd__(self, other: int) -> Index:
        return self + other

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + -other

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return constant(0)
        return _index(self.constant * factor, tuple((a, k * factor) for a, k in self.terms))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return _divide(self, divisor)[0]

    def __mod__(self, divisor: int) -> Index:
        return _divide(self, divisor)[1]

    def stride(self, name: str) -> int | None:
        """What one step of a variable adds: None when that is not the same at each step."""
        step = 0
        for atom, k in self.terms:
            if isinstance(atom, Variable):
                if atom.text == name:
                    step = k
            elif name in atom.variables:
                return None
        return step

    def substitute(self, values: Mapping[str, Index]) -> Index:
        """The expression with variables replaced, simplified again."""
        if self.variables.isdisjoint(values):
            return self
        total = constant(self.constant)
        for atom, k in self.terms:
            total = total + _substitute(atom, values) * k
        return total

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The integer that this is at a point; `values` gives each variable (and each loaded integer)."""
        return self.constant + sum(k * _evaluate(atom, values) for atom, k in self.terms)

    def atoms(self) -> Iterable[Atom]:
        """All atoms, those inside others after them."""
        for atom, _ in self.terms:
            yield atom
            if isinstance(atom, Quotient | Remainder):
                yield from atom.base.atoms()
            elif isinstance(atom, Entry):
                yield from atom.at.atoms()


def constant(value: int) -> Index:
    """An index that is one integer."""
    return Index(value, (), value, value, str(value))


def variable(name: str, low: int, high: int) -> Index:
    """A loop variable that takes the integers from `low` to `high`; a constant when they are one."""
    if low == high:
        return constant(low)
    return of_atom(Variable(name, low, high, frozenset((name,))))


def loaded(name: str, low: int, high: int, variables: frozenset[str], source: object = None) -> Index:
    """An integer known at run time only, always within `low..high`."""
    return constant(low) if low == high else of_atom(Loaded(name, low, high, variables, source))


def of_atom(atom: Atom) -> Index:
    return Index(0, ((atom, 1),), atom.low, atom.high, atom.text)


def lookup(values: tuple[int, ...], at: Index) -> Index:
    """values[at], simplified when the entries that `at` can reach are a sum, a quotient or one integer.

    Where `at` leaves the table (under a condition that then keeps the result from being used) anything may come.
    """
    last = len(values) - 1

    def entry(k: int) -> int:
        return values[min(max(k, 0), last)]

    base = at
    if len(at.terms) == 1 and at.terms[0][0].high - at.terms[0][0].low < _MAX_TABLE:
        # Indexed by the one atom itself, so that tables of tables and of quotients become one table.
        atom, k = at.terms[0]
        if isinstance(atom, Entry):
            return lookup(tuple(entry(at.constant + k * v) for v in atom.values), atom.at)
        if isinstance(atom, Quotient) and atom.base.high - atom.base.low < _MAX_TABLE:
            steps = range(atom.base.low, atom.base.high + 1)
            inner = tuple(entry(at.constant + k * (b // atom.divisor)) for b in steps)
            return lookup(inner, atom.base - atom.base.low)
        values = tuple(entry(at.constant + k * v) for v in range(atom.low, atom.high + 1))
        base = of_atom(atom) - atom.low
    elif at.low > 0 or at.high < last:
        low, high = min(max(at.low, 0), last), min(max(at.high, 0), last)
        values, base = values[low : high + 1], at - low
    first = values[0]
    step = values[1] - first if len(values) > 1 else 0
    if all(v == first + step * i for i, v in enumerate(values)):
        return base * step + first
    k = _run_length(values)
    if k > 1:
        shift = k - values.count(first)
        if all(v == first + (i + shift) // k for i, v in enumerate(values)):
            return (base + shift) // k + first
    digest = hashlib.sha1(repr(values).encode(), usedforsecurity=False).hexdigest()[:12]
    text = f"table_{digest}[{base.text}]"
    return of_atom(Entry(text, min(values), max(values), base.variables, values=values, at=base))


def dot(index: Iterable[Index], strides: Iterable[int]) -> Index:
    """The offset of an element: the sum of index times stride."""
    total = constant(0)
    for i, s in zip(index, strides, strict=True):
        if s:
            total = total + i * s
    return total


def flatten(index: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """The row-major position of an element."""
    return dot(index, row_major_strides(shape))


def unflatten(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The element at a row-major position."""
    found: list[Index] = []
    for d in range(len(shape) - 1, -1, -1):
        if d == 0 or all(n == 1 for n in shape[:d]):
            found.append(position)
            position = constant(0)
        else:
            position, rest = _divide(position, shape[d])
            found.append(rest)
    return tuple(reversed(found))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def lane_pattern(index: Index, name: str, residue: int, lanes: int) -> tuple[int, ...] | None:
    """index(name + l) - index(name) for l in 0..lanes-1, when `name` is `residue` modulo `lanes`.

    None when that is not the same for all such `name` and all other variables.
    """
    pattern = [0] * lanes
    for atom, k in index.terms:
        if name not in atom.variables:
            continue
        if isinstance(atom, Variable):
            pattern = [p + k * l for l, p in enumerate(pattern)]
            continue
        if not isinstance(atom, Quotient) or lanes % atom.divisor:
            return None
        base = atom.base
        if len(base.terms) != 1 or base.terms[0][1] != 1 or not isinstance(base.terms[0][0], Variable):
            return None
        start = (residue + base.constant) % atom.divisor
        pattern = [p + k * ((start + l) // atom.divisor) for l, p in enumerate(pattern)]
    return tuple(pattern)


def progressions(values: tuple[int, ...]) -> list[int]:
    """The first positions of the arithmetic progressions that the entries fall into, one after the other."""
    starts = [0]
    for i in range(2, len(values)):
        begin = starts[-1]
        if i - begin >= 2 and values[i] - values[i - 1] != values[begin + 1] - values[begin]:
            starts.append(i)
    return starts


def repetition(values: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The longest stretch (first position, one past the last) in which each of successive integers stands k times,
    the first and the last perhaps fewer times, and k; None when k would be 1."""
    runs: list[tuple[int, int]] = []  # first position, length
    for i, v in enumerate(values):
        if i and v == values[i - 1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((i, 1))
    lengths = [n for _, n in runs]
    k = max(sorted(set(lengths)), key=lengths.count)
    if k < 2:
        return None
    best, first = (0, 0, k), 0
    for j in range(1, len(runs) + 1):
        follows = j < len(runs) and values[runs[j][0]] == values[runs[j - 1][0]] + 1
        if follows and (j - 1 == first or runs[j - 1][1] == k):
            continue
        (start, n), (last, m) = runs[first], runs[j - 1]
        low, high = start + max(0, n - k), last + min(m, k)
        if high - low > best[1] - best[0]:
            best = (low, high, k)
        first = j - 1 if follows else j
    return best


def cuts_of(values: tuple[int, ...]) -> list[int]:
    """Where to cut the range of a table's index so that the pieces, or the longest of them, need no table."""
    starts = progressions(values)
    if len(starts) <= MOST_PROGRESSIONS:
        return starts
    found = repetition(values)
    if found is None or 2 * (found[1] - found[0]) < len(values):
        return []
    return [found[0], found[1]]


def to_c(index: Index, table: TableName, names: Mapping[str, str] | None = None) -> str:
    """C text of type int64_t. `table` gives the name of a constant array with these entries; `names` replaces
    the names of variables and loaded integers by other C expressions."""
    parts: list[str] = []
    for atom, k in sorted(index.terms, key=lambda t: t[1] < 0):
        text = _atom_to_c(atom, table, names or {})
        parts.append(("-" if k < 0 else "+") + (text if abs(k) == 1 else f"{text}*{abs(k)}"))
    if index.constant or not parts:
        parts.append(f"{index.constant:+d}")
    return "".join(parts).removeprefix("+")


def _atom_to_c(atom: Atom, table: TableName, names: Mapping[str, str]) -> str:
    if isinstance(atom, Quotient | Remainder):
        # Unsigned division by a constant is a multiplication; a negative base is lifted by whole divisors.
        lift = max(0, -(atom.base.low // atom.divisor))
        base = to_c(atom.base + lift * atom.divisor, table, names)
        if isinstance(atom, Remainder):
            return f"(int64_t)((uint64_t)({base})%{atom.divisor})"
        quotient = f"(int64_t)((uint64_t)({base})/{atom.divisor})"
        return f"({quotient}-{lift})" if lift else quotient
    if isinstance(atom, Entry):
        return f"(int64_t){table(atom.values)}[{to_c(atom.at, table, names)}]"
    return names.get(atom.text, atom.text)


def _index(const: int, terms: tuple[tuple[Atom, int], ...]) -> Index:
    """An index of sorted terms."""
    low = high = const
    parts: list[str] = []
    for atom, k in terms:
        low += k * (atom.low if k > 0 else atom.high)
        high += k * (atom.high if k > 0 else atom.low)
        parts.append(atom.text if k == 1 else f"{k}*{atom.text}")
    if const or not parts:
        parts.append(str(const))
    return Index(const, terms, low, high, "+".join(parts))


def _sorted(const: int, sums: Mapping[Atom, int]) -> Index:
    return _index(const, tuple(sorted(((a, k) for a, k in sums.items() if k), key=lambda t: t[0].text)))


def _recombine(const: int, sums: dict[Atom, int]) -> Index:
    """a*(e % k) + a*k*(e // k) = a*e, and a*(e % k) + a*k*((e // k) % m) = a*(e % (k*m))."""
    for atom, k in list(sums.items()):
        if not isinstance(atom, Remainder) or not sums.get(atom):
            continue
        k = sums[atom]
        quotient = atom.base // atom.divisor
        if len(quotient.terms) != 1 or quotient.constant or quotient.terms[0][1] != 1:
            continue
        whole = quotient.terms[0][0]
        if sums.get(whole) == k * atom.divisor:
            merged, used = atom.base, whole
        else:
            upper = next(
                (
                    u
                    for u, c in sums.items()
                    if c == k * atom.divisor and isinstance(u, Remainder) and u.base == quotient
                ),
                None,
            )
            if upper is None:
                continue
            merged, used = atom.base % (atom.divisor * upper.divisor), upper
        del sums[atom], sums[used]
        return _sorted(const, sums) + merged * k
    return _sorted(const, sums)


def _divide(e: Index, k: int) -> tuple[Index, Index]:
    """floor(e / k) and e mod k."""
    assert k > 0, k
    if k == 1:
        return e, constant(0)
    # Terms that are multiples of k leave the division; so does the constant's.
    whole = tuple((a, c // k) for a, c in e.terms if c % k == 0)
    terms = tuple((a, c) for a, c in e.terms if c % k)
    lift = e.constant // k
    rest = _index(e.constant - lift * k, terms)
    if rest.low // k == rest.high // k:
        q = rest.low // k
        return _index(lift + q, whole), rest - q * k
    quotient, remainder = _divide_rest(rest, k)
    return _index(lift, whole) + quotient, remainder


def _divide_rest(e: Index, k: int) -> tuple[Index, Index]:
    """`_divide` for an expression that is not constant and has no multiples of k in it."""
    # With g dividing k: e = g*s + r and 0 <= r < g gives e // k = s // (k/g) and e % k = g*(s % (k/g)) + r.
    for g in sorted({math.gcd(c, k) for _, c in e.terms}, reverse=True):
        if g == 1:
            break
        low = e.constant % g
        rest = _index(low, tuple((a, c) for a, c in e.terms if c % g))
        if rest.low >= 0 and rest.high < g:
            s = _index((e.constant - low) // g, tuple((a, c // g) for a, c in e.terms if c % g == 0))
            quotient, remainder = _divide(s, k // g)
            return quotient, remainder * g + rest
    atom, c = e.terms[0]
    if len(e.terms) == 1 and isinstance(atom, Entry):
        values = tuple(e.constant + c * v for v in atom.values)
        return lookup(tuple(v // k for v in values), atom.at), lookup(tuple(v % k for v in values), atom.at)
    return _quotient(e, k), _remainder(e, k)


def _quotient(e: Index, k: int) -> Index:
    if len(e.terms) == 1 and e.terms[0][1] == 1:
        atom = e.terms[0][0]
        if isinstance(atom, Quotient):  # (b // d + c) // k = (b + c*d) // (d*k)
            return (atom.base + e.constant * atom.divisor) // (atom.divisor * k)
        if isinstance(atom, Remainder) and e.constant == 0 and atom.divisor % k == 0:
            return (atom.base // k) % (atom.divisor // k)
    text = f"({e.text})//{k}"
    return of_atom(Quotient(text, e.low // k, e.high // k, e.variables, base=e, divisor=k))


def _remainder(e: Index, k: int) -> Index:
    for atom, c in e.terms:  # c*(b % m) = c*b modulo k when k divides c*m
        if isinstance(atom, Remainder) and (c * atom.divisor) % k == 0:
            return (e + of_atom(atom) * -c + atom.base * c) % k
    text = f"({e.text})%{k}"
    return of_atom(Remainder(text, 0, k - 1, e.variables, base=e, divisor=k))


def _run_length(values: tuple[int, ...]) -> int:
    """The length of the longer of the first two runs of equal entries: the first may be part of a run."""
    runs: list[int] = []
    for _, run in itertools.groupby(values):
        runs.append(len(list(run)))
        if len(runs) == 2:
            break
    return max(runs)


def _substitute(atom: Atom, values: Mapping[str, Index]) -> Index:
    if atom.variables.isdisjoint(values):
        return of_atom(atom)
    if isinstance(atom, Quotient):
        return atom.base.substitute(values) // atom.divisor
    if isinstance(atom, Remainder):
        return atom.base.substitute(values) % atom.divisor
    if isinstance(atom, Entry):
        return lookup(atom.values, atom.at.substitute(values))
    assert isinstance(atom, Variable), f"{atom.text} cannot be moved to other variables"
    return values[atom.text]


def _evaluate(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Quotient):
        return atom.base.evaluate(values) // atom.divisor
    if isinstance(atom, Remainder):
        return atom.base.evaluate(values) % atom.divisor
    if isinstance(atom, Entry):
        return atom.values[atom.at.evaluate(values)]
    return values[atom.text]
