"""Simulations on a Ray cluster of two machines without a shared disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import tomli_w
from safetensors.torch import load_file

pytest.importorskip("ray", reason="ray is not installed: pip install protofed-flower")

from raycluster import RayCluster, own_disks

from deployment import BIN, rounds_of, until
from network import locally, wanted, write_folders
from protofed.experiments import Experiment
from support import client, federated, ordinary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not own_disks(), reason="two machines on one need mount namespaces (unshare --mount)"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "data", federated(*ordinary().clients, client("dan", [2, 2, 2, 0, 0, 3])))


def begun(cluster: RayCluster, chosen: Experiment, out: Path, *words: str) -> subprocess.Popen[str]:
    """Start a run on the cluster; its directory is on the first machine."""
    recipe = out.with_suffix(".toml")
    recipe.write_text(tomli_w.dumps(chosen.to_tree()))
    command = [
        str(BIN / "protofed"),
        "run",
        str(recipe),
        "--engine",
        "flower",
        "--quiet",
        "--out",
        str(out),
        *words,
    ]
    return subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(run: subprocess.Popen[str]) -> str:
    said = run.communicate(timeout=600)[0]
    assert run.returncode == 0, said
    return said


def same(expected: Path, found: Path) -> None:
    """Bit for bit: records, personal models, prototypes and the server's state."""

    def records(path: Path) -> list[dict[str, object]]:
        return [{name: value for name, value in record.items() if name != "seconds"} for record in rounds_of(path)]

    assert records(expected) == records(found)
    files = sorted(path.relative_to(expected) for path in expected.rglob("*.safetensors"))
    assert files == sorted(path.relative_to(found) for path in found.rglob("*.safetensors"))
    assert [f for f in files if (expected / f).read_bytes() != (found / f).read_bytes()] == []
    assert all(t.isfinite().all() for f in files for t in load_file(expected / f).values())


def test_the_numbers_are_those_of_the_local_engine(data, tmp_path):
    """For a method with much state at its clients, and for a plain one."""
    (tmp_path / "runs").mkdir()
    with RayCluster(tmp_path / "runs") as cluster:
        for method in ("protonorm", "fedproto"):
            chosen = wanted(method, data)
            out = tmp_path / "runs" / method
            run = begun(cluster, chosen, out)
            for machine in (0, 1):
                until(lambda: cluster.visiting(machine), 300, f"a visit on machine {machine}", pause=0.01)  # noqa: B023
            ended(run)
            same(locally(chosen, tmp_path / f"local-{method}").directory, out)


def test_a_machine_that_dies_ends_a_run_of_all_clients_which_goes_on_with_the_same_numbers(data, tmp_path):
    (tmp_path / "runs").mkdir()
    chosen = wanted("protonorm", data, rounds=12, training__lr=0.005, participation__min_clients=4)
    out = tmp_path / "runs" / "run"
    with RayCluster(tmp_path / "runs") as cluster:
        run = begun(cluster, chosen, out)
        until(lambda: len(rounds_of(out)) == 3, 300, "three rounds")
        until(lambda: cluster.visiting(1), 60, "a visit on machine 1", pause=0.001)
        cluster.kill(1)
        said = run.communicate(timeout=600)[0]
        assert run.returncode == 2, said
        assert len(rounds_of(out)) < 12
        ended(begun(cluster, chosen, out, "--resume"))
    same(locally(chosen, tmp_path / "local").directory, out)
