"""The whole story: a model in, the cheapest plan found, one `.korch` file out.

    import -> fission -> alternatives -> candidates -> costs -> selection -> generation -> artifact

Each step is a function of another package; this module only joins them.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from korch.alternatives.rule import add_alternatives
from korch.alternatives.rules import rules_for
from korch.alternatives.summary import summary_of
from korch.artifact.build import architecture_of
from korch.artifact.pack import Artifact, Plan, Tensor, Weights, pack
from korch.cache_dir import korch_cache_dir
from korch.candidates.build import Candidates, candidates_of
from korch.candidates.candidate import fragment_of, labels_of, structures_of
from korch.candidates.groups import groups_of
from korch.codegen.c.fusible import attention_sets, fusible
from korch.codegen.c.program import Alias, ConstantBlock, Program, Step, generate_program
from korch.codegen.target import Target, host_features, host_target, target_named
from korch.codegen.toolchain import Toolchain, compile_shared, find_toolchain, warm_up
from korch.costs.bounds import Ceilings, lower_bound
from korch.costs.database import Database, database_path
from korch.costs.machine import measure_ceilings
from korch.costs.measure import Dropped, Measurer, Setting, sources_version
from korch.costs.runtime import runtime_library
from korch.costs.samples import mismatch
from korch.errors import ArtifactError, InvalidInput, KorchError, ToolchainError
from korch.fission.aten.fission import fission as fission_aten
from korch.fission.fission import fission
from korch.importers.aten import AtenGraph
from korch.importers.onnx import import_onnx
from korch.importers.operators import OperatorGraph
from korch.inputs import read_inputs
from korch.ir.evaluate import evaluate
from korch.ir.graph import Graph
from korch.ir.types import TensorType, shape_text
from korch.model import Model
from korch.reference import reference_outputs
from korch.selection.baselines import partitions_of
from korch.selection.estimate import family_of
from korch.selection.lazy import NO_GAP, Certificate, Limits, orchestrate
from korch.selection.lazy import Plan as SelectedPlan
from korch.selection.lazy import Progress as SearchProgress
from korch.selection.program import relative_gap
from korch.selection.solver import NoPlan
from korch.selection.stored import plan_from_json, plan_to_json
from korch.verify import Verification, compare, random_inputs

Progress = Callable[[str, int, int], None]
NUMERICS = ("strict", "default")


def no_progress(phase: str, done: int = 0, total: int = 0) -> None:
    """Reports nothing."""


Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Options:
    """How to optimize. The file gets one plan for each of `shapes`, which bind unbound inputs, and each of `targets`;
    `threads` 0 is all that the process may use; `budget` is seconds for measuring and selection of one plan, None for
    no limit; `gap` is the certified gap at which the search ends, 0 for the best plan there is."""

    shapes: tuple[Shapes, ...] = ({},)
    targets: tuple[str, ...] = ("host",)
    threads: int = 0
    numerics: str = "default"
    budget: float | None = None
    gap: float = 0.01


@dataclass(frozen=True)
class Summary:
    """What `korch optimize` reports of one plan: its inputs' shapes and its target, counts, microseconds, the relative
    gap, seconds of work, dropped kernels."""

    inputs: Shapes
    target: str
    operators: int
    primitives: int
    candidates: int
    distinct: int
    measured: int
    kernels: int
    objective_us: float
    bound_us: float
    gap: float
    greedy_us: float | None
    per_operator_us: float | None
    seconds: float
    dropped: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        return _plain(asdict(self))


@dataclass(frozen=True)
class Network:
    """A model with its shapes bound, its primitives, the same with the alternatives, and what each rule did."""

    operators: OperatorGraph | AtenGraph
    plain: Graph
    graph: Graph
    rules: Sequence[Mapping[str, Any]]

    @property
    def inputs(self) -> Shapes:
        return {name: self.graph.types[v].shape for name, v in self.graph.inputs}


def resolve_threads(threads: int) -> int:
    """The number asked for, or all processors that this process may use."""
    return threads or len(os.sched_getaffinity(0))


def optimize_model(model: Any, options: Options, progress: Progress = no_progress) -> Model:
    """An optimized model, ready to call."""
    with tempfile.NamedTemporaryFile(prefix="korch-", suffix=".korch", delete=False) as file:
        path = Path(file.name)
    try:
        summaries = optimize_to_file(model, path, options, progress)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Model(path, summaries, owned=True)


def optimize_to_file(
    model: Any, output: Path, options: Options, progress: Progress = no_progress
) -> tuple[Summary, ...]:
    """Writes the optimized model to `output`, which is replaced as a whole or not at all; tells of each plan."""
    check_request(output, options)
    networks = networks_of(model, options, progress)
    targets = [runnable_target(name) for name in dict.fromkeys(options.targets)]
    toolchain = find_toolchain()
    block = ConstantBlock()
    made = [
        make_plan(network, target, toolchain, options, block, progress) for network in networks for target in targets
    ]
    weights = Weights(block.size, tuple(block.arrays))
    plans = [replace(plan, weights=weights) for plan, _ in made]
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}.korch")
    try:
        progress("verify", 0, 0)
        for network, plan in zip([n for n in networks for _ in targets], plans, strict=True):
            pack(make_artifact(networks[0], [plan], toolchain), temporary)
            check_whole(network.graph, temporary)
        if len(plans) > 1:
            pack(make_artifact(networks[0], plans, toolchain), temporary)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return tuple(summary for _, summary in made)


def check_request(output: Path, options: Options) -> None:
    """InvalidInput or ArtifactError when an option cannot be, or the file cannot be written."""
    if options.numerics not in NUMERICS:
        raise InvalidInput(f"unknown numerics {options.numerics!r}; choose one of: {', '.join(NUMERICS)}")
    if options.threads < 0:
        raise InvalidInput(f"threads is {options.threads}; give a positive number, or 0 for all")
    if options.budget is not None and not options.budget >= 0:
        raise InvalidInput(f"the budget is {options.budget} seconds; give 0 or more, or none for no limit")
    if not 0 <= options.gap < 1:
        raise InvalidInput(f"the gap is {options.gap}; give a share of the cost from 0 (the best plan) to below 1")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ArtifactError(f"cannot write {output}; its folder does not exist or is read-only, choose another")
    if output.is_dir():
        raise ArtifactError(f"cannot write {output}; it is a folder, give the name of a file in it")


def networks_of(model: Any, options: Options, progress: Progress = no_progress) -> tuple[Network, ...]:
    """The model for each set of shapes, once for each set of input shapes that they come to.

    `model` is what `import_onnx` reads, or a traced PyTorch program, which has its shapes.
    """
    if isinstance(model, AtenGraph):
        progress("fission", 0, 0)
        return (_network(model, fission_aten(model), options),)
    found: dict[tuple[tuple[int, ...], ...], Network] = {}
    for shapes in options.shapes:
        progress("import", 0, 0)
        operators = import_onnx(model, shapes)
        progress("fission", 0, 0)
        network = _network(operators, fission(operators), options)
        found.setdefault(tuple(network.inputs.values()), network)
    return tuple(found.values())


def _network(operators: OperatorGraph | AtenGraph, plain: Graph, options: Options) -> Network:
    rules = rules_for(options.numerics)
    graph, firings = add_alternatives(plain, rules)
    return Network(operators, plain, graph, summary_of(rules, firings))


def make_plan(
    network: Network,
    target: Target,
    toolchain: Toolchain,
    options: Options,
    block: ConstantBlock,
    progress: Progress = no_progress,
    candidates: Candidates | None = None,
) -> tuple[Plan, Summary]:
    """The cheapest plan for one set of shapes and one target, generated and compiled; `block` gets its constants.

    Over the `candidates` when they are given; else over all there are, and then the plan is remembered.
    """
    started = time.monotonic()
    warm_up(toolchain, target, lambda text: progress("prepare the compiler", 0, 0))
    setting = setting_for(network.plain, toolchain, target, options)
    with Database(database_path()) as database, Measurer(setting, database, progress) as measurer:
        found = known_plan(network.graph, measurer, options.gap) if candidates is None else None
        if found is None:
            progress("enumerate candidates", 0, 0)
            offered = enumerate_candidates(network.graph) if candidates is None else candidates
            found = choose_plan(offered, measurer, known_ceilings(setting, database), options)
            if candidates is None:
                remember_plan(network.graph, measurer, found)
        return finish_plan(found, network, measurer, options, block, started)


def finish_plan(
    found: Found, network: Network, measurer: Measurer, options: Options, block: ConstantBlock, started: float
) -> tuple[Plan, Summary]:
    """The chosen plan generated and compiled. `started` is when work on it began (`time.monotonic`)."""
    graph, setting = network.graph, measurer.setting
    target = setting.target
    measurer.progress("generate", 0, 0)
    steps = plan_steps(graph, found.plan, measurer)
    program = generate_program(graph, steps, target, block)
    plan = Plan(
        target=target,
        inputs=tuple(graph.types[v].shape for v in graph.input_values),
        outputs=tuple(graph.types[v].shape for v in graph.output_values),
        code=compile_program(program, setting.toolchain, target),
        source=program.source,
        threads=setting.threads,
        arena_bytes=program.arena_bytes,
        worker_scratch_bytes=program.worker_scratch_bytes,
        kernels=kernel_records(graph, found.plan, steps, program),
        certificate=_plain({**asdict(found.certificate), "numerics": options.numerics, "rules": network.rules}),
    )
    c = found.certificate
    return plan, Summary(
        inputs=network.inputs,
        target=target.name,
        operators=len(network.operators.operators),
        primitives=len(network.plain.definitions),
        candidates=c.candidates,
        distinct=c.distinct,
        measured=c.measured,
        kernels=len(program.kernels),
        objective_us=c.objective_us,
        bound_us=c.bound_us,
        gap=c.gap,
        greedy_us=c.greedy_us,
        per_operator_us=c.per_operator_us,
        seconds=time.monotonic() - started,
        dropped=tuple(_dropped_text(d) for d in measurer.dropped if d.broken),
    )


def runnable_target(name: str) -> Target:
    """The target of that name; it must run here, because its kernels are measured here."""
    target = target_named(name)
    missing = set(target.features) - host_features()
    if missing or architecture_of(target) != platform.machine():
        lacks = ", ".join(sorted(missing)) or architecture_of(target)
        raise ToolchainError(
            f"target {name} cannot be measured on this machine (it lacks {lacks}); optimize on one that can"
        )
    return host_target() if target.name == host_target().name else target


def enumerate_candidates(graph: Graph) -> Candidates:
    """All candidates, those of the two baselines among them."""
    grouping = groups_of(graph, fusible)
    partitions = partitions_of(graph, grouping, fusible)
    return candidates_of(graph, grouping, fusible, partitions=partitions, proposed=attention_sets(graph))


@dataclass(frozen=True)
class Found:
    """The chosen plan with its certificate."""

    plan: SelectedPlan
    certificate: Certificate


def choose_plan(candidates: Candidates, measurer: Measurer, ceilings: Ceilings, options: Options) -> Found:
    """The cheapest plan: structures are bounded, measured where it matters, and the program solved."""
    graph = candidates.graph
    structures = structures_of(graph, candidates.columns)
    keys, fragments = structures.keys, structures.fragments
    bounds = {key: lower_bound(fragment, ceilings) for key, fragment in fragments.items()}

    def measure(wanted: list[str]) -> dict[str, float | None]:
        chosen = measurer.measure([fragments[key] for key in wanted])
        return {key: choice.microseconds if choice else None for key, choice in chosen.items()}

    def rebound(costs: Mapping[str, float]) -> dict[str, float]:
        """A kernel faster than its bound raises all ceilings by as much."""
        share = min([1.0, *(cost / bounds[key] for key, cost in costs.items())])
        return {key: share * bound for key, bound in bounds.items()}

    def tell(at: SearchProgress) -> None:
        gap = 100 * relative_gap(at.best_us, at.bound_us)
        found = f"best {at.best_us / 1e3:.2f} ms, bound {at.bound_us / 1e3:.2f} ms, gap {gap:.1f} %"
        measurer.progress(f"{at.phase}: {found}; {at.measured} of {at.distinct} measured", 0, 0)

    try:
        plan, certificate = orchestrate(
            candidates,
            keys,
            bounds,
            measure,
            families={key: family_of(fragment) for key, fragment in fragments.items()},
            budget=math.inf if options.budget is None else options.budget,
            limits=Limits(gap=options.gap),
            rebound=rebound,
            progress=tell,
        )
    except NoPlan as error:
        failed = [d for d in measurer.dropped if measurer.choices.get(d.fragment.key) is None]
        causes = "; ".join(dict.fromkeys(_dropped_text(d) for d in failed[:3]))
        raise KorchError(f"{error}: {causes or 'nothing was dropped'}; please report the model") from error
    return Found(plan, certificate)


def known_plan(graph: Graph, measurer: Measurer, gap: float) -> Found | None:
    """The plan that an earlier search over this graph ended with, when nothing that matters has changed since and its
    certified gap is no larger than the one asked for."""
    stored = measurer.database.fact("plan", plan_identity(graph, measurer.setting))
    if not isinstance(stored, dict):
        return None
    found = Found(*plan_from_json(stored))
    if found.certificate.gap > max(gap, NO_GAP):
        return None
    labels = labels_of(graph)
    measurer.measure(fragment_of(graph, c, labels)[0] for c in found.plan.kernels if c.kind != "alias")
    return found


def remember_plan(graph: Graph, measurer: Measurer, found: Found) -> None:
    """Keeps a plan for `known_plan`; not one that a budget cut short, which a later search may better."""
    if found.certificate.complete:
        value = plan_to_json(found.plan, found.certificate)
        measurer.database.store_fact("plan", plan_identity(graph, measurer.setting), value)


def plan_identity(graph: Graph, setting: Setting) -> str:
    """A hash of all that a plan follows from: the graph (of its weights only types matter, of scalars the values),
    the state that costs are measured in, and Korch itself."""
    digest = hashlib.sha256(f"{setting.text}|{setting.numerics}|{sources_version()}".encode())
    for v, t in graph.types.items():
        array = graph.constants.get(v)
        content = "" if array is None else array.tobytes().hex() if array.size == 1 else "weight"
        digest.update(f"{v!r} {t} {content}\n".encode())
    for d in graph.definitions:
        digest.update(f"{d.primitive} {d.inputs} {d.outputs} {d.attributes}\n".encode())
    digest.update(f"{graph.inputs} {graph.outputs}".encode())
    return digest.hexdigest()


def plan_steps(graph: Graph, plan: SelectedPlan, measurer: Measurer) -> list[Step | Alias]:
    """The plan's candidates as calls of their cheapest kernels."""
    labels = labels_of(graph)
    cut = [None if c.kind == "alias" else fragment_of(graph, c, labels) for c in plan.kernels]
    measurer.prepare(found[0] for found in cut if found is not None)
    steps: list[Step | Alias] = []
    for candidate, found in zip(plan.kernels, cut, strict=True):
        if found is None:
            steps.append(Alias(candidate.inputs[0], candidate.outputs[0]))
            continue
        fragment, names = found
        weights = {w: graph.constants[names[w]] for w in fragment.weights}
        steps.append(Step(fragment, measurer.kernel(fragment, weights), names))
    return steps


