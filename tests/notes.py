"""A generated federation of free text: short notes about three parts of the body, beside an age."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from protofed.untrusted import limits

TOPICS = {
    "bone": ("fracture", "knee", "fall", "cast", "joint", "x-ray"),
    "heart": ("chest", "pain", "pulse", "artery", "pressure", "palpitations"),
    "skin": ("rash", "itching", "eczema", "sun", "blister", "cream"),
}
FILLERS = ("the", "patient", "reports", "since", "monday", "and")
NO_TEXTS = [
    ("a\0b", "text 1 holds a NUL character"),
    ("a\ud800", "text 1 holds half of a surrogate pair"),
    ("a" * (limits.TEXT + 1), "text 1 has 262,145 characters: expected at most 262,144"),
    (7, "text 1 is not text but of type int"),
]
"""What is refused where a text is expected, and what is said, of the second of several."""


def write_notes(root: Path, sites: int = 3, n: int = 30) -> Path:
    """Write ``clients/siteN/{train,test}.csv`` with the columns age, note and label, and return ``root``."""
    draw = random.Random(0)
    for site in range(sites):
        folder = root / "clients" / f"site{site}"
        folder.mkdir(parents=True)
        for split, number in (("train", n), ("test", n // 2)):
            with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
                write = csv.writer(file)
                write.writerow(["age", "note", "label"])
                for _ in range(number):
                    topic = draw.choice(sorted(TOPICS))
                    words = [*draw.choices(TOPICS[topic], k=4), *draw.choices(FILLERS, k=5)]
                    write.writerow([draw.randint(20, 90), " ".join(draw.sample(words, 9)), topic])
    return root
