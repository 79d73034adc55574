"""User modules: what split keeps, moves and refuses; import paths."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofed.errors import ConfigError, ModelError
from protofed.models import SplitModel, build, split
from support import one_line

pytestmark = pytest.mark.fast

HERE = __name__


class Net(nn.Module):
    """Functional forward with dropout before the last layer."""

    def __init__(self, num_classes: int = 5, hidden: int = 12, normalise: bool = False) -> None:
        super().__init__()
        self.normalise = normalise
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc1 = nn.Linear(3 * 6 * 6, hidden)
        self.drop = nn.Dropout(0.3)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, x):
        if self.normalise:
            x = x / x.std()  # NaN for constant samples
        x = F.relu(self.conv(x)).flatten(1)
        return self.fc2(self.drop(F.relu(self.fc1(x))))


class Custom(nn.Module):
    """A body and a final layer, joined by any function."""

    def __init__(self, join, **layers):
        super().__init__()
        self.body = nn.Linear(8, 6)
        self.fc = nn.Linear(6, 4)
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.join = join

    def forward(self, x):
        return self.join(self, x)


def not_a_module():
    return 3


def make(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1], 9), nn.Linear(9, num_classes))


def test_functional_forward_keeps_weights_and_logits():
    net = Net().eval()
    before = copy.deepcopy(net.state_dict())
    model = split(net, input_shape=(1, 8, 8)).eval()
    x = torch.randn(4, 1, 8, 8)
    out = model(x)
    assert out.features.shape == (4, 12)
    assert torch.equal(out.logits, net(x))
    assert isinstance(net.fc2, nn.Linear)
    assert isinstance(net.drop, nn.Dropout)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    model.head.weight.data.zero_()
    assert net.fc2.weight.abs().sum() > 0
    assert set(model.state_dict()) == {f"extractor.backbone.{n}.{p}" for n in ("conv", "fc1") for p in WB} | {
        "head.weight",
        "head.bias",
    }


WB = ("weight", "bias")


def test_dropout_before_the_last_layer_moves_to_the_head():
    net = Net().train()
    model = split(net, input_shape=(1, 8, 8))
    assert model.dropout.p == 0.3
    assert model.training
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(model.extractor(x), model.extractor(x))
    torch.manual_seed(0)
    logits = model(x).logits
    torch.manual_seed(0)
    assert torch.equal(net(x), logits)


def test_dropout_that_feeds_something_else_stays():
    module = Custom(lambda m, x: m.fc(F.relu(m.body(m.drop(x)))), drop=nn.Dropout(0.5))
    model = split(module, input_shape=(8,))
    assert model.dropout.p == 0
    assert model.extractor.backbone.drop.p == 0.5


def test_modes_of_submodules_survive():
    net = Net().train()
    net.conv.eval()
    model = split(net, input_shape=(1, 8, 8))
    assert not model.extractor.backbone.conv.training
    assert model.extractor.backbone.fc1.training


@pytest.mark.parametrize("map_", ["pool", "linear"])
@pytest.mark.parametrize("d", [5, 30])
def test_another_width_gets_a_map_and_a_fresh_head(map_, d):
    net = Net()
    model = split(net, input_shape=(1, 8, 8), d=d, mapping=map_)
    out = model(torch.randn(3, 1, 8, 8))
    assert out.features.shape == (3, d)
    assert out.logits.shape == (3, 5)
    assert ("extractor.map.weight" in model.state_dict()) is (map_ == "linear")
    assert torch.equal(model.extractor.backbone.fc1.weight, net.fc1.weight)


def test_sequential_dtype_and_missing_bias():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    for d in (None, 2):
        model = split(net, input_shape=(4,), d=d, mapping="linear")
        assert model.needs_two_samples
        assert model.head.bias is None
        assert model(torch.randn(5, 4, dtype=torch.float64)).logits.dtype == torch.float64
    assert torch.equal(net[1].running_mean, torch.zeros(6, dtype=torch.float64))


def test_a_single_linear_layer_is_all_head():
    layer = nn.Linear(7, 2)
    model = split(layer, input_shape=(7,))
    x = torch.randn(3, 7)
    assert torch.equal(model(x).features, x)
    assert torch.equal(model(x).logits, layer(x))


def test_input_that_gives_nan_on_constant_samples():
    assert split(Net(normalise=True), input_shape=(1, 8, 8)).feature_dim == 12


def test_layer_registered_under_two_names():
    fc = nn.Linear(6, 4)
    module = Custom(lambda m, x: m.alias(m.body(x)), fc=fc, alias=fc)
    model = split(module, input_shape=(8,))
    assert {k for k in model.state_dict() if "fc" in k or "alias" in k} == set()


def test_split_twice_checks_and_copies():
    model = split(Net(), input_shape=(1, 8, 8))
    again = split(model, input_shape=(1, 8, 8), d=12, num_classes=5)
    assert isinstance(again, SplitModel)
    assert again is not model
    with pytest.raises(ModelError, match="already split, with d = 12 and K = 5"):
        split(model, input_shape=(1, 8, 8), d=13)


def tied():
    module = Custom(lambda m, x: m.fc(m.body(x)), twin=nn.Linear(6, 4))
    module.twin.weight = module.fc.weight
    return module


def after(function):
    return Custom(lambda m, x: function(m.fc(m.body(x))))


FAILURES = [
    (nn.Sequential(nn.Conv1d(8, 4, 1)), (8, 1), "Sequential executes no nn.Linear layer"),
    (after(lambda z: z.softmax(1)), (8,), "final layer 'fc' is not the output: return its logits"),
    (after(lambda z: z[:, :3]), (8,), "final layer 'fc' is not the output"),
    (after(lambda z: (z, z)), (8,), r"must return logits \(B, K\), not a tuple"),
    (after(lambda z: z), (9,), r"Custom cannot take samples of shape 9: .*2x9 and 8x6"),
    (after(lambda z: z), (5, 8), r"final layer 'fc' receives 2×5×6 for two samples, not \(2, width\)"),
    (nn.Sequential(nn.Linear(8, 6), nn.LazyLinear(4)), (8,), "'1.weight' is lazy .*run one batch"),
    (Custom(lambda m, x: m.fc(F.pad(m.fc(m.body(x)), (0, 2)))), (8,), "uses its final layer 'fc' twice"),
    (tied(), (8,), "final layer 'fc' shares its weight with 'twin.weight': untie"),
    (
        Custom(lambda m, x: m.fc(m.body(x).to(m.fc.weight.dtype))),
        (8,),
        "Custom without its final layer 'fc' cannot take samples .*no attribute 'weight'",
    ),
    (Custom(lambda m, x: m.fc(m.body(x)).view(2, -1)[:, :4]), (8,), "the input of its final layer 'fc' changes"),
]


@pytest.mark.parametrize(("module", "shape", "message"), FAILURES)
def test_failures_name_layer_shape_and_remedy(module, shape, message):
    with one_line(ModelError, message):
        split(module, input_shape=shape)


def test_a_module_that_cannot_be_copied():
    module = nn.Linear(2, 2)
    module.cache = module.weight * 2
    with pytest.raises(ModelError, match="Linear cannot be copied: "):
        split(module, input_shape=(2,))


def test_wrong_number_of_classes_and_bad_arguments():
    with pytest.raises(ModelError, match="final layer 'fc2' has 5 outputs for 7 classes"):
        split(Net(), input_shape=(1, 8, 8), num_classes=7)
    with pytest.raises(ConfigError, match="unknown map"):
        split(Net(), input_shape=(1, 8, 8), mapping="max")
    with pytest.raises(ConfigError, match="d must be positive"):
        split(Net(), input_shape=(1, 8, 8), d=0)


def test_a_failed_split_leaves_the_module_alone():
    module = after(F.relu).train()
    with pytest.raises(ModelError):
        split(module, input_shape=(8,))
    assert module.training
    assert not module.fc._forward_hooks


def test_import_path_is_built_with_seed_options_and_offers():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    kwargs = {"input_shape": (1, 8, 8), "num_classes": 7, "d": 10, "mapping": "linear"}
    a = build(f"{HERE}:Net", options={"hidden": 20}, seed=1, **kwargs)
    torch.manual_seed(5)
    b = build(f"{HERE}:Net", options={"hidden": 20}, seed=1, **kwargs)
    assert a.extractor.map.weight.shape == (10, 20)
    assert a.num_classes == 7
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())
    c = build(f"{HERE}:make", input_shape=(3, 4), num_classes=2, d=9)
    assert c(torch.randn(1, 3, 4)).logits.shape == (1, 2)


@pytest.mark.parametrize(
    ("path", "options", "error", "message"),
    [
        ("no_such_package.x:Net", {}, ConfigError, "cannot import model .*No module named"),
        (f"{HERE}:Nett", {}, ConfigError, "no 'Nett' in .*did you mean 'Net'"),
        (f"{HERE}:HERE", {}, ConfigError, "is a str, not a callable"),
        (f"{HERE}:Net", {"width": 3}, ConfigError, "does not accept the options .*'width'"),
        (f"{HERE}:not_a_module", {}, ModelError, "must return a torch.nn.Module, not int"),
        (f"{HERE}:Net", {"num_classes": 4}, ModelError, "has 4 outputs for 7 classes"),
    ],
)
def test_import_path_failures(path, options, error, message):
    with one_line(error, message):
        build(path, input_shape=(1, 8, 8), num_classes=7, d=12, options=options)