def kernel_records(
    graph: Graph, plan: SelectedPlan, steps: Sequence[Step | Alias], program: Program
) -> tuple[Mapping[str, Any], ...]:
    """What the file tells of each kernel call."""
    called = [(c, cost) for c, cost in zip(plan.kernels, plan.costs, strict=True) if c.kind != "alias"]
    made = [s for s in steps if isinstance(s, Step)]
    return tuple(
        {
            "name": name,
            "family": step.kernel.label,
            "cost_us": cost,
            "operators": _operators(graph, c.definitions),
            "fragment": step.fragment.text,
        }
        for (c, cost), name, step in zip(called, program.kernels, made, strict=True)
    )


def make_artifact(network: Network, plans: Sequence[Plan], toolchain: Toolchain) -> Artifact:
    """What goes into the file. Names and dtypes are the same for all plans, so one `network` tells them."""
    graph = network.graph
    targets = {architecture_of(plan.target): plan.target for plan in plans}
    return Artifact(
        inputs=tuple(Tensor(name, graph.types[v].dtype.value) for name, v in graph.inputs),
        outputs=tuple(Tensor(name, graph.types[v].dtype.value) for name, v in graph.outputs),
        plans=tuple(plans),
        runtimes={
            architecture: runtime_library(toolchain, target, korch_cache_dir()).read_bytes()
            for architecture, target in targets.items()
        },
        model={"name": network.operators.name},
    )


