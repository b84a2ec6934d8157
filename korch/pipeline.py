"""The whole story: a model in, the cheapest plan found, one `.korch` file out.

    import -> fission -> alternatives -> candidates -> costs -> selection -> generation -> artifact

Each step is a function of another package; this module only joins them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from korch.alternatives.rule import add_alternatives
from korch.alternatives.rules import rules_for
from korch.artifact.build import architecture_of
from korch.artifact.pack import Artifact, Plan, Tensor, Weights, pack
from korch.cache_dir import korch_cache_dir
from korch.candidates.build import Candidates, candidates_of
from korch.candidates.candidate import Candidate
from korch.candidates.groups import groups_of
from korch.codegen.c.fusible import fusible
from korch.codegen.c.program import Alias, Program, Step, generate_program
from korch.codegen.target import Target, host_features, host_target, target_named
from korch.codegen.toolchain import Toolchain, compile_shared, find_toolchain, warm_up
from korch.costs.bounds import Ceilings, lower_bound
from korch.costs.database import Database, database_path
from korch.costs.machine import measure_ceilings
from korch.costs.measure import Choice, Measurer, Setting
from korch.costs.runtime import runtime_library
from korch.errors import ArtifactError, InvalidInput, ToolchainError
from korch.fission.fission import fission
from korch.importers.onnx import import_onnx
from korch.importers.operators import OperatorGraph
from korch.ir.fragment import Fragment
from korch.ir.graph import Graph
from korch.model import Model
from korch.selection.baselines import greedy_partition, per_operator_partition

Progress = Callable[[str, int, int], None]
NUMERICS = ("strict", "default")


def no_progress(phase: str, done: int = 0, total: int = 0) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class Options:
    """How to optimize. `shapes` binds unbound inputs; `threads` 0 is all that the process may use; `budget` is
    seconds for measuring and selection, None for no limit."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    threads: int = 0
    target: str = "host"
    numerics: str = "default"
    budget: float | None = None


@dataclass(frozen=True)
class Summary:
    """What `korch optimize` reports: counts, microseconds, the relative gap, seconds of work, dropped kernels."""

    operators: int
    primitives: int
    candidates: int
    distinct: int
    measured: int
    kernels: int
    objective_us: float
    bound_us: float
    gap: float
    greedy_us: float
    per_operator_us: float
    seconds: float
    dropped: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        return asdict(self)


def resolve_threads(threads: int) -> int:
    """The number asked for, or all processors that this process may use."""
    return threads or len(os.sched_getaffinity(0))


def optimize_model(model: Any, options: Options, progress: Progress = no_progress) -> Model:
    """An optimized model, ready to call."""
    with tempfile.NamedTemporaryFile(prefix="korch-", suffix=".korch", delete=False) as file:
        path = Path(file.name)
    try:
        summary = optimize_to_file(model, path, options, progress)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Model(path, summary, owned=True)


def optimize_to_file(model: Any, output: Path, options: Options, progress: Progress = no_progress) -> Summary:
    """Writes the optimized model to `output`, which is replaced as a whole or not at all."""
    started = time.monotonic()
    if options.numerics not in NUMERICS:
        raise InvalidInput(f"unknown numerics {options.numerics!r}; choose one of: {', '.join(NUMERICS)}")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ArtifactError(f"cannot write {output}; its folder does not exist or is read-only, choose another")
    progress("import", 0, 0)
    operators = import_onnx(model, options.shapes)
    progress("fission", 0, 0)
    graph = fission(operators)
    graph, _ = add_alternatives(graph, rules_for(options.numerics))
    target = runnable_target(options.target)
    toolchain = find_toolchain()
    warm_up(toolchain, target, lambda text: progress("prepare the compiler", 0, 0))
    progress("enumerate candidates", 0, 0)
    candidates = enumerate_candidates(graph)
    setting = setting_for(graph, toolchain, target, resolve_threads(options.threads))
    with Database(database_path()) as database:
        measurer = Measurer(setting, database, progress)
        ceilings = known_ceilings(setting, database)
        orchestration = orchestrate_candidates(candidates, measurer, ceilings, options.budget, progress)
    progress("generate", 0, 0)
    steps = plan_steps(graph, orchestration, measurer)
    program = generate_program(graph, steps, target)
    code = compile_program(program, toolchain, target)
    certificate = orchestration.certificate
    artifact = make_artifact(operators, graph, steps, program, code, setting, certificate_json(certificate, options))
    pack(artifact, output)
    return Summary(
        operators=len(operators.operators),
        primitives=len(graph.definitions),
        candidates=certificate.candidates,
        distinct=certificate.distinct,
        measured=measurer.measured,
        kernels=len(program.kernels),
        objective_us=certificate.objective_us,
        bound_us=certificate.bound_us,
        gap=certificate.gap,
        greedy_us=certificate.greedy_us,
        per_operator_us=certificate.per_operator_us,
        seconds=time.monotonic() - started,
        dropped=tuple(
            f"{d.label} for {_operators_of(graph, d.fragment)}: {d.reason}" for d in measurer.dropped
        ),
    )


