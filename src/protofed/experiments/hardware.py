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
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


@dataclass(frozen=True)
class Hardware:
    """Devices, precision and memory layout of a computation.

    Attributes:
        devices: Number over which the executor ``fused`` distributes clients.
    """

    device: torch.device
    devices: int
    cores: int
    # Stored as names, because torch's own objects cannot be sent reliably to another process.
    precision: str
    memory_format: str

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
        devices = max(1, execution.devices)
        if device.type == "cuda":
            seen = f"torch sees {visible} GPU{'s' if visible > 1 else ''}"
            if execution.devices > visible:
                raise ConfigError(f"execution.devices={execution.devices}, but {seen}")
            if device.index is not None:
                if device.index >= visible:
                    raise ConfigError(f"execution.device={wanted}, but {seen}, numbered from 0")
                torch.cuda.set_device(device)
            devices = 1 if device.index is not None else execution.devices or visible
        return cls(device, devices, numerics.cores(), execution.precision, execution.memory_format)

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
        return LAYOUTS[self.memory_format]

    def place(self, federated: FederatedData) -> FederatedData:
        """Return the data with all samples on the device, and images in the layout of the models."""

        def put(samples: Samples) -> Samples:
            x = samples.x.to(self.device)
            # Rows selected from a tensor keep its layout, so batches have it too.
            return Samples(x.to(memory_format=self.layout) if x.dim() == 4 else x, samples.y.to(self.device))

        return federated.map(put)
