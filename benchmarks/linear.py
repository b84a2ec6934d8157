"""How close linear kernels come to one thread's peak, for the layers of five networks.

    python benchmarks/linear.py [--target host] [--only candy] [--seconds 0.3] [--best]

Every kernel that the C backend offers for a layer runs on one thread, in bursts that alternate with a loop of
fused multiply-adds; the fraction is that of the loop's own best speed. Data are warm. Time is that of the
thread, so that other processes disturb the caches only.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from korch.codegen.c.linear import linear_implementations
from korch.codegen.c.prelude import prelude
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.ir.fragment import Fragment
from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType


@dataclass(frozen=True)
class Layer:
    """A layer's fragment, and the number of its multiplications and additions."""

    name: str
    fragment: Fragment
    operations: float

    def activated(self, activation: str) -> Layer:
        """The layer with a bias for each channel and an activation (relu, silu) fused behind it."""
        old = self.fragment
        types, layouts = dict(old.graph.types), dict(old.layouts)
        definitions = list(old.graph.definitions)
        result, last = types["t0"], layouts.pop("t0")
        axis = 1 if definitions[0].primitive == "conv" else len(result.shape) - 1
        types["bias"], types["c0"] = (
            TensorType(DType.FLOAT32, result.shape[axis : axis + 1]),
            TensorType(DType.FLOAT32, ()),
        )
        layouts["bias"] = Layout.row_major(types["bias"].shape)

        def op(primitive: str, *operands: str, **attributes: Attribute) -> str:
            name = f"t{len(definitions)}"
            types[name] = result
            definitions.append(Definition(primitive, operands, (name,), tuple(sorted(attributes.items()))))
            return name

        y = op("add", "t0", op("broadcast", "bias", shape=result.shape, axes=(axis,)))
        scalar = op("broadcast", "c0", shape=result.shape, axes=())
        if activation == "relu":
            y = op("max", y, scalar)
        else:
            y = op("mul", y, op("div", scalar, op("add", scalar, op("exp", op("neg", y)))))
        layouts[y] = last
        constants = {"c0": np.asarray(0 if activation == "relu" else 1, np.float32)}
        inputs = (*old.graph.inputs, ("bias", "bias"))
        graph = Graph(types, inputs, ((y, y),), tuple(definitions), constants)
        return Layer(self.name, Fragment(graph, old.weights | {"bias"}, layouts), self.operations)


def fragment_of(
    name: str, inputs: list[tuple[int, ...]], weights: list[int], layouts: list[Layout], **attributes: Attribute
) -> tuple[Fragment, tuple[int, ...]]:
    """One linear primitive on inputs of these shapes, of which `weights` are constant."""
    types = {f"i{k}": TensorType(DType.FLOAT32, s) for k, s in enumerate(inputs)}
    names = tuple(types)
    (result,) = TABLE[name].infer(list(types.values()), attributes)
    types["t0"] = result
    definition = Definition(name, names, ("t0",), tuple(sorted(attributes.items())))
    graph = Graph(types, tuple((v, v) for v in names), (("t0", "t0"),), (definition,))
    last = Layout.channels_last if name == "conv" else Layout.row_major
    placed = {**dict(zip(names, layouts, strict=True)), "t0": last(result.shape)}
    return Fragment(graph, frozenset(f"i{k}" for k in weights), placed), result.shape


