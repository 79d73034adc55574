"""The format of a client between visits."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from protofed.errors import CheckpointError, PayloadError
from protofed.storage import snapshots
from protofed.storage.snapshots import Snapshot, write_tensors

WHOLE = torch.arange(6.0)
CLIENT = Snapshot(
    {"weight": WHOLE.view(2, 3).T, "same": WHOLE, "part": WHOLE[2:4]},
    {"seen": torch.tensor(3)},
    {"prototypes": torch.ones(2, 2), "a.dotted.name": torch.zeros(0)},
)


def assert_same(a: Snapshot, b: Snapshot) -> None:
    for first, second in zip(a, b, strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_files_messages_and_dictionaries_hold_the_same(tmp_path):
    write_tensors(tmp_path / "client", snapshots.flatten(CLIENT))
    assert_same(snapshots.read(tmp_path / "client"), CLIENT)
    assert_same(snapshots.unpack(snapshots.pack(CLIENT)), CLIENT)
    assert_same(snapshots.unflatten(snapshots.flatten(CLIENT)), CLIENT)
    with safe_open(tmp_path / "client", framework="pt") as file:
        assert file.metadata() == {"protofed.snapshot": "1"}
    write_tensors(tmp_path / "model", CLIENT.model)
    write_tensors(tmp_path / "rest", snapshots.flatten(CLIENT._replace(model={})))
    assert snapshots.read_weights(tmp_path / "model").keys() == CLIENT.model.keys()
    assert_same(snapshots.read(tmp_path / "rest", tmp_path / "model"), CLIENT)


@pytest.mark.parametrize("number", ["2", "x"])
def test_another_format_is_named(tmp_path, number):
    path = tmp_path / "client"
    save_file({"model.weight": WHOLE}, path, {"protofed.snapshot": number})
    with pytest.raises(CheckpointError, match=f"client: written in format {number} by another version of protofed"):
        snapshots.read(path)


def test_a_file_without_a_number_is_of_the_first_format(tmp_path):
    save_file({"model.weight": WHOLE}, tmp_path / "client")
    assert torch.equal(snapshots.read(tmp_path / "client").model["weight"], WHOLE)


@pytest.mark.parametrize(
    "data", [b"", b"nothing", save({"else.x": WHOLE}), save({"optimizer.x": WHOLE}), save({"x": WHOLE})[:-3]]
)
def test_damage_is_told_in_one_line(tmp_path, data):
    (tmp_path / "client").write_bytes(data)
    with pytest.raises(CheckpointError, match="client: ") as file:
        snapshots.read(tmp_path / "client")
    with pytest.raises(PayloadError, match="state: not a client between visits") as message:
        snapshots.unpack(data)
    assert "\n" not in f"{file.value}{message.value}"
