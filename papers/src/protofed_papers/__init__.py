"""The papers' tables, figures and claims: what they print, beside what is run here, with verdicts.

What a paper prints and claims is data (``papers/``), and so are results (``results/``, and the output folder). A
table is laid out as in its paper; a verdict follows from values of seeds by a fixed rule (``verdicts.py``).
"""


def register() -> None:
    """Register the papers' partition and data set, which protofed does when it looks for recipes."""
    from protofed_papers import authors, keel  # noqa: F401
