"""Write three clients' folders for a trial: digits, with classes and an architecture of their own for each.

python examples/hospitals.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HOSPITALS = {
    "north": (range(5), 'model = "cnn2"\n'),
    "south": (range(3, 8), 'model = "cnn4"\nepochs = 2\n'),
    "west": (range(5, 10), 'model = "mlp"\n'),
}


def main(folder: Path) -> None:
    """Divide scikit-learn's 1,797 digits so that a class is shared by two hospitals at most."""
    digits = load_digits()
    images = (digits.images * 255 / 16).astype(np.uint8)[:, None]  # (n, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    for number, (name, (classes, settings)) in enumerate(HOSPITALS.items()):
        rows = order[np.isin(digits.target[order], classes) & (order % len(HOSPITALS) == number)]
        cut = len(rows) * 3 // 4
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        np.savez(target / "train.npz", x=images[rows[:cut]], y=digits.target[rows[:cut]])
        np.savez(target / "test.npz", x=images[rows[cut:]], y=digits.target[rows[cut:]])
        (target / "client.toml").write_text(settings)
        print(f"{target}: {cut} training and {len(rows) - cut} test samples of classes {list(classes)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals"))
