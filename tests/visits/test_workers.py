"""Processes give what one process gives, bit for bit, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import torch

from protofed.errors import ConfigError, ProtofedError
from protofed.experiments.assemble import assemble
from protofed.methods import methods
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.rounds.loop import Federation
from protofed.visits.workers import Workers
from support import (
    assert_alike,
    client,
    degenerate,
    experiment,
    federated,
    few,
    ordinary,
    outcome,
    tensors_of,
    told,
)

METHODS = sorted(methods())


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on the number of threads, so the process that is compared with has one as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(method: str, executor: str, data=None, **overrides) -> Federation:
    chosen = {"execution__executor": executor, "execution__threads": 1, **overrides}
    return assemble(experiment(method, **chosen), data or ordinary())[0]


def workers() -> list[psutil.Process]:
    """Return this process's grandchildren: workers are forked from a server that is its child.

    A browser of other tests has children too.
    """
    below = [grandchild for child in psutil.Process().children() for grandchild in child.children()]
    return [process for process in below if "python" in process.name()]


@pytest.mark.parametrize(
    ("method", "processes"),
    [
        *((name, 2) for name in METHODS),
        ("fedproto", 1),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("fedavg", "gfpl")),
    ],
)
def test_every_method_is_the_same_in_processes(method, processes):
    expected = outcome(build(method, "sequential", rounds=3))
    found = build(method, "workers", rounds=3, execution__workers=processes)
    assert isinstance(found.executor, Workers)
    assert found.executor.description() == {"executor": "workers", "processes": processes, "threads": 1}
    assert_alike(expected, outcome(found), exact=True)


@pytest.mark.slow
def test_dropout_batch_norm_and_odd_clients():
    options = {"rounds": 2, "model__name": "support:WithBatchNorm", "model__options": {}}
    data = federated(*degenerate().clients, client("more", [0, 1, 2, 3, 3, 3]))
    expected = outcome(build("fedproto", "sequential", data, participation__fraction=0.5, **options))
    found = build("fedproto", "workers", data, participation__fraction=0.5, **options)
    assert_alike(expected, outcome(found), exact=True)


def test_a_killed_process_changes_nothing():
    expected = outcome(build("fedproto", "sequential", rounds=4))
    federation = build("fedproto", "workers", rounds=4)
    run = federation.run()
    records = [next(run)]
    workers()[0].send_signal(signal.SIGKILL)
    records += list(run)
    with closing(federation.executor):
        assert_alike(expected, (federation, told(records), tensors_of(federation)), exact=True)


SUICIDE = """
    import os, signal
    from pathlib import Path
    from protofed.methods.fedproto import FedProto

    class Dies(FedProto):
        name = "dies"

        def upload(self, local, statistics):
            mark = Path({mark!r})
            if local.round == 2 and local.name == "bob" and (not mark.exists() or {always}):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().upload(local, statistics)
"""


@few("always", [False, True], 1)
def test_a_process_that_dies_in_mid_visit(tmp_path: Path, monkeypatch, always):
    """Visits had changed models in that process; they are repeated from the weights before them."""
    monkeypatch.setattr("protofed.visits.workers.LEAST", 1)  # several clients at a time
    source = tmp_path / "dies.py"
    source.write_text(textwrap.dedent(SUICIDE.format(mark=str(tmp_path / "mark"), always=always)))
    found = build(f"{source}:Dies", "workers", rounds=3, execution__workers=2)
    if always:
        with closing(found.executor), pytest.raises(ProtofedError, match="worker processes died"):
            list(found.run())
        return
    expected = outcome(build("fedproto", "sequential", rounds=3))
    assert_alike(expected, outcome(found), exact=True)
    assert (tmp_path / "mark").exists()


def test_errors_in_a_process_reach_the_user(tmp_path: Path):
    source = tmp_path / "breaks.py"
    source.write_text(
        textwrap.dedent("""
        from protofed.methods.local import LocalTraining

        class Breaks(LocalTraining):
            name = "breaks"

            def loss(self, model, batch, received, state):
                raise RuntimeError("not today")
        """)
    )
    federation = build(f"{source}:Breaks", "workers")
    with closing(federation.executor), pytest.raises(RuntimeError, match="not today"):
        list(federation.run())


def test_checkpoints_pass_between_executors(tmp_path: Path):
    expected = outcome(build("protonorm", "sequential", rounds=4))
    stopped = build("protonorm", "workers", rounds=4)
    with closing(stopped.executor):
        run = stopped.run()
        next(run)
        next(run)
        Saving(tmp_path).save(stopped.state, stopped.executor.clients)
    resumed = build("protonorm", "sequential", rounds=4, execution__clients_in="disk")
    assert load_checkpoint(tmp_path, resumed.state, resumed.executor.clients)
    _, records, tensors = expected
    assert_alike((None, records[2:], tensors), outcome(resumed), exact=True)


def test_files_and_processes_go_when_the_run_ends():
    federation = build("fedproto", "workers")
    folder = federation.executor.store.folder
    next(federation.run())
    assert workers()
    assert len(list(folder.iterdir())) <= 1 + 2  # a file for each process, whatever the number of clients
    federation.executor.close()
    assert not folder.exists()
    assert not psutil.wait_procs(workers(), timeout=10)[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_processes_end_with_their_parent(tmp_path: Path):
    code = """
        import os, sys, time
        sys.path.insert(0, sys.argv[1])
        from test_workers import build
        if __name__ == "__main__":
            federation = build("fedproto", "workers", rounds=10000)
            run = federation.run()
            next(run)
            print("ready", flush=True)
            list(run)
    """
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(code))
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, str(script), here],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    process.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_numbers_of_processes_and_threads():
    with pytest.raises(ConfigError, match="workers must be at least 0, not -1"):
        experiment(execution__workers=-1)
    federation = build("local", "workers", execution__workers=50)
    with closing(federation.executor):
        assert federation.executor.processes == 3  # no more than clients
