import json
import re
from html.parser import HTMLParser

import pytest

from protofed.analysis import load_runs, write_report
from protofed.analysis.figures import draw_figure
from protofed.analysis.figures.saving import inline_svg
from protofed.analysis.report import comparison, facts, tables
from protofed.errors import CheckpointError
from protofed.text import mean_std
from support import few

RULES_OF_FEDPROTO = ("Classifier head", "Own prototypes", "Global prototypes", "Global, own classes")

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Reads a page, checks that elements are nested properly, and collects what tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.rows, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [v for k, v in attrs.items() if k in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words.append(data)
        if self.rows and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def page(tmp_path):
    def write(*paths):
        text = write_report(list(paths), tmp_path / "report.html").read_text()
        parsed = Page(text)
        assert len(set(parsed.ids)) == len(parsed.ids), "two elements share an id"
        for link in parsed.links:
            assert link.startswith(("#", "data:")), f"not self-contained: {link}"
            assert not link.startswith("#") or link[1:] in parsed.ids, f"leads nowhere: {link}"
        assert not [each for each in ("http://", "https://", "<script", "@import") if each in text]
        return parsed

    return write


@pytest.mark.pictures
def test_of_one_run(page, run_at):
    parsed = page(run_at(method="protonorm", rounds=6, validation=True))
    for words in (
        "protonorm on fake-images",
        "finished, 6 rounds",
        "seed 0",
        "Final accuracy",
        "chosen on test data",
        "“best validated”",
        "Global prototypes (main rule)",
        "Who holds what",
        "Training loss",
        "Diagnostics",
        "Bytes per client and round",
        "Euclidean distance",
        "Entry by entry",
        "Refused uploads",
        "protofed run config.toml",
        "Resolved configuration",
        "peak memory",
    ):
        assert words in parsed.text, words
    best = load_runs([run_at("again", "protonorm", rounds=6, validation=True)])[0].outcome.accuracy["global"]
    assert f"{100 * best.best:.1f}% round {best.best_round}, chosen on test data" in parsed.text
    clients = [row for row in parsed.rows if row and row[0].startswith("client_")]
    kinds = ["resnet8", "efficientnet_b0", "shufflenet_v2", "mobilenet_v2"]
    assert [row[:2] for row in clients[:4]] == [[f"client_0{n}", kind] for n, kind in enumerate(kinds)]
    assert clients[3][-4:] == ["–"] * 4
    assert ["client_00", "prototypes", "holds NaN in 2 of 7 rows", "0", "1", "3"] in parsed.rows
    assert ["client_01", "training", "no answer within 60 s", "0", "2", "2 to 4"] in parsed.rows


def test_accuracies_over_clients_and_on_everyones_samples(page, run_at, comparison_at):
    parsed = page(run_at("one", on="balanced", rule="local"))
    run = load_runs([run_at("again", on="balanced", rule="local")])[0]
    local = run.outcome.accuracy["local"]
    for words in (
        "Own prototypes (main rule)",
        "On everyone’s samples, classes alike",
        f"{100 * local.unseen.final:.1f}% on unseen classes",
        "every class counting alike",
        f"{100 * local.client_mean:.1f}% ± {100 * local.client_std:.1f}",
        "stays within 1 percentage point of its best",
        "Over all rounds",
    ):
        assert words in parsed.text, words
    path = comparison_at(["local", "fedproto"], (0, 1), on="union", rule="local")
    parsed = page(path)
    assert "On everyone’s samples by inference rule" in parsed.text
    runs = load_runs([path])
    table = comparison.beyond(runs)
    assert table.groups[1:] == [(title, 2) for title in RULES_OF_FEDPROTO]
    unseen = [r.outcome.accuracy["global"].unseen.final for r in runs if r.method == "fedproto"]
    assert table.rows[1][6].text == mean_std(unseen)
    notes = {row[0].text: row[0].note for row in comparison.methods(runs).rows}
    assert notes == {"local": "classifier head", "fedproto": "own prototypes"}


def test_without_other_samples_nothing_is_said_of_them(page, comparison_at):
    path = comparison_at(["local", "fedproto"], (0,))
    assert comparison.beyond(load_runs([path])) is None
    assert "nseen classes" not in page(path).text


@pytest.mark.slow
@pytest.mark.pictures
def test_metrics_are_in_reports_where_they_were_computed(page, run_at, comparison_at):
    parsed = page(run_at(metrics=True, rounds=2))
    assert "Balanced accuracy" in parsed.text
    assert next(row[:4] for row in parsed.rows if row[0] == "Class") == [
        "Class",
        "Test samples",
        "Recall (sensitivity)",
        "Specificity",
    ]
    own = [row for row in parsed.rows if row[0].startswith("client_")]
    assert own[3][-3:] == ["– no test samples"] * 3
    compared = page(comparison_at(["local", "fedproto"], (0, 1), rounds=2, metrics=True))
    assert [row[0] for row in compared.rows if "±" in row[-1] and len(row) == 5][:2] == [
        "local classifier head",
        "fedproto classifier head",
    ]
    assert "Balanced accuracy" not in page(run_at("plain", rounds=2)).text


def test_why_training_alone_can_be_ahead(page, comparison_at):
    text = page(comparison_at(["local", "fedproto"], (0,), rounds=2)).text
    assert "a method that sends nothing can be ahead" in text
    assert "it was not measured here (evaluation.on=union does)" in text
    measured = page(comparison_at(["local", "fedproto"], (0,), "measured", rounds=2, on="union")).text
    assert "of unseen classes have it" in measured
    assert "can be ahead" not in page(comparison_at(["fedtgp", "fedproto"], (0,), "other", rounds=2)).text


@pytest.mark.slow
@pytest.mark.pictures
def test_of_a_comparison(page, comparison_at):
    parsed = page(comparison_at(["local", "fedproto", "gfpl"], (0, 1), rounds=4))
    said = "3 methods with seeds 0, 1 on the same task: 4 clients"
    assert all(words in parsed.text for words in ("Comparison on fake-images", said, "all 6 runs finished"))
    rows = {row[0]: row for row in parsed.rows if len(row) == 11 and row[1] in ("Runs", "2")}
    assert set(rows) == {"Method", "local classifier head", "fedproto global prototypes", "gfpl classifier head"}
    assert rows["local classifier head"][7:10] == ["0 B", "0 B", "0 B"]
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d%", rows["fedproto global prototypes"][2])
    assert "ETF : the class whose fixed direction" in parsed.text
    assert not any(words in parsed.text for words in ("Entry by entry", "Training loss"))
    assert "protofed report fedproto-seed0 fedproto-seed1" in parsed.text  # draws the method's own figures
    assert "Training loss" in page(comparison_at(["fedproto"], (0, 1), "seeds", rounds=4)).text


@pytest.mark.slow
@pytest.mark.pictures
def test_methods_stand_together_by_what_they_exchange(page, comparison_at):
    path = comparison_at(["fedavg", "protonorm", "local", "fedproto"], (0,), rounds=4)
    parsed = page(path)
    table = comparison.methods(load_runs([path]))
    assert [row[0].text for row in table.rows] == ["local", "protonorm", "fedproto", "fedavg"]
    assert table.sections == {0: "Exchange nothing", 1: "Exchange prototypes", 3: "Exchange all weights"}
    assert [row[0] for row in parsed.rows if row[0].startswith("fedavg") and row[1:2] == ["1"]] == [
        "fedavg global model"
    ]
    for title in table.sections.values():
        assert [title] in parsed.rows
    # The first picture is the one of accuracy against traffic.
    assert parsed.text.index("Accuracy against traffic") < parsed.text.index("Accuracy over the rounds")
    assert "Clients are scored" in parsed.text


def test_what_a_method_says_of_its_configuration(page, run_at):
    path = run_at(method="fedavg", rounds=2)
    facts_file = path / "federation.json"
    federation = json.loads(facts_file.read_text()) | {"notes": ["Running statistics stay.", "Six epochs."]}
    facts_file.write_text(json.dumps(federation))
    assert "Running statistics stay. Six epochs." in page(path).text


@pytest.mark.slow
@pytest.mark.pictures
def test_the_report_of_equal_runs_is_equal(run_at, tmp_path):
    path = run_at()
    texts = [write_report([path], tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert texts[0] == texts[1]


@pytest.mark.pictures
@few(
    ("options", "words"),
    [
        ({"finished": False, "rounds": 3, "planned": 9}, "running or stopped after round 3 of 9"),
        ({"finished": False, "rounds": 0, "planned": 9}, "running or stopped after round 0 of 9"),
        ({"finished": False, "rounds": 2, "every": 0}, "no round has been evaluated yet"),
        ({"rounds": 1}, "finished, 1 round "),
        ({"rounds": 2, "clients": 1, "classes": 1}, "1 class"),
        ({"method": "local", "rounds": 2}, "Nothing was sent"),
        ({"method": "some.module:Mine", "rounds": 2}, "Mine on fake-images"),
    ],
    1,
)
def test_of_odd_runs(page, run_at, options, words):
    assert words in page(run_at(**options)).text


@pytest.mark.slow
@pytest.mark.pictures
def test_of_an_unfinished_comparison(page, comparison_at):
    path = comparison_at(["fedproto", "local"], (0, 1), rounds=3)
    (path / "fedproto-seed1" / "summary.json").unlink()
    (path / "local-seed1" / "rounds.jsonl").unlink()
    parsed = page(path)
    assert "2 of 3 runs finished" in parsed.text
    assert "Seed 1: running or stopped after round 3 of 3" in parsed.text
    row = next(row for row in parsed.rows if row[0] == "fedproto global prototypes")
    assert row[1] == "1 1 unfinished"


def test_of_runs_of_different_recipes(page, run_at):
    parsed = page(run_at("a"), run_at("b", recipe="other"))
    assert "fedproto, other" in parsed.text
    assert "Comparison on" not in parsed.text


@pytest.mark.pictures
def test_names_are_escaped(page, run_at):
    parsed = page(run_at(class_names=["<b>bold</b>", 'a"b', "$x_1$ -->"], recipe="<i>recipe</i>"))
    assert "fedproto on <i>recipe</i>" in parsed.text


def test_wrong_paths_and_damaged_prototypes(run_at, tmp_path):
    with pytest.raises(CheckpointError, match="no run here"):
        write_report([tmp_path / "absent"], tmp_path / "out.html")
    path = run_at()
    (path / "prototypes.safetensors").write_bytes(b"1")
    with pytest.raises(CheckpointError, match="cannot be read"):
        write_report([path], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_the_highest_value_is_bold(comparison_at):
    table = comparison.methods(load_runs([comparison_at(["local", "protonorm"], (0,))]))
    strong = {row[0].text: [cell.strong for cell in row[2:5]] for row in table.rows}
    assert strong == {"local": [False] * 3, "protonorm": [True] * 3}


def test_bytes_per_round_are_over_rounds_that_sent_any(run_at):
    run = load_runs([run_at(rounds=4, clients=2)])[0]
    assert facts.bytes_per_round(run, "up") == 82_000
    assert facts.bytes_per_round(run, "down") == 106_600
    row = tables.communication([run]).rows[2]
    assert [cell.text for cell in row] == ["Both", "47,150", "40,488", "189 kB", "94.3 kB", "648 kB"]


def test_thousands_of_clients_make_a_small_page(run_at):
    path = run_at(clients=2000, rounds=2)
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        for scored in line["accuracy"].values():
            scored["clients"] = [i / 2000 for i in range(2000)]
        shortened = [f"client_{i:02d}" for i in range(0, 2000, 2)] + ["client_01"] * (line["round"] == 2)
        line["robust"] = {"clipped": [{"client": name, "vectors": 1, "factor": 0.5} for name in shortened]}
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = load_runs([path])
    table = tables.robust(runs)
    assert [row[0].text for row in table.rows] == ["client_00, client_02 and 998 others", "client_01"]
    drawn = inline_svg(draw_figure("client_accuracy", runs, {}), "accuracy", "accuracy")
    assert len(drawn) < 200_000  # 740,000 more with a shape for every mark


def test_tables_are_whole_on_a_phone(browser, run_at, comparison_at, tmp_path):
    made = run_at(metrics=True), comparison_at(["local", "fedproto", "beacon"], metrics=True)
    pages = [write_report([path], tmp_path / f"{path.name}.html") for path in made]
    window = browser.new_page(viewport={"width": 390, "height": 844})
    for page in pages:
        window.goto(page.as_uri())
        window.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert window.evaluate("document.documentElement.scrollWidth") == 390
        cut = "[...document.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth)"
        assert window.evaluate(f"{cut}.map(each => each.ariaLabel)") == []
    window.close()
