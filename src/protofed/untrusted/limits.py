"""Limits on the size of messages and files from other parties, checked before memory is allocated.

All limits are defined here. They are far above the needs of honest files; input that exceeds one is refused with a
one-line error. The total memory of loaded data is limited by the option ``data.max_gb``, which a :class:`Budget`
enforces.
"""

from __future__ import annotations

from typing import Any

from protofed.errors import DataError

MiB = 2**20
GiB = 2**30

# Labels and names.
CLASSES = 2**16  #: Classes of a federation; labels are sent in two bytes
CLASS_NAME = 128  #: Characters of a class's name
ARCHITECTURE = 4096  #: Characters of an architecture's name with its options, in the files of a run
CLIENT_NAME = 64  #: Characters of a client's name
CLIENT_NAME_BYTES = 200
"""Bytes of a client's name in UTF-8; it becomes part of a file name, which may have 255 bytes."""
CLIENTS = 2**20  #: Clients of a run
SUMMED = 3  #: Fewest clients of a secure sum; of the sum of two, each knows the other's part
FILE_NAME_BYTES = 255  #: Bytes of a file name that file systems allow
REASON = 300  #: Characters of free text from another party

# Descriptions and answers of nodes.
CLAIMED_SAMPLES = 2**30  #: Samples of one client in one split
INPUT_DIMENSIONS = 4  #: Dimensions of one sample
INPUT_SIDE = 2**16  #: Size of one dimension of a sample; also of a feature vector
INPUT_NUMBERS = 2**26  #: Values of one sample
OPTION = 10**6  #: Magnitude of an integer that a server sets at a node, where its option declares no bound
PARAMETERS = 10**12  #: Parameters of a model
NETWORKS = 16  #: Networks that a method adds to a client's model
LOSSES = 64  #: Terms of a loss
ROUNDS = 10**6
SEED = 2**63 - 1
ORDER = 2**62  #: Number of a request
JSON_CHARACTERS = 2**22  #: Characters of a description; once parsed, it may take about twenty times as many bytes
ANSWER_CHARACTERS = 2**14  #: Characters of an answer, not counting its tensors

LEAST_SUMMED = 10
"""Values of a column whose mean a node states at least; that of fewer would nearly be the values themselves."""
LARGEST = 1e30  #: Magnitude of a number in a table; its square is far from the largest float64

# Data files.
SAMPLES = 2**28  #: Rows of one data set
FEATURES = 2**26  #: Values of one sample
COLUMNS = 2**14  #: Columns of a table; in a parquet file, nested ones count individually
CATEGORIES = 256  #: Categories of one column of a table
TEXT = 2**18  #: Characters of one text among the samples
CSV_BYTES = 4 * GiB  #: Bytes of a CSV file
READER_BYTES = 256 * MiB  #: Memory of the process that reads a file, beside what EXPANSION allows
EXPANSION = 256  #: Bytes of memory per byte of the file
READER_SECONDS = 20  #: Processor time for a file, beside what READER_SPEED allows
READER_SPEED = MiB  #: Bytes of a file for each further second
MEMBERS = 256  #: Arrays in an ``.npz`` file
DIMENSIONS = 8  #: Dimensions of an array
PIXELS = 2**26  #: Pixels of one image
IMAGE_MEMORY = 16 * PIXELS
"""Memory that one image may take while it is decoded: stored, converted, scaled and copied."""
SCANS = 100  #: Scans of one JPEG, each of which goes through all its pixels; progressive ones have about ten
IMAGE_BYTES = 256 * MiB  #: Bytes of one encoded image
FILES = 2**22  #: Entries of one folder

# Text.
TOML_BYTES = 4 * MiB  #: Bytes of a recipe, ``client.toml``, ``federation.toml`` or ``config.toml``
JSON_BYTES = 256 * MiB  #: Bytes of any other JSON file, such as a file of positions
METADATA_BYTES = 16 * MiB  #: Bytes of the metadata of a parquet file
DEPTH = 64  #: Nesting depth of tables and lists in JSON or TOML
PEM_BYTES = 4 * MiB  #: Bytes of a file with keys or certificates
REQUEST_BYTES = 2**14  #: Bytes of a site's certificate request

# Run directories.
RUN_FILE_BYTES = GiB  #: Bytes of any file of a displayed run
ROUNDS_BYTES = 512 * MiB  #: Bytes of ``rounds.jsonl``
LINE_BYTES = 16 * MiB  #: Bytes of one line of ``rounds.jsonl``
TENSOR_HEADER_BYTES = 16 * MiB  #: Bytes of the header of a safetensors file
WEIGHTS_BYTES = 16 * GiB  #: Bytes of a file with a model's initial weights
WEIGHTS = 2**14  #: Tensors of such a file


class Budget:
    """A budget of memory in GB from which loaded files take their share.

    Example:
        >>> budget = Budget(1.0)
        >>> budget.take(600_000_000, "a.npz")
        >>> budget.take(600_000_000, "b.npz")
        Traceback (most recent call last):
        ...
        protofed.errors.DataError: b.npz: needs 0.6 GB of memory, but only 0.4 of data.max_gb = 1 is left
    """

    def __init__(self, gigabytes: float) -> None:
        self._gigabytes = gigabytes
        self.left = int(gigabytes * 10**9)

    def take(self, size: int, where: Any) -> None:
        """Take bytes from the budget for a file or data set."""
        if size > self.left:
            raise DataError(
                f"{where}: needs {size / 1e9:.3g} GB of memory, but only {self.left / 1e9:.3g} of "
                f"data.max_gb = {self._gigabytes:g} is left"
            )
        self.left -= size

    def give_back(self, size: int) -> None:
        """Return ``size`` bytes that are free again."""
        self.left += size
