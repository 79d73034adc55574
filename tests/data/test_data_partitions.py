import re
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.compute.seeding import derive, generator
from protofed.data import DataOptions, Request, load, partitions, resolve_options
from protofed.data.classes import Deck
from protofed.errors import ConfigError
from support import few, one_line


def assign(name, y, clients, seed=0, ids=None, **options):
    partition = partitions.get(name)
    classes = int(y.max()) + 1 if len(y) else 0
    request = Request(y, classes, ids, clients, seed)
    return partition.assign(request, resolve_options(partition.Options, options, "partition"))


def balanced(classes=10, each=40):
    return torch.arange(classes).repeat(each)


COVERING = [
    ("iid", {}),
    ("dirichlet", {"alpha": 0.5, "min_size": 2}),
    ("dirichlet", {"alpha": 0.05, "min_size": 1, "self_balancing": True}),
    ("pathological", {"classes": 3}),
    ("pathological", {"classes": 3, "shares": "unequal"}),
    ("quantity", {"min_size": 5}),
    ("quantity", {"alpha": 1e-9, "min_size": 1}),
    ("domain", {"domains": 3}),
    ("domain", {"domains": 4, "within": "dirichlet", "options": {"alpha": 0.3, "min_size": 1}}),
]


@few(("name", "options"), COVERING, 9)
@settings(max_examples=8)
@given(clients=st.integers(4, 12), seed=st.integers(0, 1000))
def test_every_sample_is_used_exactly_once(name, options, clients, seed):
    y = balanced()
    shares = assign(name, y, clients, seed, **options)
    assert len(shares) == clients
    assert torch.equal(torch.cat([s.train for s in shares]).sort().values, torch.arange(len(y)))


@few(("name", "options"), [*COVERING, ("nway_kshot", {"n": 3, "k": 5, "test_shots": 2})], 10)
def test_the_seed_decides(name, options):
    def train(seed):
        return [s.train.tolist() for s in assign(name, balanced(), 5, seed, **options)]

    assert train(1) == train(1)
    assert train(1) != train(2)


def test_iid_mixes_data_that_come_sorted():
    y = torch.arange(10).repeat_interleave(100)
    assert all(len(y[s.train].unique()) == 10 for s in assign("iid", y, 10))


def test_dirichlet_respects_the_least_size_and_skews_with_alpha():
    y = balanced(each=200)
    skewed, even = (assign("dirichlet", y, 8, alpha=a, min_size=10) for a in (0.1, 1000.0))
    assert all(len(s.train) >= 10 for s in skewed)
    assert max(len(s.train) for s in even) < 300 < max(len(s.train) for s in skewed)


def test_dirichlet_does_not_cut_classes_in_file_order():
    y = torch.zeros(1000, dtype=torch.int64)
    first = assign("dirichlet", y, 4, alpha=100.0)[0].train
    assert first.max() - first.min() > 900


def test_dirichlet_starts_again_when_the_partitioner_gives_up():
    # With 1797 samples, 20 clients and alpha 0.1 about one run in ten needs more draws than it allows itself.
    y = torch.arange(10).repeat(180)
    assert all(len(assign("dirichlet", y, 20, seed)) == 20 for seed in range(12))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The specified min_partition_size:UserWarning")  # it draws again, as we do
@given(
    y=st.lists(st.integers(0, 6), min_size=12, max_size=300).map(torch.tensor),
    clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-9, 1e-4, 0.05, 0.1, 1, 10.0, 1e6]),
    least=st.integers(0, 5),
    seed=st.integers(0, 2**40),
)
def test_splits_are_those_of_flwr_datasets(y, clients, alpha, least, seed):
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

    def drawn(seed):
        return DirichletPartitioner(
            clients, partition_by="label", alpha=float(alpha), min_partition_size=least, seed=seed
        )

    def same(name, build, **options):
        order = torch.randperm(len(y), generator=generator(seed, "partition", "order"))
        partitioner = build(derive(seed, "partition") % 2**32)
        partitioner.dataset = Dataset.from_dict({"label": y[order].tolist(), "index": order.tolist()})
        expected = [sorted(partitioner.load_partition(i)["index"]) for i in range(clients)]
        found = assign(name, y, clients, seed, **options)
        assert [s.train.tolist() for s in found] == expected

    same("iid", lambda seed: IidPartitioner(clients))
    with suppress(ValueError):  # flwr-datasets gives up before we do
        same("dirichlet", drawn, alpha=alpha, min_size=least)


