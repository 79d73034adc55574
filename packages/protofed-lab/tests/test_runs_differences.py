from hypothesis import given
from hypothesis import strategies as st

from protofed_lab.viewer.differences import ABSENT, options

VALUES = st.sampled_from([0, 1, 1.0, "", "x", ABSENT, True, [], [1, 2]])
TREES = st.dictionaries(
    st.sampled_from("abc"), st.one_of(VALUES, st.dictionaries(st.sampled_from("xyz"), VALUES, min_size=1))
)


def test_options_stand_in_their_own_order_and_beside_their_like():
    first = {"seed": 0, "method": {"name": "fedproto", "lambda": 1.0}, "data": {"name": "mnist"}}
    second = {"seed": 0, "method": {"name": "protonorm", "gamma": 35.0}, "data": {"name": "mnist"}, "extra": True}
    found = options([first, second])
    assert [(o.name, *o.values, o.differs) for o in found] == [
        ("seed", "0", "0", False),
        ("extra", ABSENT, "true", True),
        ("method.name", '"fedproto"', '"protonorm"', True),
        ("method.lambda", "1.0", ABSENT, True),
        ("method.gamma", ABSENT, "35.0", True),
        ("data.name", '"mnist"', '"mnist"', False),
    ]


def test_texts_and_numbers_are_told_apart():
    assert options([{"a": 1}, {"a": "1"}])[0].differs
    assert options([{"a": ABSENT}, {}])[0].differs


@given(st.lists(TREES, min_size=1, max_size=4))
def test_every_option_is_there_once(trees):
    found = options(trees)
    assert len({o.name for o in found}) == len(found)
    for i, tree in enumerate(trees):
        leaves = sum(len(v) if isinstance(v, dict) else 1 for v in tree.values())
        assert sum(o.values[i] != ABSENT for o in found) == leaves


@given(TREES)
def test_a_configuration_does_not_differ_from_itself(tree):
    assert not any(o.differs for o in options([tree, tree]))
