"""Writing a .korch file and reading its header and sections: no code in it is ever run here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from korch.artifact.format import MAGIC, open_artifact
from korch.artifact.pack import Artifact, Plan, Tensor, Weights, pack
from korch.artifact.runtime import example_text, runtime_source
from korch.codegen.target import target_named
from korch.errors import ArtifactError

BIAS = np.arange(5, dtype=np.float32)
SCALE = np.array(2.0, np.float64)


def plan(rows: int = 2, target: str = "x86_64_v3", code: bytes = b"code") -> Plan:
    weights = Weights(256, ((0, BIAS), (64, np.empty(0, np.int8)), (128, SCALE)))
    return Plan(
        target_named(target), ((rows, 3),), ((),), code, weights, "int x;\n", kernels=({"name": "k", "cost_us": 1.5},)
    )


def artifact(*plans: Plan, name: str = "x") -> Artifact:
    runtimes = {"x86_64": b"runtime", "aarch64": b"other runtime"}
    return Artifact((Tensor(name, "float32"),), (Tensor("y", "bool"),), plans or (plan(),), runtimes)


def test_equal_artifacts_give_equal_files(tmp_path):
    pack(artifact(), tmp_path / "a.korch")
    pack(artifact(), tmp_path / "b.korch")
    assert (tmp_path / "a.korch").read_bytes() == (tmp_path / "b.korch").read_bytes()


def test_sections_are_aligned_and_read_back(tmp_path):
    path = tmp_path / "a.korch"
    pack(artifact(plan(2), plan(3, code=b"other code")), path)
    file = open_artifact(path)
    file.check()
    assert all(s.offset % 4096 == 0 for s in file.sections.values())
    assert file.read("code:0") == b"code" and file.read("code:1") == b"other code"
    assert file.read("source:0") == b"int x;\n" and file.read("runtime:x86_64") == b"runtime"
    weights = file.read("weights:0")
    assert len(weights) == 256
    np.testing.assert_array_equal(np.frombuffer(weights[:20], np.float32), BIAS)
    assert weights[128:136] == SCALE.tobytes() and not any(weights[20:128]) and not any(weights[136:])
    assert hashlib.sha256(weights).hexdigest() == file.sections["weights:0"].sha256
    assert file.manifest["plans"][1]["inputs"] == [[3, 3]]
    assert file.manifest["plans"][0]["machine"] == "x86_64"


def test_equal_sections_are_stored_once(tmp_path):
    pack(artifact(plan(2), plan(3)), tmp_path / "a.korch")
    sections = open_artifact(tmp_path / "a.korch").sections
    assert sections["weights:0"] == sections["weights:1"] and sections["code:0"] == sections["code:1"]


def test_a_long_manifest_moves_the_sections(tmp_path):
    many = dataclasses.replace(plan(), kernels=tuple({"name": f"kernel_{k}"} for k in range(5000)))
    pack(artifact(many), tmp_path / "a.korch")
    file = open_artifact(tmp_path / "a.korch")
    file.check()
    assert len(file.manifest["plans"][0]["kernels"]) == 5000 and file.read("code:0") == b"code"


def test_names_may_be_any_text(tmp_path):
    pack(artifact(name="Eingabe für 模型 😀"), tmp_path / "a.korch")
    assert open_artifact(tmp_path / "a.korch").manifest["inputs"][0]["name"] == "Eingabe für 模型 😀"


def test_a_missing_section_is_named(tmp_path):
    pack(artifact(), tmp_path / "a.korch")
    with pytest.raises(ArtifactError, match=r"no section 'code:7'; it has: runtime:x86_64"):
        open_artifact(tmp_path / "a.korch").read("code:7")


def test_failing_to_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.korch"
    path.write_bytes(b"before")
    overlapping = dataclasses.replace(plan(), weights=Weights(16, ((0, BIAS),)))
    with pytest.raises(ValueError, match="exceeds"):
        pack(artifact(overlapping), path)
    with pytest.raises(ValueError):
        pack(artifact(dataclasses.replace(plan(), certificate={"gap": float("nan")})), path)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_artifacts_that_do_not_fit_together_are_refused(tmp_path):
    path = tmp_path / "a.korch"
    with pytest.raises(ValueError, match="one shape for each"):
        pack(artifact(dataclasses.replace(plan(), inputs=())), path)
    with pytest.raises(ValueError, match="twice"):
        pack(dataclasses.replace(artifact(), outputs=(Tensor("y", "bool"),) * 2), path)
    with pytest.raises(ValueError, match="runtime for x86_64 is missing"):
        pack(dataclasses.replace(artifact(), runtimes={}), path)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.korch"
    pack(artifact(), path)
    return path, path.read_bytes()


def test_changed_bytes_of_the_head_are_an_error(written):
    path, data = written
    manifest, table = (int.from_bytes(data[k : k + 8], "little") for k in (8, 16))
    for position in (*range(64), *range(64, 64 + manifest + table, 17)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        with pytest.raises(ArtifactError):
            open_artifact(path)


def test_every_truncation_is_an_error(written):
    path, data = written
    for size in [*range(0, 300), *range(300, len(data), 2001)]:
        path.write_bytes(data[:size])
        with pytest.raises(ArtifactError, match="truncated" if size >= 8 else r"not a \.korch file|truncated"):
            open_artifact(path)


def test_changed_sections_are_named(written):
    path, data = written
    for name, section in open_artifact(path).sections.items():
        at = section.offset + section.size // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArtifactError, match=f"the hash of its {name} does not match"):
            open_artifact(path).check()
        with pytest.raises(ArtifactError, match=f"the hash of its {name} does not match"):
            open_artifact(path).read(name)


def test_other_files_are_told_apart(written, tmp_path):
    path, data = written
    (tmp_path / "b").write_bytes(b"\x08\x07\x12\x0bpytorch")
    with pytest.raises(ArtifactError, match=r"b is not a \.korch file"):
        open_artifact(tmp_path / "b")
    path.write_bytes(b"KORCHv02" + data[8:])
    with pytest.raises(ArtifactError, match="has format '02' and this Korch reads '01'; update korch"):
        open_artifact(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(ArtifactError, match="damaged"):
        open_artifact(path)
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        open_artifact(tmp_path / "absent.korch")
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        open_artifact(tmp_path)


def test_the_manifest_can_be_read_without_korch(written):
    _, data = written
    assert data[:8] == MAGIC
    manifest = json.loads(data[64 : 64 + int.from_bytes(data[8:16], "little")])
    assert manifest["format"] == 1 and manifest["outputs"] == [{"name": "y", "dtype": "bool"}]


def test_the_example_is_the_exported_program():
    assert (Path(__file__).parents[2] / "examples" / "c" / "main.c").read_text() == example_text()


def test_the_runtime_is_one_text_of_its_own():
    text = runtime_source()
    assert '#include "' not in text and text.count("typedef struct korch_runtime {") == 1
