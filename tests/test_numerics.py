"""Results that can be repeated bit for bit, on whatever processor."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from conftest import REPOSITORY
from protofed.compute import numerics

KERNELS = {
    "ATEN_CPU_CAPABILITY": ("default", "avx2", "avx512"),
    "MKL_ENABLE_INSTRUCTIONS": ("SSE4_2", "AVX2", "AVX512"),
    "ONEDNN_MAX_CPU_ISA": ("SSE41", "AVX2", "AVX512_CORE"),
}
"""What other processors would choose, by the variables that choose it; a processor without them falls back."""

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
        [sys.executable, "-c", code], env={**kept, **variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WORKER = """
from concurrent.futures import ProcessPoolExecutor
from protofed.visits.workers import process_context
if __name__ == "__main__":
    import os, operator
    del os.environ["MKL_CBWR"]  # the process does it for itself
    with ProcessPoolExecutor(1, process_context()) as pool:
        print(pool.submit(os.environ.get, "MKL_CBWR").result())
"""


BEFORE_TORCH = """
import os, sys
sys.modules["torch"] = None  # it must have been asked when torch comes, and importing that takes seconds
try:
    import {}
except ModuleNotFoundError as error:
    assert "torch" in str(error)
print(os.environ["MKL_CBWR"])
"""


@pytest.mark.parametrize(
    "code",
    [
        BEFORE_TORCH.format("protofed"),
        pytest.param(BEFORE_TORCH.format("protofed.cli.main"), marks=pytest.mark.slow),
        pytest.param(BEFORE_TORCH.format("protofed.apps.flower.client_app"), marks=pytest.mark.slow),
        BEFORE_TORCH.format("protofed.apps.flower.server_app"),
        pytest.param(BEFORE_TORCH.format("protofed.apps.ui.demo.preload"), marks=pytest.mark.slow),
        pytest.param(BEFORE_TORCH.format("protofed.experiments.preload"), marks=pytest.mark.slow),
        WORKER.replace("os.environ.get", "os.getenv"),
    ],
    ids=["package", "command line", "client app", "server app", "demonstration", "experiment", "worker"],
)
def test_every_way_in_asks_mkl(code):
    assert python(code) == "AUTO"


@pytest.mark.slow
def test_an_actor_asks_mkl():
    code = """
        import os, ray
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        @ray.remote
        class Actor:
            def look(self):
                import protofed.apps.flower.client_app
                return os.environ.get("MKL_CBWR")
        print(os.environ.get("MKL_CBWR"), ray.get(Actor.remote().look.remote()))
        ray.shutdown()
    """
    import textwrap

    found = python(textwrap.dedent(code), RAY_USAGE_STATS_ENABLED="0")
    assert found.splitlines()[-1] == "None AUTO"


def test_these_tests_ask_mkl():
    assert os.environ["MKL_CBWR"]


@pytest.mark.parametrize("chosen", ["COMPATIBLE", ""])
def test_the_user_decides(chosen):
    assert python(BEFORE_TORCH.format("protofed"), MKL_CBWR=chosen) == chosen


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


LOOK = "import warnings; warnings.simplefilter('error')\n{}\nprint(numerics.depends_on_addresses())"


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="a torch without MKL")
class TestAddresses:
    """MKL's kernels without AVX2 stand for those that it chooses on AMD's processors."""

    @pytest.fixture(autouse=True, scope="class")
    def _sensitive(self):
        found = python(LOOK.format("from protofed import numerics"), MKL_CBWR="", MKL_ENABLE_INSTRUCTIONS="SSE4_2")
        if found != "True":
            pytest.skip("this MKL's results do not depend on addresses, whatever it is told")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "before",
        ["", "import torch; torch.set_num_threads(2); torch.ones(9, 9).add(1).sum()"],
        ids=["first", "after torch"],
    )
    def test_products_do_not_depend_on_them(self, before):
        code = LOOK.format(f"{before}\nfrom protofed import numerics\nnumerics.warn_if_unrepeatable()")
        assert python(code, MKL_ENABLE_INSTRUCTIONS="SSE4_2") == "False"

    @pytest.mark.slow
    def test_after_the_first_product_it_is_too_late_and_said(self):
        code = (
            "import torch; torch.ones(2, 2) @ torch.ones(2, 2)\nimport warnings\nfrom protofed import numerics\n"
            "with warnings.catch_warnings(record=True) as found: numerics.warn_if_unrepeatable()\n"
            "print(*(w.message for w in found))"
        )
        found = python(code, MKL_ENABLE_INSTRUCTIONS="SSE4_2")
        assert "import protofed before computing with torch" in found
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
    same = chosen in list(zip(*KERNELS.values(), strict=True))
    repeat(REPEATED + AND_SLOWER * same, dict(zip(KERNELS, chosen, strict=True)), tmp_path / "t")
