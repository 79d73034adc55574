"""The properties of a machine that determine how an experiment is computed on it, found once per run."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from protofed.errors import ConfigError
from protofed.experiments.config import ExecutionOptions
from protofed.samples import FederatedData, Samples

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""Type of weights, features and prototypes, by precision."""
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


@dataclass(frozen=True)
class Hardware:
    """Devices, precision and memory layout of a computation.

    Attributes:
        device: Device of this process.
        devices: Number of devices over which the executor ``fused`` distributes clients.
        cores: Number of CPU cores that this process may use.
        precision: Precision of models and training, a value of ``execution.precision``.
        memory_format: Layout of images and convolutions, a value of ``execution.memory_format``.
    """

    device: torch.device
    devices: int
    cores: int
    # Stored as names, because torch's own objects cannot be sent reliably to another process.
    precision: str
    memory_format: str

    @classmethod
    def of(cls, execution: ExecutionOptions) -> Hardware:
        """Determine the hardware that the options request.

        Raises:
            ConfigError: If they request GPUs that torch does not see.
        """
        cuda = torch.cuda.is_available()
        if execution.device == "cuda" and not cuda:
            raise ConfigError("execution.device=cuda, but torch sees no GPU: use cpu or auto")
        device = "cuda" if cuda and execution.device != "cpu" else "cpu"
        devices = max(1, execution.devices)
        if device == "cuda":
            visible = torch.cuda.device_count()
            if execution.devices > visible:
                plural = "s" * (visible > 1)
                raise ConfigError(f"execution.devices={execution.devices}, but torch sees {visible} GPU{plural}")
            devices = execution.devices or visible
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(torch.device(device), devices, cores, execution.precision, execution.memory_format)

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights, features and prototypes."""
        return DTYPES[self.precision]

    @property
    def layout(self) -> torch.memory_format:
        """The memory format of images and convolutions."""
        return LAYOUTS[self.memory_format]

    def place(self, federated: FederatedData) -> FederatedData:
        """Return the data with all samples on the device, and images in the layout of the models."""

        def put(samples: Samples) -> Samples:
            x = samples.x.to(self.device)
            # Rows selected from a tensor keep its layout, so batches have it too.
            return Samples(x.to(memory_format=self.layout) if x.dim() == 4 else x, samples.y.to(self.device))

        return federated.map(put)
