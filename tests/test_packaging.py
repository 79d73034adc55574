"""What stands around the library agrees with it: workflows, templates, metadata, the conda recipe and the paper."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from itertools import chain

import pytest

from conftest import REPOSITORY
from protofed.methods import methods

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(not (REPOSITORY / ".github").is_dir(), reason="runs in a checkout")

GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
COMMANDS = {"pipx", "uv", "uvx", "grep"}  #: Commands of the runner, or installed by the step before
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PAPER = path.read_text() if (path := REPOSITORY / "paper/paper.md").is_file() else ""


def load(path):
    return yaml.load(path.read_text(), yaml.BaseLoader)  # in which "on" is no truth value


def jobs(path):
    return load(path)["jobs"].values()


def steps(path):
    return list(chain.from_iterable(job.get("steps", ()) for job in jobs(path)))


def commands(path):
    """Return the words of every command of a workflow."""
    lines = "\n".join(step["run"] for step in steps(path) if "run" in step).splitlines()
    return [[w for w in shlex.split(line) if not re.match(r"[A-Z_]+=", w)] for line in lines if line.strip()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_workflows_call_what_exists(path):
    found = load(path)
    assert set(found) <= {"name", "on", "permissions", "concurrency", "jobs"}
    for words in commands(path):
        program = words[0]
        if program.startswith("fresh/bin/"):
            assert program.removeprefix("fresh/bin/") in PROJECT["scripts"]
        elif "/" in program:
            assert (REPOSITORY / program).is_file(), program
            assert (REPOSITORY / program).stat().st_mode & 0o100, program
        else:
            assert program in COMMANDS, program
        for name in ("constraints.txt", "pyproject.toml"):
            assert name not in words or (REPOSITORY / name).is_file()
    for job in jobs(path):
        assert "uses" in job or "timeout-minutes" in job
        if "uses" in job:
            assert (REPOSITORY / job["uses"]).is_file()
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(found["jobs"])


def test_workflows_run_the_supported_pythons():
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert supported == ["3.11", "3.12", "3.13"]
    matrices = [job["strategy"]["matrix"] for path in WORKFLOWS for job in jobs(path) if "strategy" in job]
    assert [matrix["python"] for matrix in matrices if "python" in matrix] == [supported, supported]
    shards = [matrix["shard"] for matrix in matrices if "shard" in matrix]
    assert shards == [[str(n) for n in range(8)]]  # every night all of them


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_actions_are_pinned_and_may_do_little(path):
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] == "false"
    assert load(path)["permissions"] == {"contents": "read"}
    granted = [(job["permissions"], job.get("environment")) for job in jobs(path) if "permissions" in job]
    assert granted == ([({"id-token": "write"}, "release")] if path.stem == "publish" else [])
    text = path.read_text()
    assert "secrets." not in text
    assert "pull_request_target" not in text
    assert not re.search(r"run:.*\$\{\{ *github\.", text)  # what others may name is no part of a command


def test_only_what_was_tested_is_published():
    publish = load(GITHUB / "workflows/publish.yml")
    assert publish["on"] == {"push": {"tags": ["v[0-9]*"]}}
    assert publish["jobs"]["publish"]["needs"] == "wheels"
    assert publish["jobs"]["wheels"] == {"needs": "version", "uses": "./.github/workflows/wheels.yml"}
    wheels = load(GITHUB / "workflows/wheels.yml")
    assert "workflow_call" in wheels["on"]
    materials = wheels["jobs"]["materials"]["steps"][-1]["with"]["path"].split()
    written = [w for words in commands(GITHUB / "workflows/wheels.yml") for w in words if w.endswith(".json")]
    assert written == materials


def test_templates_are_forms_that_github_reads():
    forms = {path.stem: load(path) for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"}
    assert set(forms) == {"bug", "wrong-number", "new-method"}
    for form in forms.values():
        assert {"name", "description", "body"} <= set(form)
        inputs = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in inputs}) == len(inputs)
        assert {part["type"] for part in inputs} <= {"input", "textarea", "checkboxes", "dropdown"}
        assert all(part["attributes"].get("label") for part in inputs)
        assert any(part.get("validations", {}).get("required") == "true" for part in inputs)
    updated = {update["package-ecosystem"] for update in load(GITHUB / "dependabot.yml")["updates"]}
    assert updated == {"github-actions", "pip"}


def test_pages_for_github_name_files_that_exist():
    texts = [REPOSITORY / "SECURITY.md", *GITHUB.rglob("*.md"), *(GITHUB / "ISSUE_TEMPLATE").glob("*.yml")]
    named = {name for path in texts for name in re.findall(r"(?:docs/)?[\w./-]+\.(?:md|ipynb)\b", path.read_text())}
    assert {"docs/security.md", "docs/privacy.md", "SECURITY.md", "CHANGELOG.md"} <= named
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []
    assert "@" not in (REPOSITORY / "SECURITY.md").read_text()


def test_metadata_agree():
    meta = json.loads((REPOSITORY / "codemeta.json").read_text())
    citation = load(REPOSITORY / "CITATION.cff")
    for key in ("name", "description", "keywords"):
        assert meta[key] == PROJECT[key]
    assert meta["softwareRequirements"] == PROJECT["dependencies"]
    assert meta["license"].rpartition("/")[2] == PROJECT["license"] == citation["license"]
    assert meta["runtimePlatform"] == f"Python {PROJECT['requires-python']}"
    assert meta["version"] == citation["version"]
    assert meta["datePublished"] == citation["date-released"]
    assert [a["name"] for a in meta["author"]] == [a["name"] for a in citation["authors"]]
    assert (REPOSITORY / meta["readme"]).is_file()


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = load(REPOSITORY / "conda/recipe.yaml")
    other = {
        "torch": "pytorch",
        "matplotlib": "matplotlib-base",
        "huggingface-hub": "huggingface_hub",
    }  # their names there
    asked = [re.fullmatch(r"([\w-]+)(.*)", each).groups() for each in PROJECT["dependencies"]]
    wanted = [
        f"python {PROJECT['requires-python']}",
        *(f"{other.get(name, name)} {limit}" for name, limit in asked),
    ]
    assert recipe["requirements"]["run"] == wanted
    assert recipe["context"]["version"] == PROJECT["version"]
    (script,) = recipe["build"]["python"]["entry_points"]
    assert dict([script.split(" = ")]) == PROJECT["scripts"]
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {each.replace(">=", " >=") for each in build} <= set(recipe["requirements"]["host"])
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]


# The paper.


def head_of_paper():
    return yaml.load(PAPER.split("---\n")[1], yaml.BaseLoader)


def test_the_paper_has_the_parts_and_the_authors_that_it_must_have():
    citation, head = load(REPOSITORY / "CITATION.cff"), head_of_paper()
    assert head["title"] == citation["title"]
    assert [a["name"] for a in head["authors"]] == [a["name"] for a in citation["authors"]]
    headings = re.findall(r"^# (.*)$", PAPER, re.M)
    assert {"Summary", "Statement of need", "State of the field", "References"} <= set(headings)
    assert 250 < len(PAPER.split("---\n")[2].split()) < 1000


def test_every_reference_is_cited_and_known_elsewhere_in_the_project():
    bib = (REPOSITORY / "paper/paper.bib").read_text()
    entries = dict(re.findall(r"^@\w+\{(\w+),(.*?)^\}", bib, re.M | re.S))
    cited = set(re.findall(r"@(\w+)", PAPER.split("---\n")[2]))
    assert cited == set(entries)
    known = [about.reference for _, about in methods().items()]
    papers = [p.read_text() for p in (REPOSITORY / "papers/src/protofed_papers/papers").glob("*.toml")]
    pages = [(REPOSITORY / page).read_text() for page in ("docs/deployment.md", "docs/performance.md")]
    everything = "\n".join([*known, *papers, *pages])
    for key, entry in entries.items():
        arxiv = re.findall(r"arXiv:([\d.]+\d)", entry)
        link = re.findall(r"\\url\{https://([^}]+)\}", entry)
        title = re.sub(r"[{}]", "", re.search(r"title\s*= \{(.*)\}", entry)[1])
        assert any(part in everything for part in [*arxiv, *link, title]), key
