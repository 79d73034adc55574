"""Results that can be repeated bit for bit, on whatever processor."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from conftest import REPOSITORY
from protofed.cli import main as cli
from protofed.compute import numerics
from protofed.compute.imports import pack
from protofed.config.schema import ExecutionOptions, load_recipe, resolve
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.visits import workers

KERNELS = {
    "ATEN_CPU_CAPABILITY": ("default", "avx2", "avx512"),
    "MKL_ENABLE_INSTRUCTIONS": ("SSE4_2", "AVX2", "AVX512"),
    "ONEDNN_MAX_CPU_ISA": ("SSE41", "AVX2", "AVX512_CORE"),
}
"""What other processors would choose, by the variables that choose it."""

REPEATED = (
    "tests/visits/test_workers.py::test_dropout_batch_norm_and_odd_clients",
    "tests/visits/test_workers.py::test_checkpoints_pass_between_executors",
)
AND_SLOWER = (
    "tests/visits/test_workers.py::test_a_killed_process_changes_nothing",
    "tests/visits/test_workers.py::test_every_method_is_the_same_in_processes",
    "tests/experiments/test_running.py::test_resume_after_an_interrupt_equals_an_uninterrupted_run",
)


def python(code: str, **variables: str) -> str:
    """Run code in a process whose environment says nothing of kernels but ``variables``; return what it prints."""
    kept = {name: value for name, value in os.environ.items() if name not in numerics.CHOICES}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **variables}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["protofed", "--version"])
    with pytest.raises(SystemExit):
        cli.main()


def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "stay_with_parent", lambda: None)
    monkeypatch.setattr(workers, "_bench", None, raising=False)
    workers.begin(pack(slice), Mock(), Path(), torch.get_num_threads())


@pytest.mark.parametrize(
    "start",
    [
        command,
        worker,
        lambda _: load_data(resolve(load_recipe("quickstart"))),
        lambda _: Hardware.of(ExecutionOptions()),
    ],
    ids=["command", "worker", "data", "run"],
)
def test_every_way_in_asks_mkl(start, monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    start(monkeypatch)
    assert os.environ["MKL_CBWR"] == "AUTO"


@pytest.mark.slow
def test_an_import_changes_nothing():
    assert python("import os, protofed.api\nprint(os.environ.get('MKL_CBWR'))") == "None"


@pytest.mark.slow
def test_an_actor_asks_mkl():
    code = """
        import os, ray
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        @ray.remote
        class Actor:
            def look(self):
                import protofed_flower.client_app
                return os.environ.get("MKL_CBWR")
        print(os.environ.get("MKL_CBWR"), ray.get(Actor.remote().look.remote()))
        ray.shutdown()
    """
    import textwrap

    found = python(textwrap.dedent(code), RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
    assert found.splitlines()[-1] == "None AUTO"


def test_these_tests_ask_mkl():
    assert os.environ["MKL_CBWR"]


@pytest.mark.parametrize("chosen", ["COMPATIBLE", ""])
def test_the_user_decides(chosen, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", chosen)
    numerics.prepare()
    assert os.environ["MKL_CBWR"] == chosen


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ""),
        ({"GOMP_SPINCOUNT": "7"}, "GOMP_SPINCOUNT=7"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "OMP_WAIT_POLICY=PASSIVE"),
    ],
    ids=["default", "count", "policy"],
)
def test_how_threads_wait_is_the_users_choice(monkeypatch, chosen, expected):
    for name in numerics.WAITING:
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    numerics.prepare()
    assert numerics.waiting() == expected


LOOK = """
import warnings; warnings.simplefilter("error")
from protofed.compute import numerics
{}
print(numerics.depends_on_addresses())
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="a torch without MKL")
class TestAddresses:
    """MKL's kernels without AVX2 stand for those that it chooses on AMD's processors."""

    @pytest.fixture(autouse=True, scope="class")
    def _sensitive(self):
        found = python(LOOK.format(""), MKL_CBWR="", MKL_ENABLE_INSTRUCTIONS="SSE4_2")
        if found != "True":
            pytest.skip("this MKL's results do not depend on addresses, whatever it is told")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "before",
        ["", "import torch; torch.set_num_threads(2); torch.ones(9, 9).add(1).sum()"],
        ids=["first", "after torch"],
    )
    def test_products_do_not_depend_on_them(self, before):
        code = LOOK.format(f"{before}\nnumerics.prepare()\nnumerics.warn_if_unrepeatable()")
        assert python(code, MKL_ENABLE_INSTRUCTIONS="SSE4_2") == "False"

    @pytest.mark.slow
    def test_after_the_first_product_it_is_too_late_and_said(self):
        code = (
            "import torch; torch.ones(2, 2) @ torch.ones(2, 2)\nimport warnings\n"
            "from protofed.compute import numerics\nnumerics.prepare()\n"
            "with warnings.catch_warnings(record=True) as found: numerics.warn_if_unrepeatable()\n"
            "print(*(w.message for w in found))"
        )
        found = python(code, MKL_ENABLE_INSTRUCTIONS="SSE4_2")
        assert "start with MKL_CBWR=AUTO in the environment" in found
        assert "\n" not in found


def test_facts_name_what_decides(monkeypatch):
    for name in numerics.CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert numerics.facts() == {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }


def repeat(tests: tuple[str, ...], kernels: dict[str, str], cache: Path) -> None:
    """Run tests of what is promised bit for bit in a process with these kernels."""
    arguments = ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--basetemp", str(cache), *tests]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **kernels},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
def test_promises_hold_with_the_oldest_kernels(tmp_path):
    repeat(REPEATED, {name: values[0] for name, values in KERNELS.items()}, tmp_path / "t")


@pytest.mark.slow
@pytest.mark.parametrize("chosen", list(product(*KERNELS.values())), ids="-".join)
def test_promises_hold_with_all_kernels(tmp_path, chosen):
    if "avx512" in chosen and not torch.cpu._is_avx512_supported():
        pytest.skip("this processor has no AVX-512, which torch uses all the same where it is told to")
    same = chosen in list(zip(*KERNELS.values(), strict=True))
    repeat(REPEATED + AND_SLOWER * same, dict(zip(KERNELS, chosen, strict=True)), tmp_path / "t")