def runnable_target(name: str) -> Target:
    """The target of that name; it must run here, because its kernels are measured here."""
    target = target_named(name)
    missing = set(target.features) - host_features()
    if missing or architecture_of(target) != platform.machine():
        lacks = ", ".join(sorted(missing)) or architecture_of(target)
        raise ToolchainError(f"target {name} cannot be measured on this machine (it lacks {lacks}); optimize on one that can")
    return host_target() if target.name == host_target().name else target


def enumerate_candidates(graph: Graph) -> Candidates:
    """All candidates, those of the two baselines among them."""
    return candidates_of(
        graph,
        groups_of(graph, fusible),
        fusible,
        partitions={
            "greedy": greedy_partition(graph, fusible),
            "per_operator": per_operator_partition(graph, fusible),
        },
    )


def setting_for(graph: Graph, toolchain: Toolchain, target: Target, threads: int) -> Setting:
    """The state to measure in: weights come from memory when the model's exceed the last cache."""
    weights = sum(array.nbytes for array in graph.constants.values() if 0 not in array.strides)
    return Setting(
        device=device_name(),
        toolchain=toolchain,
        target=target,
        threads=threads,
        runtime=runtime_library(toolchain, target, korch_cache_dir()),
        cold_bytes=2 * target.l3_bytes if weights > target.l3_bytes else 0,
    )


def device_name() -> str:
    """The processor as Linux names it, with the number of processors."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return f"{line.partition(':')[2].strip()} x{os.cpu_count()}"
    return f"{platform.machine()} x{os.cpu_count()}"


def known_ceilings(setting: Setting, database: Database) -> Ceilings:
    """This machine's ceilings: measured once, then the highest ever seen."""
    stored = database.fact("ceilings", setting.text)
    if isinstance(stored, dict):
        return Ceilings(
            stored["flops_per_us"], tuple((int(s), float(r)) for s, r in stored["bandwidths"]), stored["launch_us"]
        )
    found = measure_ceilings(setting)
    database.store_fact("ceilings", setting.text, asdict(found))
    return found


def plan_steps(graph: Graph, plan: Sequence[Candidate], choices: Mapping[Candidate, tuple[Fragment, Choice, Mapping[str, str]]]) -> list[Step | Alias]:
    """The plan's candidates as calls of their cheapest kernels."""
    steps: list[Step | Alias] = []
    for candidate in plan:
        if candidate.kind == "alias":
            steps.append(Alias(candidate.inputs[0], candidate.outputs[0]))
        else:
            fragment, choice, names = choices[candidate]
            steps.append(Step(fragment, choice.kernel, names))
    return steps


def compile_program(program: Program, toolchain: Toolchain, target: Target) -> bytes:
    """The plan's shared library."""
    with tempfile.TemporaryDirectory(prefix="korch-") as folder:
        path = Path(folder) / "plan.so"
        compile_shared(toolchain, program.source, target, path, timeout=600.0)
        return path.read_bytes()
