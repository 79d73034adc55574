import subprocess
import sys

import pytest

from protofed.analysis.style import method_styles
from protofed.config.schema import load_recipe
from protofed.runs.rules import find_rule
from protofed.text import duration, mean_std, number, percent, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent(0.5), "50.0%"),
        (percent(1.0), "100.0%"),
        (percent(None), "–"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(999.6), "1.00 kB"),
        (size(1000), "1.00 kB"),
        (size(12_345), "12.3 kB"),
        (size(999_999), "1.00 MB"),
        (size(123_456_789), "123 MB"),
        (size(5e9), "5.00 GB"),
        (size(None), "–"),
        (duration(0.123), "0.12 s"),
        (duration(59.6), "59.6 s"),
        (duration(60), "1 min 00 s"),
        (duration(3599.7), "1 h 00 min"),
        (duration(86400), "24 h 00 min"),
        (duration(None), "–"),
        (number(1234), "1,234"),
        (number(None), "–"),
        (mean_std([0.5, 0.7]), "60.0 ± 14.1%"),
        (mean_std([0.5]), "50.0%"),
        (mean_std([None, 0.5]), "50.0%"),
        (mean_std([]), "–"),
        (mean_std([1000, 3000], size), "2.00 kB ± 1.41 kB"),
        (find_rule("global_own").title, "Global, own classes"),
        (find_rule("my_rule").title, "my rule"),
    ],
)
def test_numbers(text, expected):
    assert text == expected


def test_styles_are_stable_and_distinct():
    alone = method_styles(["FedTGP"])["FedTGP"]
    many = ["local", "fedproto", "fedtgp", "protonorm", "tinyproto", *(f"variant {i}" for i in range(15))]
    styles = method_styles(many)
    assert list(styles) == many
    assert styles["fedtgp"] == alone
    assert styles == {name: method_styles(reversed(many))[name] for name in many}
    assert len({(s.colour, s.dashes) for s in styles.values()}) == len(many)


def test_methods_of_the_default_comparison_are_told_apart():
    names = load_recipe("quickstart")["compare"]["methods"]
    styles = method_styles(names)
    assert (
        len({(s.colour, s.dashes) for s in styles.values()})
        == len({s.marker for s in styles.values()})
        == len(names)
    )
    assert len({styles[n].colour for n in ("local", "beacon", "local_lda-fixed", "fedtgp")}) == 4
    assert len({styles[n].colour for n in ("beacon", "fedtgp", "fedlda-fixed", "fedproto")}) == 4
    assert styles["fedlda-fixed"] == method_styles(["FedLDA"])["FedLDA"]
    assert len(set(method_styles(["fedlda", "fedlda-512", "fedlda-fixed"]).values())) == 3


def test_more_methods_than_styles():
    assert len(set(method_styles(map(str, range(200))).values())) == 200


def test_importing_loads_no_plotting_library():
    code = (
        "import sys, protofed.analysis; print([m for m in ('matplotlib', 'jinja2', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