def _operators(graph: Graph, definitions: Sequence[int]) -> list[str]:
    """The model's operators that a kernel takes part in. What is made of constants alone is shared by all."""
    found = [graph.definitions[d] for d in definitions]
    return list(dict.fromkeys(d.origin for d in found if set(d.inputs) - graph.constants.keys())) or ["(layout copy)"]


def check_whole(graph: Graph, path: Path) -> None:
    """Runs the finished file once and compares it with the graph's NumPy meaning; KorchError when it differs."""
    loaded = Model(path)
    inputs = random_inputs({name: graph.types[v] for name, v in graph.inputs})
    got, expected = loaded.run(inputs), evaluate(graph, inputs)
    wrong = mismatch(got, expected)
    if wrong:  # a model that amplifies rounding is judged by how far NumPy's own float32 is from float64
        wrong = mismatch(got, expected, evaluate(graph, inputs, double=True))
    if wrong:
        raise KorchError(
            f"the optimized model is wrong ({wrong}); run `korch cache clear` and try again, and report the model if "
            "that does not help"
        )


def verify_model(
    model: Any,
    optimized: Path | None,
    options: Options,
    inputs: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Verification]:
    """Runs each plan of the optimized model and the reference evaluator on the same inputs
    (`korch.inputs.read_inputs`); where files are given, only the plan that takes them. By the plan's input shapes."""
    loaded = optimize_model(model, options, progress) if optimized is None else Model(optimized)
    found: dict[str, Verification] = {}
    for types in loaded.signatures:
        values = read_inputs(inputs, types, seed)
        if len(loaded.signatures) > 1 and any(values[n].shape != t.shape for n, t in types.items()):
            continue
        got = loaded.run(values)
        progress("run the reference evaluator", 0, 0)
        found[shapes_text(types)] = compare(got, reference_outputs(model, values))
    if not found:
        loaded.run(read_inputs(inputs, loaded.inputs, seed))  # says which shapes there are
    return found


