"""The choice of a device: what is asked for is used, or refused in one line."""

import pytest
import torch

from protofed.config.schema import ExecutionOptions
from protofed.errors import ConfigError
from protofed.experiments.hardware import Hardware


def test_a_machine_without_gpus_computes_on_its_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert Hardware.of(ExecutionOptions()).device == torch.device("cpu")
    for device, found in (("cuda", "no GPU: use"), ("cuda:1", "no GPU: use"), ("mps", "no GPU of Apple: use")):
        with pytest.raises(ConfigError, match=f"execution.device={device}, but torch sees {found} cpu or auto"):
            Hardware.of(ExecutionOptions(device=device))


def test_one_of_several_gpus_is_the_only_one_used(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    one = Hardware.of(ExecutionOptions(device="cuda:1"))
    assert (one.device, chosen) == (torch.device("cuda", 1), [torch.device("cuda", 1)])
    for options in (ExecutionOptions(), ExecutionOptions(device="cuda")):
        assert Hardware.of(options).device == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"execution.device=cuda:2, but torch sees 2 GPUs, numbered from 0"):
        Hardware.of(ExecutionOptions(device="cuda:2"))


def test_apples_gpu_is_used_where_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert Hardware.of(ExecutionOptions(device="mps")).device == torch.device("mps")
    assert Hardware.of(ExecutionOptions()).device == torch.device("cpu")
