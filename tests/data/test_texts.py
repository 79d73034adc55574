"""Columns of free text: their vectors, and what is refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="wordllama is not installed: pip install 'protofed[text]'")

from notes import NO_TEXTS, write_notes
from protofed.data import DataOptions, embed_texts, load, text
from protofed.data.comparing import Site, compare, describe
from protofed.errors import ConfigError, DataError
from protofed.untrusted import limits

WORDS = [
    "The patient was admitted with chest pain.",
    "",
    "a",
    "🙂 مرحبا e\u0301 \u202e x",
    "line\nbreak\ttab",
    "</s> <s>",
]


@pytest.fixture(scope="module")
def theirs():
    """Wordllama's own embedding, with the tokenizer of its wheel, which its own loader does not find."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    home = Path(find_spec("wordllama").origin).parent
    rows = load_file(home / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(home / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    return WordLlamaInference(rows, tokenizer).embed


def test_the_vectors_are_those_of_the_package(theirs):
    found = embed_texts([*WORDS, "long " * 3000])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, theirs([*WORDS, "long " * 3000]), atol=1e-6)


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")), max_size=4))
def test_any_text_has_the_vector_of_the_package_whatever_is_beside_it(theirs, texts):
    found = embed_texts(texts)
    assert found.shape == (len(texts), 256)
    if texts:
        np.testing.assert_allclose(found, theirs(texts), atol=1e-6)
    for vector, own in zip(found, texts, strict=True):
        assert torch.equal(vector, embed_texts([own])[0])


def test_absent_texts_are_zeros():
    assert not embed_texts([None, "", float("nan")]).any()


@pytest.mark.parametrize(("given", "reason"), NO_TEXTS)
def test_what_is_no_text_is_refused(given, reason):
    with pytest.raises(DataError, match=reason):
        embed_texts(["fine", given])


# Files.


def fed(root, text=("note",), **more):
    return load(DataOptions(source="path", path=str(root), text=text, **more), "dirichlet", None, 0)


def site(root, *rows, header="age,note,label"):
    """Replace the first client's training samples."""
    (root / "clients" / "site0" / "train.csv").write_bytes("\n".join([header, *rows, ""]).encode())


def test_a_column_of_text_is_beside_the_numbers(tmp_path):
    data = fed(write_notes(tmp_path))
    notes = [line.split(",")[1] for line in (tmp_path / "clients/site1/train.csv").read_text().splitlines()[1:]]
    client = data.clients[1]
    assert data.input_shape == (257,)
    assert torch.equal(client.train.x[:, 1:], embed_texts(notes))  # as they are, and numbers are standardised
    assert client.train.x[:, 0].mean().abs() < 1e-6
    assert "257 from 2 columns or channels (age, note)" in data.remarks()[-1]
    raw = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 257)))
    torch.testing.assert_close(data.table.restore(data.table.apply(raw)), raw, atol=1e-4, rtol=1e-6)


def test_texts_may_look_like_numbers_and_have_several_lines(tmp_path):
    site(write_notes(tmp_path), *['30,"12",bone', '40,"first line\nsecond, line",skin'])
    x = fed(tmp_path).clients[0].train.x
    assert torch.equal(x[:, 1:], embed_texts(["12", "first line\nsecond, line"]))


def test_missing_texts(tmp_path):
    site(write_notes(tmp_path), "30,fine,bone", "40,,skin")
    with pytest.raises(DataError, match=r"site0/train.csv: column 'note', row 3 has no text: .*data.missing=mean"):
        fed(tmp_path)
    for missing in ("mean", "indicator"):
        data = fed(tmp_path, missing=missing)
        assert data.input_shape == (257,)
        assert not data.clients[0].train.x[1, 1:].any()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("30,a\0b,bone", "train.csv: column 'note', row 3 holds a NUL character"),
        (f"30,{'a' * (limits.TEXT + 1)},bone", "train.csv: column 'note', row 3 has 262,145 characters"),
        (f"30,{'a' * 2**24},bone", "train.csv: has a row of more than"),
    ],
)
def test_cells_that_are_refused(row, reason, tmp_path):
    site(write_notes(tmp_path), "20,fine,skin", row)
    with pytest.raises(DataError, match=reason):
        fed(tmp_path)


def test_parquet_of_another_encoding_or_type(tmp_path):
    write_notes(tmp_path)
    path = tmp_path / "clients" / "site0" / "train.csv"
    path.unlink()
    latin = pa.array([b"fine", b"K\xf6ln"]).view(pa.string())
    for values, reason in (
        (latin, "row 1 is not text in UTF-8"),
        (pa.array([1, 2]), "row 0 is not text but .* int"),
    ):
        table = pa.table({"age": [1, 2], "note": values, "label": ["bone", "skin"]})
        pq.write_table(table, path.with_suffix(".parquet"))
        with pytest.raises(DataError, match=f"train.parquet: column 'note', {reason}"):
            fed(tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"text": ("nose",)}, "text column 'nose'"),
        ({"text": ("label",)}, "text column 'label'"),
        ({"drop": ("note",)}, "text column 'note'"),
        ({"ranges": {"note": [0, 1]}}, "data.ranges.note"),
        ({"categories": {"note": []}}, "data.categories.note"),
    ],
)
def test_options_that_contradict(options, reason, tmp_path):
    with pytest.raises((ConfigError, DataError), match=reason):
        fed(write_notes(tmp_path), **options)


def test_data_without_texts():
    with pytest.raises(ConfigError, match=r"data.text=note: breast_cancer has no texts"):
        load(DataOptions(source="breast_cancer", clients=2, text=("note",)), "iid", None, 0)
    for source in ("breast_cancer", "digits"):
        with pytest.raises(
            ConfigError, match=rf"data.text_as=tokens: {source} has no texts, which data.text names"
        ):
            load(DataOptions(source=source, clients=2, text_as="tokens"), "iid", None, 0)


def test_free_text_that_is_not_declared(tmp_path):
    with pytest.raises(DataError, match=r"column 'note': its texts hardly repeat: .*data.text=note"):
        fed(write_notes(tmp_path), text=())
    site(tmp_path, f"30,{'long text of a note ' * 10},bone", "40,fine,skin")
    with pytest.raises(DataError, match=r"row 2: not a category .*data.text=note"):
        fed(tmp_path, text=())


# What clients compare.


def test_other_tables_are_refused_by_name(monkeypatch):
    own = text.Form().columns("note")
    static = text._static()
    monkeypatch.setattr(text, "_static", lambda: static._replace(digest="00000000"))
    sites = [Site("a", columns=own), Site("b", columns=own), Site("c", columns=text.Form().columns("note"))]
    (finding,) = compare(sites, DataOptions(text=("note",)))
    assert finding.site == "c"
    assert "install the version of wordllama that the others have" in describe([finding])