def test_pathological_covers_many_classes_with_few_clients():
    # 20 clients with 10 of 100 classes: drawn at random, a dozen classes would have no client.
    y = balanced(classes=100, each=4)
    shares = assign("pathological", y, 20, classes=10)
    assert sum(len(s.train) for s in shares) == len(y)
    holders = torch.zeros(100)
    for s in shares:
        holders[y[s.train].unique()] += 1
    assert holders.unique().tolist() == [2]


@pytest.mark.parametrize(
    ("name", "options", "clients", "expected"),
    [
        ("dirichlet", {"alpha": 0.001, "min_size": 30}, 12, "raise partition.alpha"),
        ("dirichlet", {"alpha": 0.01}, 12, r"set partition.self_balancing=true .* with partition.min_size=1"),
        ("dirichlet", {"self_balancing": True, "min_size": 0}, 401, "only 400 samples"),
        ("pathological", {"classes": 10, "shares": "unequal"}, 60, "class 0 has 40 samples for 60 clients"),
        ("dirichlet", {"min_size": 101}, 4, "lower partition.min_size"),
        ("dirichlet", {"alpha": 0.0}, 4, r"must be above 0 and at most 1000000, not 0"),
        ("iid", {"alpha": 0.1}, 4, "Valid: none"),
        ("iid", {}, 401, "only 400 samples"),
        ("pathological", {"classes": 11}, 4, "use 1..10"),
        ("pathological", {"classes": 1}, 4, "raise partition.classes"),
        ("pathological", {"classes": 10}, 60, "class 0 has 40 samples for 60 clients"),
        ("nway_kshot", {"k": 39}, 4, "lower partition.k"),
        ("natural", {}, 4, "no natural ids"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(name, options, clients, expected):
    with one_line(ConfigError, expected):
        assign(name, balanced(), clients, **options)


def naive_balanced(y, clients, alpha, seed):
    """Return samples per client and class as the papers' code draws them, one class and one client at a time.

    A client takes its part of a class only while it holds less than N/M samples.
    """
    rng = np.random.default_rng(derive(seed, "partition"))
    K = int(y.max()) + 1
    counts = [[0] * K for _ in range(clients)]
    for c in range(K):
        n = int((y == c).sum())
        drawn = rng.dirichlet([alpha] * clients, 1)[0].tolist()
        rng.random((1, clients))
        parts = [p if sum(own) < len(y) / clients else 0.0 for p, own in zip(drawn, counts, strict=True)]
        total = start = 0.0
        for i, part in enumerate(parts):
            total += part
            end = int(total / sum(parts) * n + 1e-9)
            counts[i][c] = int(end - start)
            start = end
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_balanced_dirichlet_is_that_of_the_papers_code(seed):
    y = torch.arange(10).repeat_interleave(torch.arange(150, 250, 10))
    shares = assign("dirichlet", y, 7, seed, alpha=0.5, min_size=0, self_balancing=True)
    found = torch.stack([torch.bincount(y[s.train], minlength=10) for s in shares])
    assert found.tolist() == naive_balanced(y, 7, 0.5, seed)


@few("clients", [20, 50], 1)
@pytest.mark.parametrize("each", [180, 7000])
def test_balanced_dirichlet_works_at_the_papers_smallest_alpha(clients, each):
    """Digits and MNIST: a tenth of a class per client, so that a class has hardly more than one holder."""
    y = torch.arange(10).repeat(each)
    shares = assign("dirichlet", y, clients, alpha=0.01, min_size=1, self_balancing=True)
    counts = torch.stack([torch.bincount(y[s.train], minlength=10) for s in shares])
    assert counts.sum(1).min() >= 1
    assert counts.sum(0).tolist() == [each] * 10
    assert (counts > 0).sum(1).double().mean() < 3


def test_balanced_dirichlet_fills_up_small_clients_only_where_no_draw_suffices(caplog):
    y = torch.arange(10).repeat(180)
    assign("dirichlet", y, 20, alpha=0.1, min_size=1, self_balancing=True)
    assert not caplog.records
    shares = assign("dirichlet", y, 50, alpha=0.01, min_size=5, self_balancing=True)
    assert min(len(s.train) for s in shares) == 5
    assert re.search(r"do all 50 clients reach min_size = 5: \d+ are filled up", caplog.text)


@pytest.mark.parametrize("alpha", [1e-300, 1e-9])
def test_balanced_dirichlet_gives_whole_classes_in_the_limit(alpha):
    """A draw in which only clients that have enough get anything would leave 0/0."""
    y = balanced()
    shares = assign("dirichlet", y, 10, alpha=alpha, min_size=0, self_balancing=True)
    assert sorted(len(s.train) for s in shares) == [40] * 10, "N/M is the size of a class"
    assert all(len(y[s.train].unique()) == 1 for s in shares)


def test_unequal_shares_lie_between_a_tenth_of_an_equal_one_and_the_rest():
    y = balanced(classes=5, each=400)
    seen = []
    for seed in range(10):
        shares = assign("pathological", y, 20, seed, classes=2, shares="unequal")
        counts = torch.stack([torch.bincount(y[s.train], minlength=5) for s in shares])
        assert ((counts > 0).sum(1) == 2).all()
        for own in counts.T:
            sizes = own[own > 0].sort().values
            assert len(sizes) == 8
            assert sizes.sum() == 400
            assert sizes[0] >= 5
            assert sizes[-2] < 50 <= sizes[-1]
            seen += sizes.tolist()[:-1]
    assert len(set(seen)) > 35, "uniform on 5 … 49"
    largest = {
        int(assign("pathological", y, 20, s, classes=5, shares="unequal")[0].train.numel()) for s in range(5)
    }
    assert len(largest) == 5


@settings(max_examples=15)
@given(
    n=st.integers(2, 10),
    n_std=st.integers(0, 4),
    k=st.integers(1, 12),
    k_std=st.integers(0, 3),
    test_shots=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_nway_kshot_keeps_its_ranges(n, n_std, k, k_std, test_shots, seed):
    y = balanced()
    options = {"n": n, "n_std": n_std, "k": k, "k_std": k_std, "test_shots": test_shots}
    for share in assign("nway_kshot", y, 6, seed, **options):
        train, test = (torch.bincount(y[part], minlength=10) for part in (share.train, share.test))
        assert max(2, n - n_std) <= int((train > 0).sum()) <= min(10, n + n_std)
        assert len(train[train > 0].unique()) == 1, "one k per client"
        assert max(1, k - k_std) <= int(train.max()) <= k + k_std
        assert torch.equal(test, torch.where(train > 0, test_shots, 0))
        both = torch.cat([share.train, share.test])
        assert len(both.unique()) == len(both)


def test_nway_kshot_draws_all_of_the_range():
    y = balanced(each=100)
    shares = assign("nway_kshot", y, 60, n=3, n_std=2, k=5, k_std=1, test_shots=1)
    assert {len(y[s.train].unique()) for s in shares} == {2, 3, 4, 5}
    assert {int(torch.bincount(y[s.train]).max()) for s in shares} == {4, 5, 6}


def test_nway_kshot_uses_no_sample_twice_while_there_are_others():
    y = balanced(classes=4, each=60)
    shares = assign("nway_kshot", y, 5, n=4, n_std=0, k=10, k_std=0, test_shots=2)
    used = torch.cat([torch.cat([s.train, s.test]) for s in shares])
    assert len(used.unique()) == len(used) == 5 * 4 * 12


@pytest.mark.parametrize(("clients", "noted"), [(2, False), (40, True)])
def test_test_samples_that_others_train_on_are_noted(clients, noted):
    """Of the digits there are some 180 of a class."""
    options = resolve_options(partitions.get("nway_kshot").Options, {"k": 40, "test_shots": 10}, "partition")
    data = load(DataOptions(source="digits", clients=clients), "nway_kshot", options, 0)
    trained = {x.numpy().tobytes() for client in data.clients for x in client.train.x}
    seen = sum(x.numpy().tobytes() in trained for client in data.clients for x in client.test.x)
    assert (seen > 0) == noted
    if noted:
        assert f"{seen:,} of {sum(len(c.test) for c in data.clients):,} test samples" in data.notes[-1]
    else:
        assert data.notes == ()


@given(st.integers(1, 9), st.data())
def test_a_deck_deals_evenly_and_never_a_card_twice_in_a_hand(n, data):
    deck = Deck(torch.arange(n), generator(0, "deck"))
    dealt = torch.zeros(n)
    for count in data.draw(st.lists(st.integers(0, n), max_size=12)):
        hand = deck.deal(count)
        assert len(hand.unique()) == len(hand) == count
        dealt[hand] += 1
        assert dealt.max() - dealt.min() <= 1


def test_natural_takes_some_or_all_ids():
    ids = torch.tensor([7, 3, 3, 7, 7, 9, 3])
    y = torch.zeros(7, dtype=torch.int64)
    everyone = assign("natural", y, 0, ids=ids)
    assert [s.train.tolist() for s in everyone] == [[1, 2, 6], [0, 3, 4]], "id 9 has a single sample"
    chosen = {tuple(assign("natural", y, 1, seed, ids=ids)[0].train.tolist()) for seed in range(20)}
    assert chosen == {(1, 2, 6), (0, 3, 4)}
    with pytest.raises(ConfigError, match="3 clients wanted, but 2 of 3 natural ids"):
        assign("natural", y, 3, ids=ids)


@pytest.mark.parametrize(("count", "last"), [(5, "client-04"), (99, "client-98"), (100, "client-099")])
def test_client_names_have_one_width(count, last):
    shares = assign("iid", balanced(), count)
    assert shares[-1].name == last
    assert len({len(s.name) for s in shares}) == 1


@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 500))
def test_quantities_differ_and_classes_do_not(clients, least, seed):
    y = torch.arange(4).repeat_interleave(50)
    shares = assign("quantity", y, clients, seed, min_size=least)
    assert sum(len(s.train) for s in shares) == len(y)
    assert all(len(s.train) >= least for s in shares)
    largest = max(shares, key=lambda s: len(s.train))
    assert len(largest.train) < 100 or torch.bincount(y[largest.train], minlength=4).min() > 10


def test_quantities_follow_alpha():
    def spread(**options):
        sizes = torch.tensor(
            [len(s.train) for s in assign("quantity", balanced(each=200), 10, min_size=0, **options)]
        )
        return float(sizes.double().std() / sizes.double().mean())

    assert spread(alpha=0.2) > spread(alpha=2.0) > spread(alpha=1000.0)
    with pytest.raises(ConfigError, match=r"partition.min_size = 50 for 10 clients needs 500 samples"):
        assign("quantity", balanced(each=40), 10, min_size=50)


ORIGIN = torch.arange(400) % 3


def from_three(clients, **options):
    partition = partitions.get("domain")
    request = Request(balanced(), 10, ORIGIN, clients, 0, ["Uni Köln", "b", "c"])
    return partition.assign(request, resolve_options(partition.Options, options, "partition"))


@few("within", ["iid", "dirichlet"], 2)
def test_clients_of_a_domain_have_one_origin(within):
    options = {} if within == "iid" else {"alpha": 0.2, "min_size": 1}
    shares = from_three(8, within=within, options=options)
    assert [s.name for s in shares] == [
        *("Uni Köln-00", "Uni Köln-01", "Uni Köln-02", "b-00", "b-01", "b-02", "c-00", "c-01")
    ]
    assert [s.domain for s in shares] == ["Uni Köln"] * 3 + ["b"] * 3 + ["c"] * 2
    for share in shares:
        assert ORIGIN[share.train].unique().tolist() == [["Uni Köln", "b", "c"].index(share.domain)]
    assert torch.cat([s.train for s in shares]).sort().values.tolist() == list(range(400))


def test_domains_without_an_origin_are_random_parts():
    shares = assign("domain", balanced(), 10, domains=4)
    assert [s.domain for s in shares] == [f"domain-{d}" for d in (0, 0, 0, 1, 1, 1, 2, 2, 3, 3)]
    assert {len(s.train) for s in shares} == {40}
    assert all(s.domain == "" for s in assign("iid", balanced(), 4)), "others are domains of their own"


def test_held_out_parts_of_the_partition_within_are_kept():
    shares = from_three(3, within="nway_kshot", options={"n": 3, "n_std": 0, "k": 2, "k_std": 0, "test_shots": 1})
    for share in shares:
        assert (len(share.train), len(share.test)) == (6, 3)
        assert len(ORIGIN[torch.cat([share.train, share.test])].unique()) == 1


@pytest.mark.parametrize(
    ("clients", "options", "expected"),
    [
        (2, {}, r"3 domains for 2 clients: raise data.clients, or use partition=natural"),
        (4, {"domains": 5}, r"5 domains for 4 clients: raise data.clients, or lower partition.domains"),
        (6, {"within": "natural"}, r"domain Uni Köln: partition 'natural': these data have no natural ids"),
        (6, {"within": "iid", "options": {"alpha": 1}}, r"alpha"),
        (6, {"within": "even"}, r"even"),
        (6, {"within": "pathological", "options": {"classes": 11}}, r"domain Uni Köln: partition.classes = 11"),
    ],
)
def test_domains_that_cannot_be_are_one_line(clients, options, expected):
    with one_line(ConfigError, expected):
        from_three(clients, **options)
