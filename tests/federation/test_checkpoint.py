"""Checkpoints and files: whole or absent."""

from __future__ import annotations

import pytest

from protofed.errors import CheckpointError
from protofed.experiments.assemble import assemble
from protofed.federation import load_checkpoint, save_checkpoint
from protofed.federation.files import read_json, write_bytes
from support import experiment, ordinary


@pytest.fixture
def federation():
    federation, _ = assemble(experiment(rounds=3), ordinary())
    next(federation.run())
    return federation


def save(federation, folder, round):
    save_checkpoint(folder, round, federation.server, federation.executor.clients)


def test_only_the_newest_is_kept(federation, tmp_path):
    for round in (1, 2, 3):
        save(federation, tmp_path, round)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000003"]
    assert load_checkpoint(tmp_path, federation.executor.clients)[0] == 3


def test_a_half_written_one_is_ignored(federation, tmp_path):
    save(federation, tmp_path, 1)
    (tmp_path / ".round-000002.partial").mkdir()
    assert load_checkpoint(tmp_path, federation.executor.clients)[0] == 1


def test_none_yet(federation, tmp_path):
    assert load_checkpoint(tmp_path / "absent", federation.executor.clients) is None


@pytest.mark.parametrize("file", ["server.safetensors", "state.json", "clients/bob.safetensors"])
def test_a_truncated_file_is_named(federation, tmp_path, file):
    save(federation, tmp_path, 1)
    path = tmp_path / "round-000001" / file
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=rf"{file}: cannot be read") as caught:
        load_checkpoint(tmp_path, federation.executor.clients)
    assert "\n" not in str(caught.value)


def test_another_model_or_other_clients_are_named(federation, tmp_path):
    save(federation, tmp_path, 1)
    other, _ = assemble(experiment(model__d=9), ordinary())
    with pytest.raises(CheckpointError, match="does not fit the model of ann"):
        load_checkpoint(tmp_path, other.executor.clients)
    fewer = dict(list(federation.executor.clients.items())[:2])
    with pytest.raises(CheckpointError, match="written for other clients"):
        load_checkpoint(tmp_path, fewer)


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_bytes(tmp_path / "file", "text")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path / "file")
