"""The properties of a machine that determine how an experiment is computed on it, found once per run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protofed.compute import numerics
from protofed.config.schema import ExecutionOptions
from protofed.errors import ConfigError
from protofed.samples import FederatedData, Samples

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""Type of weights, features and prototypes, by precision."""


@dataclass(frozen=True)
class Hardware:
    """Device, precision and memory layout of a computation."""

    device: torch.device
    cores: int
    # Stored as names, because torch's own objects cannot be sent reliably to another process.
    precision: str
    convolutions: str

    @classmethod
    def of(cls, execution: ExecutionOptions) -> Hardware:
        """Determine the hardware that the options request, and make its results repeatable."""
        numerics.prepare()
        wanted, visible = execution.device, torch.cuda.device_count() if torch.cuda.is_available() else 0
        if wanted.startswith("cuda") and not visible:
            raise ConfigError(f"execution.device={wanted}, but torch sees no GPU: use cpu or auto")
        if wanted == "mps" and not torch.backends.mps.is_available():
            raise ConfigError("execution.device=mps, but torch sees no GPU of Apple: use cpu or auto")
        device = torch.device(wanted if wanted != "auto" else "cuda" if visible else "cpu")
        if device.index is not None:
            if device.index >= visible:
                raise ConfigError(f"execution.device={wanted}, but torch sees {visible} GPUs, numbered from 0")
            torch.cuda.set_device(device)
        return cls(device, numerics.cores(), execution.precision, execution.convolutions)

    @property
    def cuda(self) -> bool:
        """Return whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights, features and prototypes."""
        return DTYPES[self.precision]

    @property
    def layout(self) -> torch.memory_format:
        """The memory format of images and convolutions."""
        return torch.channels_last if self.convolutions == "auto" else torch.contiguous_format

    def place(self, federated: FederatedData) -> FederatedData:
        """Return the data with all samples on the device, and images in the layout of the models."""

        def put(samples: Samples) -> Samples:
            x = samples.x.to(self.device)
            # Rows selected from a tensor keep its layout, so batches have it too.
            return Samples(x.to(memory_format=self.layout) if x.dim() == 4 else x, samples.y.to(self.device))

        return federated.map(put)
