"""How much somebody else may say, in a message or in a file: checked before anything of that size is reserved.

All limits are here. They lie far above what honest files need; what exceeds one is refused in one line. The total
that data may take in memory is an option, ``data.max_gb``, which a :class:`Budget` keeps.
"""

from __future__ import annotations

from typing import Any

from protofed.errors import DataError

MiB = 2**20
GiB = 2**30

# Labels and names.
CLASSES = 2**16
"""Classes of a federation; labels are sent in two bytes."""
CLASS_NAME = 128
"""Characters of a class's name."""
CLIENT_NAME = 64
"""Characters of a client's name."""
CLIENT_NAME_BYTES = 200
"""Bytes of a client's name in UTF-8: it becomes a file name, of which file systems allow 255."""
CLIENTS = 2**20
"""Clients of a run."""
FILE_NAME_BYTES = 255
"""Bytes of a file's name, as file systems allow them."""
REASON = 300
"""Characters of what another party says in words."""

# What a node says of itself.
CLAIMED_SAMPLES = 2**30
"""Samples of one client in one split."""
INPUT_DIMENSIONS = 4
"""Dimensions of one sample."""
INPUT_SIDE = 2**16
"""Numbers along one of them; also of a feature vector."""
INPUT_NUMBERS = 2**26
"""Numbers of one sample."""
PARAMETERS = 10**12
"""Parameters of a model."""
NETWORKS = 16
"""Networks that a method adds to a client's model."""
LOSSES = 64
"""Terms of a loss."""
ROUNDS = 10**6
ORDER = 2**62
"""Number of a request."""
JSON_CHARACTERS = 2**22
"""Characters of a description; parsed, it may take some twenty times as many bytes."""
ANSWER_CHARACTERS = 2**14
"""Characters of what an answer says beside its tensors."""

# Data files.
SAMPLES = 2**28
"""Rows of one data set."""
FEATURES = 2**26
"""Numbers of one sample."""
COLUMNS = 2**14
"""Columns of a parquet file, nested ones counted singly."""
PAGES = 2**20
"""Pages of a parquet file."""
MEMBERS = 256
"""Arrays in an ``.npz`` file."""
DIMENSIONS = 8
"""Dimensions of an array."""
PIXELS = 2**26
"""Pixels of one image."""
IMAGE_BYTES = 256 * MiB
"""Bytes of one encoded image."""
FILES = 2**22
"""Entries of one folder."""

# Text.
TOML_BYTES = 4 * MiB
"""Bytes of a recipe, ``client.toml``, ``federation.toml`` or ``config.toml``."""
JSON_BYTES = 256 * MiB
"""Bytes of any other JSON file, such as a file with positions."""
METADATA_BYTES = 16 * MiB
"""Bytes of the metadata in a parquet file that describe its columns."""
DEPTH = 64
"""Tables and lists of JSON or TOML inside each other."""

# Run directories.
RUN_FILE_BYTES = GiB
"""Bytes of any file of a run that is shown."""
ROUNDS_BYTES = 512 * MiB
"""Bytes of ``rounds.jsonl``."""
LINE_BYTES = 16 * MiB
"""Bytes of one line of it."""
TENSOR_HEADER_BYTES = 16 * MiB
"""Bytes in which a safetensors file describes its tensors."""


class Budget:
    """The memory that data may take, which shrinks as files claim their share.

    Example:
        >>> budget = Budget(1.0)
        >>> budget.take(600_000_000, "a.npz")
        >>> budget.take(600_000_000, "b.npz")
        Traceback (most recent call last):
        ...
        protofed.errors.DataError: b.npz: needs 0.6 GB of memory, and 0.4 of data.max_gb = 1 are left
    """

    def __init__(self, gigabytes: float) -> None:
        self._gigabytes = gigabytes
        self.left = int(gigabytes * 10**9)

    def take(self, size: int, where: Any) -> None:
        """Claim ``size`` bytes.

        Raises:
            DataError: If fewer are left; ``where`` begins the message.
        """
        if size > self.left:
            raise DataError(
                f"{where}: needs {size / 1e9:.3g} GB of memory, and {self.left / 1e9:.3g} of "
                f"data.max_gb = {self._gigabytes:g} are left"
            )
        self.left -= size

    def give_back(self, size: int) -> None:
        """Return ``size`` bytes that were claimed and are free again."""
        self.left += size
