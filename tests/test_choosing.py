"""Every slow test is in one shard, and a change runs the tests of the methods that it touches."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

import choosing
from protofed.methods import methods

EVERY = {name: methods().get(name) for name in methods()}


def items(slow, quick):
    def marked(name, is_slow):
        return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: is_slow or None)

    return [*(marked(f"s{i}", True) for i in range(slow)), *(marked(f"q{i}", False) for i in range(quick))]


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("slow", [0, 1, 20])
def test_shards_share_the_slow_tests_out(slow, count):
    every = items(slow, 5)
    left = [{item.nodeid for item in choosing.shard(every, f"{n}/{count}")} for n in range(count)]
    run = [{f"s{i}" for i in range(slow)} - each for each in left]
    assert sorted(name for each in run for name in each) == sorted(f"s{i}" for i in range(slow))
    assert max(map(len, run)) - min(map(len, run)) <= 1
    assert not any(name.startswith("q") for each in left for name in each)


@pytest.mark.parametrize("which", ["", "8/8", "3", "-1/8", "a/b", "1/0"])
def test_what_is_no_shard_is_refused(which):
    with pytest.raises(pytest.UsageError, match="expected one such as 0/8 to 7/8"):
        choosing.shard(items(3, 0), which)


def test_a_change_runs_the_methods_that_it_touches():
    def chosen(*files, conformance=True):
        return choosing.methods_to_test(files, EVERY, conformance)

    assert chosen("README.md", "src/protofed/wire/codec.py") == choosing.KINDS
    assert chosen("src/protofed/methods/fedtgp.py") >= choosing.KINDS | {"fedtgp"}
    assert "tinyproto" in chosen("src/protofed/methods/tinyproto.py", conformance=False)
    for shared in ("methods/contract.py", "methods/parts/averaging.py", "visits/visit.py", "rounds/loop.py"):
        assert chosen(f"src/protofed/{shared}") == set(EVERY)
        assert chosen(f"src/protofed/{shared}", conformance=False) == choosing.KINDS
    assert choosing.methods_to_test(None, EVERY, conformance=True) == set(EVERY)
    assert (
        all((choosing.REPOSITORY / place).exists() for place in choosing.SHARED)
        or not (choosing.REPOSITORY / "src").exists()
    )  # tests of an installed wheel


def test_derived_methods_are_touched_with_those_they_derive_from():
    name, kind = next(
        (n, k) for n, k in EVERY.items() if k.__mro__[1].__module__ in {e.__module__ for e in EVERY.values()}
    )
    file = f"src/{kind.__mro__[1].__module__.replace('.', '/')}.py"
    assert name in choosing.methods_to_test([file], EVERY, conformance=True)


def test_the_change_is_what_the_parent_commit_lacks(tmp_path):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    assert choosing.touched(tmp_path) is None
    git("init")
    (tmp_path / "one").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    choosing.touched.cache_clear()
    assert choosing.touched(tmp_path) is None  # a shallow clone has no parent either
    (tmp_path / "two").write_text("2")
    git("add", ".")
    git("commit", "-m", "second")
    choosing.touched.cache_clear()
    assert choosing.touched(tmp_path) == {"two"}
