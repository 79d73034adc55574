"""Columns of free text as tokens: hashes of words, tokens of a tokenizer, and what is refused."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from notes import write_notes
from protofed.data import DataOptions, load
from protofed.data.comparing import Site, compare, describe
from protofed.data.tables import Column, RawColumn, Table, text_places
from protofed.data.text import HASHES, tokenize
from protofed.errors import ConfigError, DataError
from protofed.untrusted import limits

pytestmark = pytest.mark.fast
LACKS = "tokenizers is not installed: pip install 'protofed[text]'"
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))


def naive(text, length):
    """Return tokens as the documentation describes them, character by character."""
    words, word = [], ""
    for c in unicodedata.normalize("NFKC", text).casefold():
        letter = re.match(r"\w", c) is not None
        if word and (not letter or len(word) == 64):
            words.append(word)
            word = ""
        if letter:
            word += c
        elif not c.isspace():
            words.append(c)
    words += [word] if word else []
    digests = [hashlib.blake2b(w.encode(), digest_size=8).hexdigest() for w in words[:length]]
    return [int(d, 16) % (HASHES - 1) + 1 for d in digests] + [0] * (length - len(digests))


@given(st.lists(TEXT, max_size=4), st.integers(1, 9))
def test_tokens_are_those_of_the_description_whatever_is_beside_a_text(texts, length):
    found = tokenize(texts, length)
    assert found.shape == (len(texts), length)
    assert found.dtype == torch.float32
    assert found.long().tolist() == [naive(text, length) for text in texts]
    assert bool((found < HASHES).all())
    assert all(torch.equal(tokenize([t], length)[0], row) for t, row in zip(texts, found, strict=True))


def test_known_tokens_stay():
    """Runs and sites agree on these numbers for ever."""
    assert tokenize(["The cat sat."], 5).tolist() == [[4392346.0, 8058835.0, 7569794.0, 6172761.0, 0.0]]


def test_case_and_forms_of_characters_do_not_matter():
    same = ["ﬁne Straße", "FINE STRASSE", "fine  strasse\n"]
    assert len({tuple(row) for row in tokenize(same, 4).tolist()}) == 1
    assert torch.equal(tokenize(["caf\u00e9"], 2), tokenize(["cafe\u0301"], 2))


def test_absent_texts_have_no_tokens():
    assert not tokenize([None, "", float("nan"), " \n"], 3).any()


def test_a_long_text_takes_little_memory():
    """Of a text at the limit, whose characters become eighteen each, no more than the first words are kept."""
    tracemalloc.start()
    found = tokenize(["\ufdfa" * limits.TEXT, "x" * limits.TEXT], 4)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found > 0).all()
    assert most < 100 * limits.TEXT


def fed(root, **more):
    return load(
        DataOptions(source="path", path=str(root), text=("note",), text_as="tokens", **more), "dirichlet", None, 0
    )


def test_a_column_of_tokens_is_beside_the_numbers(tmp_path):
    data = fed(write_notes(tmp_path), text_length=7)
    notes = [line.split(",")[1] for line in (tmp_path / "clients/site1/train.csv").read_text().splitlines()[1:]]
    client = data.clients[1]
    assert data.input_shape == (8,)
    assert torch.equal(client.train.x[:, 1:], tokenize(notes, 7))  # as they are, and numbers are standardised
    assert client.train.x[:, 0].mean().abs() < 1e-6
    assert data.table.texts == ((1, 7),)
    assert "8 from 2 columns or channels (age, note)" in data.remarks()[-1]
    assert data.table == Table.from_dict(data.table.to_dict())
    (tmp_path / "clients/site0/train.csv").write_text("age,note,label\n3,,bone\n4,a b,skin\n")
    with pytest.raises(DataError, match=r"column 'note', row 2 has no text: .*for 7 zeros"):
        fed(tmp_path, text_length=7)


def test_places_of_several_texts():
    plain, other = Column("age"), Column("ward", "category", categories=("a", "b", "c"))
    title, body = ([RawColumn(f"{name} [word {i}]", "token") for i in range(2)] for name in ("title", "body"))
    columns = [plain, *(Column(c.name, c.kind) for c in title), other, *(Column(c.name, c.kind) for c in body)]
    assert text_places(columns) == ((1, 2), (6, 2))
    assert text_places([*title, *body]) == ((0, 2), (2, 2))
    assert text_places([plain]) == ()


def test_too_many_columns_are_refused_before_any_memory_is_taken(tmp_path):
    header = ",".join(f"t{i}" for i in range(5))
    row = ",".join(["some words here"] * 5)
    (tmp_path / "a.csv").write_text(f"{header},label\n" + "".join(f"{row},{k}\n" for k in "xyxy"))
    options = DataOptions(
        source="path",
        path=str(tmp_path / "a.csv"),
        text=tuple(f"t{i}" for i in range(5)),
        text_as="tokens",
        text_length=4096,
    )
    with pytest.raises(DataError, match="has more than 16384 columns with those of texts"):
        load(options, "iid", None, 0)


# Tokenizers.


@pytest.fixture
def tokenizer(tmp_path):
    """Return the file of a tokenizer of ten words."""
    tokenizers = pytest.importorskip(
        "tokenizers", reason="tokenizers is not installed: pip install 'protofed[text]'"
    )
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "rash", "knee", "pain", "fall", "sun", "cast"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.enable_padding(length=50)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_tokens_of_a_tokenizer_count_from_one(tokenizer):
    found = tokenize(["the knee", "", "zebra"], 6, tokenizer=str(tokenizer))
    assert found.tolist() == [[2, 4, 6, 3, 0, 0], [0] * 6, [2, 1, 3, 0, 0, 0]]
    cut = tokenize(["the rash the knee"], 4, tokenizer=str(tokenizer.parent))
    assert cut.tolist() == [[2, 4, 5, 3]]  # with the last special token


def test_sites_with_other_tokenizers_are_told(tokenizer, tmp_path):
    def columns(digest, how="tokenizer"):
        return tuple(RawColumn(f"note [{how} {digest} {i}]".replace("  ", " "), "token") for i in range(2))

    sites = [
        Site("ann", columns=columns("a1")),
        Site("bob", columns=columns("b2")),
        Site("eve", columns=columns("a1")),
    ]
    assert "set data.tokenizer to the file that the others have" in describe(compare(sites, DataOptions()))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"{}", "not a tokenizer"),
        (b"\xff", "cannot be read"),
        (b"[1, 2", "not a tokenizer"),
    ],
)
def test_a_file_that_is_no_tokenizer(content, reason, tmp_path):
    pytest.importorskip("tokenizers", reason=LACKS)
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^data.tokenizer: .*{reason}"):
        tokenize(["a"], 3, tokenizer=str(path))


def test_a_tokenizer_needs_tokens_and_nodes_look_in_their_folder():
    with pytest.raises(ValueError, match=r"set data\.text_as=tokens"):
        DataOptions(tokenizer="t.json")
    asked = DataOptions(tokenizer="/of/the/server/t.json", text_as="tokens")
    assert asked.within("/mine").tokenizer == "/mine/t.json"
    assert asked.within("") is asked
