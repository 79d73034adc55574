"""Model cards say what the run says, whatever names are in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import protofed
from protofed.data import DataOptions
from protofed.data.tables import Column, Table
from protofed.runs.spent import Spent
from protofed.text import percent
from protofed.trained.cards import LONGEST, model_card
from protofed.trained.exporting import describe_model, values_meant
from support import SMALL_RUN

yaml = pytest.importorskip("yaml")
MarkdownIt = pytest.importorskip("markdown_it").MarkdownIt

HOSTILE = (
    "a|b | c",
    "<script>alert(1)</script>",
    "[x](http://evil.example) ![y](z)",
    "`code` *em* _em_ ~~no~~ \\",
    "--- # title: &anchor !tag @all",
    "www.evil.example https://evil.example mail@evil.example",
    "\"quoted\" 'single': {json} %yaml",
    "Köln 東京 🏥",
    "line\nend\r\x1b[31m\u202e\u2028",
    "x" * 5000,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("cards")
    return protofed.load_run(
        protofed.run("quickstart", {**SMALL_RUN, "method.name": "fedproto"}, out=place / "r").directory
    )


def card_of(run, rule="global", **changed):
    """Return the card of a run's first client after changes to what the run says."""
    opened = run.client(run.names[0])
    run = replace(run, **changed)
    trained = replace(opened, name=run.names[0])
    facts = describe_model(trained, rule) | {"class_names": '["' + '", "'.join(run.class_names) + '"]'}
    return model_card(run, trained, "m.onnx", facts, "equal to predict")


def read(card):
    """Return the metadata, and all tokens of the Markdown with those within lines."""
    _, head, text = card.split("---\n", 2)
    markdown = MarkdownIt("commonmark", {"linkify": False}).enable(["table", "strikethrough"])
    tokens = markdown.parse(text)
    return yaml.safe_load(head), [*tokens, *(inner for token in tokens for inner in token.children or [])]


def shown(tokens):
    """Return what a reader sees of each line."""
    return [
        "".join(inner.content for inner in token.children)
        for token in tokens
        if token.type == "inline" and token.children
    ]


def rows(tokens):
    """Return the cells of all tables, row by row, as a reader sees them."""
    found: list[list[str]] = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            found.append([])
        if before.type in ("td_open", "th_open"):
            found[-1].append("".join(inner.content for inner in token.children or []))
    return found


def test_the_card_says_what_the_run_says(run):
    metadata, tokens = read(card_of(run, rule="head"))
    accuracy = run.client_accuracies("head")[0]
    assert metadata["library_name"] == "protofed"
    assert metadata["tags"] == ["federated-learning", "fedproto"]
    assert metadata["pipeline_tag"] == "image-classification"
    (result,) = metadata["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "name": "accuracy by the rule head", "value": accuracy}]
    table = rows(tokens)
    for rule, outcome in run.outcome.accuracy.items():
        known = run.rule(rule)
        mine = percent(run.client_accuracies(rule)[0])
        mark = " (this file)" if rule == "head" else ""
        assert [known.title + mark, known.text, mine, percent(outcome.final), percent(outcome.client_mean)] in table
    for each in run.clients:
        held = sum(1 for n in each.train if n)
        assert [each.name, str(sum(each.train)), str(sum(each.test)), str(held)] in table
    lines = " ".join(shown(tokens))
    for told in ("Differential privacy: none", "Exchanged: prototypes.", "The file is equal to predict."):
        assert told in lines
    assert lines.count("To be filled in by whoever publishes the model.") == 5
    assert str(run.directory) not in lines


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_and_no_markup(run, name):
    clean = "".join(c for c in name if c.isprintable())
    first = replace(run.clients[0], name=clean, architecture=name)
    federation = replace(
        run.federation,
        class_names=[clean.replace('"', "").replace("\\", "")] * len(run.class_names),
        clients=[first, *run.clients[1:]],
        exchanges=name,
        notes=[clean],
        left_out={clean: name},
    )
    config = run.config | {"data": {"source": name}, "partition": {"name": name, name: name}}
    summary = replace(run.summary, protofed=name, environment={name: name})
    metadata, tokens = read(card_of(run, federation=federation, config=config, summary=summary))
    assert metadata["model-index"][0]["name"] == clean
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "code_inline", "s_open", "fence", "hr"}
    assert {token.markup for token in tokens if token.type == "em_open"} == {"*"}
    assert sum(token.type == "em_open" for token in tokens) == 5
    assert sum(token.type == "heading_open" for token in tokens) == 9
    cut = clean if len(clean) <= LONGEST else clean[: LONGEST - 1] + "…"
    assert cut in {row[0] for row in rows(tokens)}
    assert {len(row) for row in rows(tokens)} == {4, 5}
    assert any(line.startswith("Exchanged: ") for line in shown(tokens))


def test_what_a_client_withholds_is_not_in_the_card(run):
    coarse, none = (replace(c, counts=k) for c, k in zip(run.clients[:2], ("coarse", "none"), strict=True))
    federation = replace(run.federation, clients=[coarse, none, *run.clients[2:]], network="deployed")
    _, tokens = read(card_of(run, federation=federation))
    table = {row[0]: row[1:3] for row in rows(tokens)}
    assert table[coarse.name] == [f"at most {sum(coarse.train)}", f"at most {sum(coarse.test)}"]
    assert table[none.name] == ["not disclosed", "not disclosed"]
    assert any("each with its own data" in line for line in shown(tokens))


def test_privacy_is_stated_as_it_was_spent(run):
    spent = Spent("client", 3.25, 1e-5, 1.5, 1.0, 1.0, 2, accountant="pld")
    config = run.config | {"secure": {"aggregation": True}}
    lines = shown(read(card_of(run, summary=replace(run.summary, privacy=spent), config=config))[1])
    assert "Secure aggregation: on, the server saw sums." in lines
    (told,) = (line for line in lines if line.startswith("Differential privacy"))
    assert told.startswith(
        "Differential privacy: ε = 3.25 at δ = 1e-05 hides the presence of one client (zero-out neighbours);"
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "Clients: simulated, split by "),
        ({"data": {"source": "path", "options": {"sites": True}}}, "Clients: the sites of a folder, each with"),
        ({"partition": {"name": "natural"}}, "Clients: as the data name them, in one process."),
        (
            {"partition": {"name": "natural"}, "data": {"options": {"id_column": "hospital"}}},
            "Clients: as the data name them, in the column hospital, in one process.",
        ),
    ],
)
def test_real_sites_are_not_called_simulated(run, changed, told):
    card = card_of(run, config={**run.config, **changed})
    assert told in card
    assert ("simulated" in card) == (not changed)


def test_a_file_says_what_dates_and_categories_mean():
    columns = (Column("sex", "category", categories=("f", "m")), Column("born"), Column("admitted"), Column("age"))
    data = DataOptions(dates={"admitted": "day", "born": "admitted"})
    assert values_meant(Table("none", columns), data) == {
        "sex": {0: "f", 1: "m"},
        "admitted": "days since 2000-01-01",
        "born": "days from this date to that of 'admitted'",
    }