def shapes_text(types: Mapping[str, TensorType]) -> str:
    """`x 1x3x224x224, mask 1x16`, as reports name a plan."""
    return ", ".join(f"{n} {shape_text(t.shape)}" for n, t in types.items()) or "no inputs"


def _plain(value: Any) -> Any:
    """What JSON can hold: NumPy's numbers become Python's, an infinity None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _dropped_text(d: Dropped) -> str:
    operators = ", ".join(x.primitive for x in d.fragment.graph.definitions[:6])
    return f"{d.label} ({operators}): {d.reason}"


def setting_for(graph: Graph, toolchain: Toolchain, target: Target, options: Options) -> Setting:
    """The state to measure in: weights come from memory when the model's exceed the last cache."""
    weights = sum(array.nbytes for array in graph.constants.values() if 0 not in array.strides)
    return Setting(
        device=device_name(),
        toolchain=toolchain,
        target=target,
        threads=resolve_threads(options.threads),
        numerics=options.numerics,
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
    """This machine's ceilings: the highest ever seen, measured anew each time, since other work may have kept them
    down before."""
    found = measure_ceilings(setting)
    stored = database.fact("ceilings", setting.text)
    if isinstance(stored, dict):
        found = found.highest(
            Ceilings(
                stored["flops_per_us"], tuple((int(s), float(r)) for s, r in stored["bandwidths"]), stored["launch_us"]
            )
        )
    database.store_fact("ceilings", setting.text, asdict(found))
    return found


def compile_program(program: Program, toolchain: Toolchain, target: Target) -> bytes:
    """The plan's shared library, kept in the cache: one clang takes seconds for a hundred kernels."""
    digest = hashlib.sha256(f"{toolchain.version}|{target}|{program.source}".encode()).hexdigest()[:32]
    cached = korch_cache_dir() / "code" / f"{digest}.so"
    if cached.exists():
        return cached.read_bytes()
    with tempfile.TemporaryDirectory(prefix="korch-") as folder:
        path = Path(folder) / "plan.so"
        compile_shared(toolchain, program.source, target, path, timeout=600.0)
        code = path.read_bytes()
    cached.parent.mkdir(parents=True, exist_ok=True)
    temporary = cached.with_name(f".{cached.name}.{secrets.token_hex(4)}")
    temporary.write_bytes(code)
    os.replace(temporary, cached)
    return code
