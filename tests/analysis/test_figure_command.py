import pytest

from protofed.analysis.figures import figure_rows, figures
from protofed.cli import main as cli
from protofed.cli.catalogue import entries
from protofed.errors import CheckpointError, ConfigError
from support import assert_mistake, command, one_line


def call(*arguments):
    """Run the command in this process; errors come out as exceptions."""
    cli.app([str(a) for a in arguments], standalone_mode=False)


def test_draws_a_png_and_an_svg(run_at, tmp_path, monkeypatch, capsys):
    one, two = run_at("one", "fedproto"), run_at("two", "protonorm")
    monkeypatch.chdir(tmp_path)
    call("report", one, two, "--figure", "margins")
    assert "Drawn: margins.png, margins.svg" in capsys.readouterr().out
    call("report", one, two, "--figure", "margins", "--option", "sort=true", "--out", "new/sorted.by.margin")
    for name in ("margins.png", "margins.svg", "new/sorted.by.margin.png", "new/sorted.by.margin.svg"):
        assert (tmp_path / name).stat().st_size > 1000
    assert (tmp_path / "margins.png").read_bytes() != (tmp_path / "new/sorted.by.margin.png").read_bytes()


def test_several_options(run_at, tmp_path):
    arguments = ["--option", "class=1", "--option", "binary=true", "--out", tmp_path / "drawn"]
    call("report", run_at(), "--figure", "prototype_heatmap", *arguments)
    assert (tmp_path / "drawn.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ("nowhere --figure margin", ConfigError, "unknown figure 'margin': did you mean 'margins'"),
        ("nowhere --figure margins", CheckpointError, "nowhere: no run here"),
        ("{run} --figure tsne --option client=2", ConfigError, "unknown option of figure tsne 'client': did you"),
        ("{run} --figure tsne --option clients=two", ConfigError, "figure tsne.clients must be an integer"),
        ("{run} --figure tsne --option clients", ConfigError, "must read NAME=VALUE"),
        ("{run} --option client=2", ConfigError, "names an option of no figure: add --figure NAME"),
        ("{run} --figure split --option x=1", ConfigError, "unknown option of figure split 'x': Valid: none"),
        ("{run} --figure prototype_distances --option metric=angle", ConfigError, "'distance' or 'cosine'"),
    ],
)
def test_mistakes_are_told(run_at, tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    run = str(run_at())
    with one_line(error, says=message):
        call("report", *(a.format(run=run) for a in arguments.split()))
    assert not list(tmp_path.glob("*.png"))


def test_on_the_command_line_a_mistake_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, _, told = command(monkeypatch, capsys, "report", "nowhere", "--figure", "tsne")
    assert_mistake(status, told)


def test_figures_are_listed_with_their_options(capsys):
    call("list", "figures")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if not line.startswith(" ")] == sorted(figures)
    assert "    clients = 5  how many clients, drawn with the seed" in lines
    assert figure_rows("prototype_heatmap")[0][:2] == ("class", None)
    for entry in entries("figures"):
        assert entry.summary.endswith(".")
        for name, _, doc in entry.options:
            assert doc, f"{entry.name}: {name} is not described"