def conv(network: str, cin: int, cout: int, size: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Layer:
    """A square convolution on a map of size x size, held channels-last (an image of 3 channels row-major)."""
    x, w = (1, cin, size, size), (cout, cin // groups, kernel, kernel)
    layouts = [Layout.row_major(x) if cin == 3 else Layout.channels_last(x), Layout.row_major(w)]
    fragment, shape = fragment_of(
        "conv", [x, w], [1], layouts, strides=(stride,) * 2, dilations=(1, 1), pads=(kernel // 2,) * 4, groups=groups
    )  # fmt: skip
    kind = "depthwise " if groups == cin else ""
    name = f"{network}: {kind}{cin}->{cout} {kernel}x{kernel}{f' /{stride}' if stride > 1 else ''} @{size}"
    return Layer(name, fragment, 2.0 * np.prod(shape) * np.prod(w[1:]))


def depthwise(network: str, channels: int, size: int, kernel: int, stride: int = 1) -> Layer:
    return conv(network, channels, channels, size, kernel, stride, channels)


def matmul(network: str, m: int, k: int, n: int) -> Layer:
    fragment, _ = fragment_of("matmul", [(m, k), (k, n)], [1], [Layout.row_major(s) for s in ((m, k), (k, n))])
    return Layer(f"{network}: {m}x{k}x{n}", fragment, 2.0 * m * n * k)


def attention(network: str, heads: int, queries: int, keys: int, depth: int, values: bool) -> Layer:
    """Scores (queries times transposed keys) or the weighted sum of values, [heads, tokens, depth]."""
    left = (heads, queries, keys if values else depth)
    right = (heads, left[2], depth if values else keys)
    layouts = [Layout.row_major(left), Layout.row_major(right)]
    if not values:
        layouts[1] = Layout.canonical(right, (0, 2, 1))
    fragment, _ = fragment_of("matmul", [left, right], [], layouts)
    name = f"{network}: {heads} heads {queries}x{keys}, {depth}: {'values' if values else 'scores'}"
    return Layer(name, fragment, 2.0 * heads * queries * keys * depth)


LAYERS: tuple[Layer, ...] = (
    conv("candy", 3, 32, 224, 9),
    conv("candy", 32, 64, 224, 3, 2),
    conv("candy", 64, 128, 112, 3, 2),
    conv("candy", 128, 128, 56, 3),
    conv("candy", 128, 64, 112, 3),
    conv("candy", 64, 32, 224, 3),
    conv("candy", 32, 3, 224, 9),
    conv("yolov4", 3, 32, 416, 3),
    conv("yolov4", 32, 64, 416, 3, 2),
    conv("yolov4", 64, 32, 208, 1),
    conv("yolov4", 32, 64, 208, 3),
    conv("yolov4", 64, 64, 104, 3),
    conv("yolov4", 128, 64, 104, 1),
    conv("yolov4", 128, 128, 52, 3),
    conv("yolov4", 256, 128, 52, 1),
    conv("yolov4", 128, 256, 52, 3),
    conv("yolov4", 256, 256, 26, 3),
    conv("yolov4", 256, 512, 26, 3),
    conv("yolov4", 512, 256, 26, 1),
    conv("yolov4", 512, 512, 13, 3),
    conv("yolov4", 512, 1024, 13, 3),
    conv("yolov4", 1024, 512, 13, 1),
    conv("yolov4", 512, 1024, 26, 3, 2),
    conv("yolov4", 1024, 255, 13, 1),
    conv("yolox", 16, 32, 104, 1),
    conv("yolox", 32, 32, 104, 1),
    conv("yolox", 64, 64, 52, 1),
    conv("yolox", 128, 128, 26, 1),
    conv("yolox", 256, 128, 13, 1),
    conv("yolox", 64, 80, 52, 1),
    conv("yolox", 64, 4, 52, 1),
    depthwise("yolox", 16, 208, 3, 2),
    depthwise("yolox", 32, 104, 3),
    depthwise("yolox", 64, 52, 5),
    depthwise("yolox", 128, 26, 5),
    depthwise("yolox", 256, 13, 5),
    matmul("segformer", 16384, 32, 32),
    matmul("segformer", 16384, 32, 128),
    matmul("segformer", 16384, 128, 32),
    matmul("segformer", 4096, 64, 256),
    matmul("segformer", 4096, 256, 64),
    matmul("segformer", 1024, 160, 160),
    matmul("segformer", 1024, 160, 640),
    matmul("segformer", 256, 256, 256),
    matmul("segformer", 256, 256, 1024),
    matmul("segformer", 256, 1024, 256),
    attention("segformer", 1, 16384, 256, 32, False),
    attention("segformer", 1, 16384, 256, 32, True),
    attention("segformer", 5, 1024, 256, 32, False),
    attention("segformer", 5, 1024, 256, 32, True),
    conv("efficientvit", 16, 64, 256, 1),
    conv("efficientvit", 64, 16, 256, 1),
    conv("efficientvit", 32, 128, 128, 1),
    conv("efficientvit", 128, 512, 32, 1),
    conv("efficientvit", 256, 1024, 16, 1),
    conv("efficientvit", 1024, 256, 16, 1),
    depthwise("efficientvit", 16, 256, 3),
    depthwise("efficientvit", 64, 256, 3, 2),
    depthwise("efficientvit", 128, 128, 3),
    depthwise("efficientvit", 256, 64, 3),
    depthwise("efficientvit", 512, 32, 3),
    depthwise("efficientvit", 1024, 16, 3),
    depthwise("efficientvit", 384, 32, 5),
    attention("efficientvit", 16, 16, 17, 1024, True),
    matmul("classifier", 1, 1280, 1000),
)


def _op(
    types: dict[str, TensorType], definitions: list[Definition], primitive: str, *operands: str, **attributes: Attribute
) -> str:
    """Adds a definition; the name of its result."""
    name = f"t{len(definitions)}"
    (types[name],) = TABLE[primitive].infer([types[v] for v in operands], attributes)
    definitions.append(Definition(primitive, operands, (name,), tuple(sorted(attributes.items()))))
    return name


def softmax_attention(network: str, heads: int, queries: int, keys: int, depth: int) -> Layer:
    """Rows of softmax(q k / sqrt(depth)) v; heads lie side by side in the tokens, as projections leave them."""
    shapes = {"i0": (heads, queries, depth), "i1": (heads, depth, keys), "i2": (heads, keys, depth), "c0": ()}
    types = {v: TensorType(DType.FLOAT32, s) for v, s in shapes.items()}
    definitions: list[Definition] = []
    op = functools.partial(_op, types, definitions)
    shape = (heads, queries, keys)
    x = op("div", op("matmul", "i0", "i1"), op("broadcast", "c0", shape=shape, axes=()))
    largest = op("broadcast", op("reduce_max", x, axes=(2,)), shape=shape, axes=(0, 1))
    e = op("exp", op("sub", x, largest))
    total = op("broadcast", op("reduce_sum", e, axes=(2,)), shape=shape, axes=(0, 1))
    y = op("transpose", op("matmul", op("div", e, total), "i2"), perm=(1, 0, 2))
    inputs = tuple((v, v) for v in ("i0", "i1", "i2"))
    orders = {"i0": (1, 0, 2), "i1": (2, 0, 1), "i2": (1, 0, 2), y: (0, 1, 2)}
    layouts = {v: Layout.canonical(types[v].shape, order) for v, order in orders.items()}
    constants = {"c0": np.asarray(math.sqrt(depth), np.float32)}
    graph = Graph(types, inputs, ((y, y),), tuple(definitions), constants)
    name = f"{network}: attention, {heads} heads {queries}x{keys}, {depth}"
    return Layer(name, Fragment(graph, frozenset(), layouts), 4.0 * heads * queries * keys * depth)


def separable(network: str, channels: int, size: int, stride: int, outputs: int) -> Layer:
    """A 3x3 depthwise convolution with bias, clipped below, and a 1x1 convolution."""
    shapes = {
        "i0": (1, channels, size, size), "i1": (channels, 1, 3, 3), "i2": (channels,), "i3": (outputs, channels, 1, 1),
        "c0": (),
    }  # fmt: skip
    types = {v: TensorType(DType.FLOAT32, s) for v, s in shapes.items()}
    definitions: list[Definition] = []
    op = functools.partial(_op, types, definitions)
    y = op("conv", "i0", "i1", strides=(stride,) * 2, dilations=(1, 1), pads=(1,) * 4, groups=channels)
    shape = types[y].shape
    y = op("add", y, op("broadcast", "i2", shape=shape, axes=(1,)))
    y = op("max", y, op("broadcast", "c0", shape=shape, axes=()))
    y = op("conv", y, "i3", strides=(1, 1), dilations=(1, 1), pads=(0,) * 4, groups=1)
    names = ("i0", "i1", "i2", "i3")
    last = {v: Layout.channels_last(types[v].shape) for v in ("i0", y)}
    layouts = {v: Layout.row_major(types[v].shape) for v in names} | last
    constants = {"c0": np.asarray(0, np.float32)}
    graph = Graph(types, tuple((v, v) for v in names), ((y, y),), tuple(definitions), constants)
    name = f"{network}: depthwise {channels}{f' /{stride}' if stride > 1 else ''} @{size}, 1x1 to {outputs}"
    operations = 2.0 * np.prod(shape) * (9 + outputs)
    return Layer(name, Fragment(graph, frozenset(names[1:]), layouts), operations)


PAIRS: tuple[Layer, ...] = (
    softmax_attention("segformer", 1, 16384, 256, 32),
    softmax_attention("segformer", 2, 4096, 256, 32),
    softmax_attention("segformer", 5, 1024, 256, 32),
    softmax_attention("segformer", 8, 256, 256, 32),
    separable("efficientvit", 64, 256, 2, 32),
    separable("efficientvit", 128, 128, 1, 32),
    separable("efficientvit", 128, 128, 2, 64),
    separable("efficientvit", 256, 64, 1, 64),
)

CHAINS = 12  # independent accumulators of the loop: enough for the latency, few enough for 16 registers

HARNESS = f"""
static void run_all(const korch_runtime *r, int64_t tasks, void (*body)(void *, int64_t, int64_t), void *context) {{
  for (int64_t t = 0; t < tasks; ++t) body(context, t, 0);
}}
__attribute__((visibility("default")))
void run(int64_t kernel, char *scratch, char *const *p, int64_t times) {{
  korch_runtime runtime = {{1, 1, scratch, 0, 0, run_all}};
  for (int64_t i = 0; i < times; ++i) kernels[kernel](&runtime, p);
}}
__attribute__((visibility("default"))) void multiply_add(float *data, int64_t times) {{
  vf32 m = korch_load_f32(data), a = korch_load_f32(data + W);
  {" ".join(f"vf32 c{k} = korch_load_f32(data + {k});" for k in range(CHAINS))}
  for (int64_t i = 0; i < times; ++i) {{
    __asm__ volatile("" : : "r"(data) : "memory");
    {" ".join(f"c{k} = korch_fma_f32(m, c{k}, a);" for k in range(CHAINS))}
  }}
  korch_store_f32(data, {" + ".join(f"c{k}" for k in range(CHAINS))});
}}
"""


def aligned(size: int) -> np.ndarray:
    """Zeroed bytes at an address that is a multiple of 64."""
    whole = np.zeros(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


class Bench:
    """The kernels of some layers in one library, and the loop they are compared with."""

    def __init__(self, cases: list[tuple[Layer, Kernel]], target: Target, directory: Path) -> None:
        self.cases, self.target = cases, target
        names = [f"kernel_{k}" for k in range(len(cases))]
        bodies = [k.source.replace("KERNEL", name) for name, (_, k) in zip(names, cases, strict=True)]
        table = f"static void (*const kernels[])(const korch_runtime *, char *const *) = {{{', '.join(names)}}};"
        text = "\n".join([*bodies, table, HARNESS])
        path = directory / "linear.so"
        compile_shared(find_toolchain(), f"{prelude(target, text)}\n{text}", target, path, timeout=600)
        self.library = ctypes.CDLL(str(path))
        self.data = aligned(4096)

    def peak(self, times: int = 100_000) -> float:
        """Speed of the loop of multiply-adds, in operations per second."""
        start = time.thread_time()
        self.library.multiply_add(ctypes.c_void_p(self.data.ctypes.data), ctypes.c_int64(times))
        return 2 * times * CHAINS * self.target.lanes() / (time.thread_time() - start)

    def speeds(self, numbers: list[int], seconds: float) -> tuple[list[float], float]:
        """The best speed of each kernel, and of the loop, in operations per second."""
        calls = [self._call(k) for k in numbers]
        layer = self.cases[numbers[0]][0]
        times = max(1, int(5e7 / layer.operations))
        best, peak, rounds = [0.0] * len(calls), 0.0, 0
        end = time.perf_counter() + seconds * len(calls)
        while time.perf_counter() < end or rounds < 5:
            for k, call in enumerate(calls):
                start = time.thread_time()
                call(times)
                best[k] = max(best[k], layer.operations * times / (time.thread_time() - start))
                peak = max(peak, self.peak())
            rounds += 1
        return best, peak

    def _call(self, number: int):
        layer, kernel = self.cases[number]
        graph, rng = layer.fragment.graph, np.random.default_rng(0)
        inputs = {v: rng.standard_normal(graph.types[v].shape, np.float32) for v in graph.input_values}
        buffers: list[np.ndarray] = []
        for a in kernel.arguments:
            if a.kind == "packed":
                packed = kernel.packed[a.index]
                array = np.ascontiguousarray(packed.packer(*(inputs[w] for w in packed.weights)))
                buffers.append(aligned(array.nbytes))
                buffers[-1][:] = array.reshape(-1).view(np.uint8)
            elif a.kind == "scratch":
                buffers.append(aligned(kernel.scratch_bytes))
            else:
                buffers.append(aligned(graph.types[a.value].bytes))
                if a.value in inputs:
                    buffers[-1].view(np.float32)[:] = inputs[a.value].reshape(-1)
        scratch = aligned(kernel.worker_scratch_bytes)
        pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))

        def call(times: int) -> None:
            self.library.run(
                ctypes.c_int64(number), ctypes.c_void_p(scratch.ctypes.data), pointers, ctypes.c_int64(times)
            )
            assert buffers  # they live as long as the call

        return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kernel")
    parser.add_argument("--activation", choices=("none", "relu", "silu"), default="none", help="with a bias before")
    parser.add_argument("--best", action="store_true", help="print the fastest kernel of each layer only")
    options = parser.parse_args()
    target = target_named(options.target)
    layers = [layer for layer in (*LAYERS, *PAIRS) if options.only in layer.name]
    if options.activation != "none":
        layers = [layer.activated(options.activation) for layer in layers]
    cases: list[tuple[Layer, Kernel]] = []
    for layer in layers:
        kernels = linear_implementations(layer.fragment, target)
        if isinstance(kernels, str):
            print(f"{layer.name:48s} {kernels}", file=sys.stderr)
        else:
            cases += [(layer, kernel) for kernel in kernels]
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        bench = Bench(cases, target, Path(directory))
        print(f"{len(cases)} kernels compiled in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    for layer in layers:
        numbers = [k for k, (other, _) in enumerate(cases) if other is layer]
        if not numbers:
            continue
        speeds, peak = bench.speeds(numbers, options.seconds)
        ranked = sorted(zip(speeds, numbers, strict=True), reverse=True)
        for speed, number in ranked[:1] if options.best else ranked:
            microseconds = layer.operations / speed * 1e6
            label = cases[number][1].label
            print(
                f"{layer.name:46s} {label:46s} {microseconds:9.1f} us {speed / 1e9:7.1f} GF {speed / peak:5.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
