"""Generated notes: short texts of several topics, with their authors as natural ids."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from protofed.compute.seeding import derive
from protofed.data.arrow import from_arrow
from protofed.data.columns import Columns
from protofed.data.options import DataOptions
from protofed.data.pool import Dataset, Listing, datasets
from protofed.options import Options, option

TOPICS = {
    "cooking": "boil bread butter dough flour garlic knife onion oven pan pepper recipe roast salt soup stir",
    "football": "ball coach corner defender fans foul goal keeper kick match midfield penalty pitch referee win",
    "garden": "bloom bulb compost fence hedge lawn mulch pear prune rake rose seed shed soil tulip weed",
    "music": "bass bow chord choir concert drum flute guitar harmony melody note piano rhythm song tune violin",
    "travel": "airport beach border bus coast hotel island journey luggage map museum passport ticket tour visa",
    "weather": "breeze cloud cold drizzle fog forecast frost hail humid rain snow storm sun thunder warm wind",
}
"""Words of each topic."""
OTHERS = """
a about after again all and any at before but by day few first for from good had he her here if in it last later
less long many more most much near never new not now of often old on one or our out over same she so some soon that
the then there they this time to today too two under until very was we week well were with without year you
"""
"""Words of any text."""
LONGEST = 24
"""Words of a note, at most; at least half as many."""


@dataclass(frozen=True)
class NotesOptions(Options):
    """The generated notes."""

    people: int = option(12, "authors; each knows half of every topic's words, and prefers some topics", least=1)
    notes: int = option(40, "notes per author", least=1)
    share: float = option(0.25, "probability that a word is one of the topic", least=0, most=1)


def notes(data: DataOptions, options: NotesOptions, seed: int) -> Listing:
    """Return generated notes in a column ``note``, with the topic as label."""
    import pyarrow as pa

    draw = np.random.default_rng(derive(seed, "notes"))
    others, topics = OTHERS.split(), list(TOPICS)
    texts, labels, authors = [], [], []
    for author in range(options.people):
        known = [draw.permutation(words.split())[: len(words.split()) // 2] for words in TOPICS.values()]
        shares = draw.dirichlet(np.ones(len(topics)))
        for label in draw.choice(len(topics), options.notes, p=shares):
            length = draw.integers(LONGEST // 2, LONGEST + 1)
            words = np.where(
                draw.random(length) < options.share, draw.choice(known[label], length), draw.choice(others, length)
            )
            texts.append(" ".join(words))
            labels.append(topics[label])
            authors.append(f"author{author:02d}")
    table = pa.table({"note": texts, "topic": labels, "author": authors})
    asked = Columns.of(replace(data, label_column="topic", text=("note",)), "author")
    return from_arrow(table, asked, "notes", data.budget())


datasets.register("notes")(
    Dataset(
        "generated texts of six topics, with authors as natural ids: a column of free text (data.text_as)",
        notes,
        NotesOptions,
    )
)
