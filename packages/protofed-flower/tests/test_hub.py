"""The app and the baseline for Flower's collections: Flower takes them, and they say what the library does."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
import tomllib
import zipfile
from itertools import product

import pytest

pytest.importorskip("yaml")

import psutil
import yaml
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

import protofed
from conftest import REPOSITORY
from protofed.config.schema import apply_overrides, load_recipe, parse_overrides, resolve
from protofed.methods import methods
from support import script

HUB = REPOSITORY / "hub"
APPS = ("protofed-fedproto", "baseline-fedproto")
pytestmark = pytest.mark.skipif(not HUB.is_dir(), reason="runs in a checkout")


def settings(app: str) -> dict:
    return tomllib.loads((HUB / app / "pyproject.toml").read_text())


def readme(app: str) -> tuple[dict, str]:
    """Return the metadata and the text of an app's README."""
    _, head, text = (HUB / app / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text


def resolved(recipe: str, overrides: str):
    return resolve(apply_overrides(load_recipe(recipe), parse_overrides(overrides.split())))


@pytest.mark.parametrize("app", APPS)
def test_flower_builds_it(app):
    config, warnings = load_and_validate(HUB / app / "pyproject.toml")
    assert not warnings
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(HUB / app))) as bundle:
        licence = {"LICENSE"} if app == APPS[0] else set()
        assert set(bundle.namelist()) == {"pyproject.toml", "README.md", ".info/CONTENT", *licence}
    assert len(config["project"]["description"]) < 200


@pytest.mark.parametrize("app", APPS)
def test_it_is_the_app_that_the_library_writes(app):
    """But for its defaults, of which every one is a setting that the server reads."""
    own = settings(app)
    written = tomllib.loads((REPOSITORY / "packages/protofed-flower/src/protofed_flower/app.toml").read_text())
    theirs, ours = (tree["tool"]["flwr"]["app"] for tree in (written, own))
    assert ours["components"] == theirs["components"]
    assert set(ours["config"]) == set(theirs["config"])
    assert f"protofed-flower=={protofed.__version__}" in own["project"]["dependencies"]
    distribution = tomllib.loads((REPOSITORY / "packages/protofed-flower/pyproject.toml").read_text())["project"]
    assert distribution["version"] == protofed.__version__
    assert f"protofed=={protofed.__version__}" in distribution["dependencies"]
    assert [name for name in own["project"]["dependencies"] if name in distribution["dependencies"]]
    assert resolved(ours["config"]["recipe"], ours["config"]["overrides"]).method == "fedproto"


def test_the_app_of_the_hub_describes_itself():
    metadata, text = readme(APPS[0])
    assert set(metadata) == {"tags", "dataset", "framework"}
    assert all(isinstance(value, list) and value for value in metadata.values())
    assert (HUB / APPS[0] / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    assert f"FedProto and {len([*methods()]) - 1} further methods" in settings(APPS[0])["project"]["description"]
    config = settings(APPS[0])["tool"]["flwr"]["app"]["config"]
    assert f"`{config['overrides']}`" in text
    for options in re.findall(r"""overrides="([^"]+)\"""", text):
        assert resolved("quickstart", options).method == "tinyproto"


def test_the_table_of_the_baseline_is_the_committed_results():
    """Made anew by the tool; and by a naive look at the CSV some three runs of three seeds give every number."""
    tool = script(REPOSITORY / "papers/tools/reproduction_pages.py")
    paper = tool.papers()["fedproto"]
    page = (HUB / APPS[1] / "README.md").read_text()
    assert tool.fill(page, "baseline", "\n".join(tool.baseline(paper))) == page

    found: dict[str, dict[int, list[float]]] = {}
    with (REPOSITORY / "papers/src/protofed_papers/results/full.csv").open() as file:
        for row in csv.DictReader(file):
            if row["recipe"] in ("fedproto-mnist", "fedproto-mnist-mh") and row["state"] == "done":
                found.setdefault(row["method"], {}).setdefault(int(row["seed"]), []).append(
                    100 * float(row["client_mean"])
                )
    rows = re.findall(r"^\| MNIST, stdev n 2 \| ([\w-]+) \| (.*?) \| (.*?) \| (.*?) \|", page, re.M)
    assert {"local", "fixed_etf", "fedproto", "fedproto-mh"} <= {method for method, *_ in rows}
    assert len(rows) == 8
    for method, *cells in rows:
        possible = set()
        for runs in product(*(found[method][seed] for seed in (0, 1, 2))):
            half = 4.302653 * statistics.stdev(runs) / math.sqrt(3)
            possible.add(f"{statistics.fmean(runs):.1f} ± {half:.1f}")
        assert [cell for cell in cells if re.search(r"[\d.]+ ± [\d.]+", cell)[0] not in possible] == []
    assert page.count("not run") > 30


@pytest.mark.slow
def test_flower_runs_the_app_with_the_numbers_of_a_local_run(tmp_path):
    from deployment import Programs, free_port

    home, out = tmp_path / "flower", tmp_path / "run"
    home.mkdir()
    (home / "config.toml").write_text('[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local:"\n')
    small = {"method.name": "fedproto", "data.clients": 4, "data.samples": 200, "rounds": 2, "model.d": 16}
    overrides = " ".join(f"{name}={value}" for name, value in small.items())
    programs = Programs(tmp_path, home)
    programs.environment |= {
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
    }
    try:
        programs.flwr(
            f"run {HUB / APPS[0]} --stream --federation-config 'num-supernodes=4 client-resources-num-cpus=1' "
            f"""-c 'overrides="{overrides}" out="{out}"'"""
        )
        assert '"status": "finished:completed"' in programs.flwr("list --format json")
    finally:
        stop_local_superlink(home)
    local = protofed.run("quickstart", small, out=tmp_path / "local")
    assert [r.accuracy for r in protofed.load_run(out).rounds] == [r.accuracy for r in local.rounds]


def stop_local_superlink(home) -> None:
    """Kill the SuperLink that ``flwr run`` has left behind, with all that it started."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME") == str(home):
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
