"""Real data sets, where a copy is at hand."""

import pytest
import torch

from conftest import real_data
from protofed.data import DataOptions, load


def test_mnist():
    data = DataOptions(source="mnist", data_dir=str(real_data("mnist").parent), samples=2000, clients=5)
    federated = load(data, "dirichlet", {"alpha": 0.5}, 0)
    assert federated.input_shape == (1, 28, 28)
    assert federated.class_names == tuple("0123456789")
    assert int(federated.class_counts().sum()) == 2000
    assert federated.clients[0].train.x.dtype == torch.uint8
    mean = torch.cat([c.train.x for c in federated.clients]).double().mean() / 255
    assert mean == pytest.approx(0.1307, abs=0.01), "the well-known mean of MNIST's pixels"


def test_cifar10():
    data = DataOptions(source="cifar10", data_dir=str(real_data("cifar10").parent), samples=1000, clients=5)
    federated = load(data, "iid", None, 0)
    assert federated.input_shape == (3, 32, 32)
    assert federated.class_names[:2] == ("airplane", "automobile")
    assert int(federated.class_counts().sum()) == 1000
    mean = torch.cat([c.train.x for c in federated.clients]).double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.03), "the well-known channel means"


def test_fed_mnist7k():
    path = real_data("fed-mnist7k")
    federated = load(DataOptions(source="path", path=str(path)), "natural", None, 0)
    assert len(federated.clients) == 20
    assert sum(len(c.train) for c in federated.clients) == 5242
    assert sum(len(c.test) for c in federated.clients) == 1758
    assert federated.input_shape == (1, 28, 28)
    assert federated.num_classes == 10


@pytest.mark.slow
@pytest.mark.parametrize(("name", "total"), [("mnist", 70000), ("cifar10", 60000)])
def test_all_of_it(name, total):
    federated = load(DataOptions(source=name, data_dir=str(real_data(name).parent)), "dirichlet", None, 0)
    assert int(federated.class_counts().sum()) == total
