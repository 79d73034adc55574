"""What a process imports is what it uses: other packages take longer than the first rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from protofed.data.builtin import read_digits

NAMED = "print('\\n' + __import__('json').dumps(sorted(sys.modules)))"
LINE = {
    *("protofed_flower", "protofed_lab", "protofed_papers"),  # their commands
    "typer",
    "rich",
    "click",
    "shellingham",
    "annotated_doc",
    "pygments",
    "markdown_it",
    "mdurl",
    "linkify_it",  # which markdown_it imports where somebody else brought it
    "uc_micro",
    "colorama",
    "attr",
}
TORCH = {"torch", "torchgen", "numpy", "cuda", "triton", "typing_extensions", "tqdm", "dill", "sympy", "mpmath"}
CORE = {
    *TORCH,
    "safetensors",
    "msgspec",
    "tomli_w",
    "jinja2",
    "markupsafe",
    "packaging",
    "yaml",
    "psutil",
    "opt_einsum",
}
FIGURES = {
    *("matplotlib", "mpl_toolkits", "PIL", "pyparsing", "dateutil", "six", "cycler", "kiwisolver", "contourpy"),
    *("fontTools", "defusedxml", "olefile", "numexpr", "simsimd"),
    *("scipy", "charset_normalizer"),  # scipy.special, for intervals; and what numpy.f2py imports
}
HEAVY = {
    *("torchvision", "timm", "sklearn", "joblib", "pandas", "pyarrow", "datasets", "flwr_datasets"),
    *("seaborn", "flwr", "ray", "grpc", "nicegui", "zstandard", "cryptography", "aiohttp", "huggingface_hub"),
}
"""What protofed can use and a plain run does not; other packages stay away as well, whatever they are."""
START = {"sitecustomize", "usercustomize", "cython_runtime"}
SLOW = {"torch._dynamo", "torch._inductor", "torch.onnx", "torch._export.serde"}
"""Parts of torch that take as long to import as another package."""


def loaded(code: str) -> set[str]:
    """Return the modules of a new process that has run ``code``."""
    source = f"import sys\n{code}\n{NAMED}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    """Return the packages among modules; what begins with ``_`` is a compiled part of one, or of Python's start."""
    names = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"protofed", *START}
    return {name for name in names if not name.startswith("_")}


def command(arguments: Sequence[str]) -> str:
    """Return code that carries out a command."""
    return f"""
from protofed.cli.main import main
sys.argv[1:] = {list(arguments)!r}
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.slow
def test_a_plain_run_imports_what_it_uses(tmp_path):
    arguments = ["run", "quickstart", "method.name=fedproto", "rounds=1", "--out", str(tmp_path / "run")]
    found = loaded(command(arguments))
    assert (tmp_path / "run" / "report.html").is_file()
    assert {"torch", "matplotlib", "rich"} <= packages(found)
    assert not packages(found) & HEAVY
    assert packages(found) <= CORE | LINE | FIGURES
    assert not found & SLOW


def test_help_imports_only_what_reads_the_line():
    assert packages(loaded(command(["--help"]))) <= LINE


def test_windows_is_told_what_to_do():
    source = "import os; os.name = 'nt'; import protofed"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("on Windows, install it inside WSL")


def test_the_package_imports_nothing():
    assert packages(loaded("import protofed")) == set()


@pytest.mark.slow
def test_the_first_name_that_is_used_imports_no_figures():
    found = loaded("import protofed; protofed.run")
    assert packages(found) <= CORE
    assert not found & SLOW


@pytest.mark.slow
def test_processes_begin_with_what_an_experiment_needs():
    """The server from which they are forked has no threads of torch, which would be missing in them."""
    found = loaded(
        "import numpy, psutil; threads = psutil.Process().num_threads()  # those of its BLAS survive\n"
        "import protofed.experiments.preload; assert psutil.Process().num_threads() == threads"
    )
    assert packages(found) <= CORE
    assert {"protofed.experiments.executors", "protofed.methods.fedproto", "protofed.data.loading"} <= found


def test_the_digits_are_those_of_scikit_learn(monkeypatch):
    from sklearn.datasets import load_digits

    expected = load_digits()
    for _ in range(2):
        images, labels = read_digits()
        assert torch.equal(torch.from_numpy(images), torch.from_numpy(expected.images))
        assert labels.tolist() == expected.target.tolist()
        assert (images.shape, str(labels.dtype)) == ((1797, 8, 8), "int64")
        monkeypatch.setattr(
            "protofed.data.builtin.find_spec", lambda name: None
        )  # the second time, it asks scikit-learn
