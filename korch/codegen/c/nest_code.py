"""The C text of a schedule: phases, tasks, loops, and the statements in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from korch.codegen.c.emit import Memory, Source, Writer
from korch.codegen.c.index import Index, row_major_strides, variable
from korch.codegen.c.nest_blocks import transpose
from korch.codegen.c.nest_pass import PassCoder
from korch.codegen.c.nest_pieces import Range
from korch.codegen.c.nest_plan import Plan, output_memory
from korch.codegen.c.nest_schedule import Group, Schedule
from korch.codegen.target import Target


class Coder:
    """Writes the C text of one kernel."""

    def __init__(self, plan: Plan, schedule: Schedule, target: Target, pointers: Mapping[str, str]) -> None:
        self.plan, self.schedule, self.target = plan, schedule, target
        self.pointers = pointers  # C expressions for inputs, outputs ("out " + name) and "scratch"
        self.lanes = target.lanes()
        self.transposed: set[str] = set()

    def source(self) -> str:
        functions: list[str] = []
        tables: list[str] = []
        calls: list[str] = []
        for number, groups in enumerate(self.schedule.phases):
            out = Writer(self.target, f"v{number}_" if number else "v")
            self._phase(out, groups)
            functions.append(
                f"static void KERNEL_phase{number}(void *context, int64_t task, int64_t worker) {{\n"
                "char *const *p = ((KERNEL_context *)context)->p;\n"
                "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;\n"
                "char *local = runtime->scratch + worker * runtime->scratch_stride;\n"
                f"{out.text}\n}}"
            )
            tables.append(out.tables)
            tasks = sum(g.tasks for g in groups)
            calls.append(f"korch_parallel(runtime, {tasks}, KERNEL_phase{number}, &context);")
            for group in groups:
                if group.chunk:
                    out = Writer(self.target, f"c{number}_")
                    self._combine(out, group)
                    calls.append(f"{{\n{out.text}\n}}")
                    tables.append(out.tables)
        context = "typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;"
        entry = "\n".join(
            [
                "void KERNEL(const korch_runtime *runtime, char *const *p) {",
                "KERNEL_context context = {runtime, p};",
                *calls,
                "}",
            ]
        )
        helpers = [transpose(kind, self.lanes) for kind in sorted(self.transposed)]
        return "\n".join(t for t in [context, *helpers, *tables, *functions, entry] if t) + "\n"

    # Phases and groups.

    def _phase(self, out: Writer, groups: Sequence[Group]) -> None:
        first = 0
        for number, group in enumerate(groups):
            if len(groups) > 1:
                condition = f"task < {first + group.tasks}"
                head = f"else if ({condition})" if number else f"if ({condition})"
                out.open(head if number < len(groups) - 1 else "else", barrier=True)
            self._group(out, group, first)
            if len(groups) > 1:
                out.close()
            first += group.tasks

    def _group(self, out: Writer, group: Group, first: int) -> None:
        ranges = self._task(out, group, first)
        sources = self._sources(group)
        if len(group.passes) == 1:
            p = group.passes[0]
            PassCoder(self, out, p, group, sources, ranges, {}).write()
            return
        opened: dict[str, Index] = {}
        out.open("", ("@group",))
        for name in group.outer:
            size, block = self.plan.extents[name], group.blocks[name]
            r = ranges.get(name, Range(0, size))
            if block == 1:
                out.open(f"for (int64_t {name} = {r.first}; {name} < {r.last(size)}; ++{name})", (name, "@group"))
                opened[name] = variable(name, 0, size - 1)
            else:
                base, last = f"{name}_base", r.last(size)
                out.open(f"for (int64_t {base} = {r.first}; {base} < {last}; {base} += {block})", (base, "@group"))
                out.add(f"const int64_t {name}_end = {base} + {block} < {last} ? {base} + {block} : {last};")
                ranges[name] = Range(0, size, base, f"{name}_end")
        for p in group.passes:
            PassCoder(self, out, p, group, sources, ranges, opened).write()
        for _ in range(len(group.outer) + 1):
            out.close()

    def _task(self, out: Writer, group: Group, first: int) -> dict[str, Range]:
        """Decodes the task's number into the range of each axis that tasks cut."""
        ranges: dict[str, Range] = {}
        if group.tasks == 1:
            return ranges
        out.add(f"int64_t t = task - {first};")
        if group.chunk:
            name, size, pieces = group.chunk
            whole = group.passes[0].loops.families[0].extents()[name]
            out.add(f"const int64_t piece = t % {pieces}; t /= {pieces};")
            out.add(f"const int64_t {name}_lo = piece * {size};")
            out.add(f"const int64_t {name}_hi = {name}_lo + {size} < {whole} ? {name}_lo + {size} : {whole};")
            ranges[name] = Range(0, whole, f"{name}_lo", f"{name}_hi")
        for name, parts in reversed(group.parts.items()):
            size, block = self.plan.extents[name], group.blocks[name]
            count = math.ceil(size / block)
            out.add(f"const int64_t {name}_k = t % {parts}; t /= {parts};")
            step = f" * {block}" if block > 1 else ""
            low = f"{name}_k * {count} / {parts}{step}"
            high = f"({name}_k + 1) * {count} / {parts}{step}"
            out.add(f"const int64_t {name}_lo = {low};")
            if size % block:
                high = f"{name}_k + 1 < {parts} ? {high} : {size}"
            out.add(f"const int64_t {name}_hi = {high};")
            ranges[name] = Range(0, size, f"{name}_lo", f"{name}_hi")
        return ranges

    def _combine(self, out: Writer, group: Group) -> None:
        """Partial results of a split reduction, combined in order by the caller."""
        PassCoder(self, out, group.passes[0], group, self._sources(group), {}, {}, "combine").write()

    # Sources.

    def _sources(self, group: Group) -> dict[str, Source]:
        graph = self.plan.graph
        found: dict[str, Source] = {
            v: output_memory(graph, self.plan.layouts, v, self.pointers[v]) for v in graph.input_values
        }
        own = set(group.values())
        for value in self.schedule.buffers:
            if value in self.plan.stages:
                found[value] = self.memory(value, group if value in own else None)
        return found

    def memory(self, value: str, group: Group | None) -> Memory:
        """Where a root's value lies; `group` is given when it is the one that computes it."""
        buffer = self.schedule.buffers[value]
        marker = frozenset({"@group"} if group and len(group.passes) > 1 else ())
        if buffer.kind == "output":
            memory = output_memory(self.plan.graph, self.plan.layouts, value, self.pointers[f"out {value}"])
            return Memory(memory.pointer, memory.strides, marker)
        steps = dict(zip(buffer.axes, row_major_strides(buffer.extents), strict=True))
        owner = self.plan.roots[value]
        origin: list[Index] = []
        for name in owner.names:
            blocked = group is not None and name in group.outer and group.blocks[name] > 1 and name in steps
            base = variable(f"{name}_base", 0, self.plan.extents[name] - 1)
            origin.append(base if blocked and buffer.kind == "local" else variable("0", 0, 0))
        strides = tuple(steps.get(name, 0) for name in owner.names)
        start = "local" if buffer.kind == "local" else self.pointers["scratch"]
        return Memory(f"{start} + {buffer.offset}", strides, marker, owner.kept, tuple(origin))

    def partial(self, value: str) -> Memory:
        """Partial results: the piece first, then the axes of the value."""
        buffer = self.schedule.buffers[f"partial {value}"]
        return Memory(f"{self.pointers['scratch']} + {buffer.offset}", row_major_strides(buffer.extents))
