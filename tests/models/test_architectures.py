"""Every architecture: shapes, counts, seeds, and what each network computes."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from protofed.errors import ConfigError, ModelError
from protofed.models import TextOptions, architectures, build, key_noise, parameter_count
from protofed.models.core import make_map
from support import few, one_line

SHAPES = [(1, 28, 28), (3, 32, 32), (3, 64, 64)]
OWN_MAP = {"mlp", "cnn2", "fedproto_cnn", "fedproto_femnist_cnn"}
VISION = ["resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "shufflenet_v2_x0_5", "efficientnet_b0"]
SERIES = {"cnn1d", "fcn1d"}
IMAGES = [
    name
    for name in architectures
    if name not in SERIES and not issubclass(architectures.get(name).Options, TextOptions)
]


def one(name, shape=(3, 32, 32), d=64, K=10, **kwargs):
    return build(name, input_shape=shape, num_classes=K, d=d, **kwargs)


@pytest.mark.parametrize("name", IMAGES)
@few("shape", SHAPES, 1, ids=str)
def test_shapes_for_every_architecture_and_image(name, shape):
    model = one(name, shape, d=48, K=7).train()
    out = model(torch.randn(2, *shape))
    assert out.features.shape == (2, 48)
    assert out.logits.shape == (2, 7)
    assert (model.feature_dim, model.num_classes) == (48, 7)
    out.logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@few("name", IMAGES, 6)
def test_weights_depend_on_the_seed_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = one(name, seed=3).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second, other = one(name, seed=3).state_dict(), one(name, seed=4).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


# The first weight, and the first of the head.
FIRST = {
    "mlp": [-0.00680072, 0.104723692],
    "cnn2": [-0.043524608, 0.00843201578],
    "fedproto_cnn": [-0.043524608, 0.0947493017],
    "cnn4": [-0.0725410134, 0.106960237],
    "resnet8": [-0.0345343389, 0.120959163],
    "resnet18": [0.0236950032, 0.00185906887],
}


def test_existing_names_and_seeds_keep_their_weights():
    """The first numbers of models as they were before weights, members and preparation came."""
    for name, first in FIRST.items():
        model = one(name, seed=3)
        numbers = [next(model.parameters()).flatten()[0].item(), model.head.weight[0, 0].item()]
        torch.testing.assert_close(numbers, first)


@few("name", IMAGES, 6)
def test_names_are_stable_and_state_dicts_load(name):
    model, twin = one(name, seed=0).eval(), one(name, seed=1).eval()
    parts = {"head"} if name == "identity" else {"extractor", "head"}
    assert {k.split(".")[0] for k in model.state_dict()} == parts
    assert {".".join(k.split(".")[:2]) for k in model.state_dict()} <= {
        "extractor.backbone",
        "extractor.map",
        "head.weight",
        "head.bias",
    }
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(x).logits, twin(x).logits)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x).logits, twin(x).logits)


@few("name", IMAGES, 5)
def test_functional_call_and_vmap_match_the_module(name):
    pair = [key_noise(one(name, seed=s, d=40)).eval() for s in (0, 1)]
    params, buffers = stack_module_state(pair)
    x = torch.randn(2, 3, 3, 32, 32)
    skeleton = copy.deepcopy(pair[0])

    def logits(p, b, x):
        return functional_call(skeleton, (p, b), (x,)).logits

    together = vmap(logits)(params, buffers, x)
    for i, model in enumerate(pair):
        torch.testing.assert_close(together[i], model(x[i]).logits, rtol=1e-3, atol=1e-4)
    skeleton.train()
    grads = vmap(grad(lambda p, b, x: logits(p, b, x).sum()), randomness="different")(params, buffers, x)
    assert all(g.isfinite().all() for g in grads.values())


def test_needs_two_samples_follows_options_and_extras():
    model = one("cnn2")
    assert not model.needs_two_samples
    model.extras["projection"] = nn.BatchNorm1d(64)
    assert model.needs_two_samples
    assert "extras.projection.weight" in model.state_dict()


# (name, shape, d, K, options, count). Derivations: a convolution has c_out·(c_in·k² + 1) parameters,
# without bias c_out·c_in·k²; BatchNorm 2c; a linear layer out·(in + 1).
COUNTS = [
    # 32·26 + 64·801 + 512·1025 + 10·513
    ("cnn2", (1, 28, 28), 512, 10, {}, 582_026),
    # 10·26 + 20·251 + 50·321 + 10·51; FedProto prints 21,500
    ("fedproto_cnn", (1, 28, 28), 50, 10, {}, 21_840),
    ("fedproto_cnn", (1, 28, 28), 50, 10, {"channels": 18}, 260 + 18 * 251 + 50 * 289 + 510),
    # FedProto's code: 10·10 + 20·251 + 50·(29·29·20 + 1) + 10·51; the paper prints 16 million for 20 clients
    ("fedproto_femnist_cnn", (1, 128, 128), 50, 10, {}, 846_680),
    # ProtoNorm's spiral: five layers, two decision units, six classes
    ("mlp", (2,), 2, 6, {"hidden": [64, 64, 64]}, 64 * 3 + 2 * 64 * 65 + 2 * 65 + 6 * 3),
    # stem 64·147 + 128; blocks 73,984, 230,144 and 919,040; pooled 256 → 512, head 10·513
    ("resnet8", (3, 32, 32), 512, 10, {}, 9_536 + 73_984 + 230_144 + 919_040 + 5_130),
    # torchvision's 11,689,512 less its 1000·513, plus 10·513
    ("resnet18", (3, 32, 32), 512, 10, {}, 11_689_512 - 513_000 + 5_130),
    # torchvision's published counts less classifiers of 1000·(width + 1), plus 10·513
    ("mobilenet_v2", (3, 32, 32), 512, 10, {}, 3_504_872 - 1_281_000 + 5_130),
    ("shufflenet_v2_x1_0", (3, 32, 32), 512, 10, {}, 2_278_604 - 1_025_000 + 5_130),
    # TinyProto, Fig. 1: about 1.36 million with 1,000 classes
    ("shufflenet_v2_x0_5", (3, 32, 32), 1024, 1000, {}, 1_366_792),
    ("efficientnet_b0", (3, 32, 32), 512, 10, {}, 5_288_548 - 1_281_000 + 5_130),
]


@few(("name", "shape", "d", "K", "options", "count"), COUNTS, 12)
def test_parameter_counts(name, shape, d, K, options, count):
    assert parameter_count(one(name, shape, d, K, options=options)) == count


@few("name", VISION, 1)
def test_backbone_computes_what_torchvision_computes(name):
    import torchvision

    reference = getattr(torchvision.models, name)().eval()
    for final in ("fc", "classifier"):
        if hasattr(reference, final):
            setattr(reference, final, nn.Identity())
    backbone = one(name).extractor.backbone.eval()
    reference.load_state_dict(backbone.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(backbone(x), reference(x))


def test_fedproto_cnn_step_by_step():
    model = one("fedproto_cnn", (1, 28, 28), d=50).eval()
    w = {k.removeprefix("extractor."): v for k, v in model.state_dict().items()}
    x = torch.randn(4, 1, 28, 28)
    h = F.conv2d(x, w["backbone.conv1.weight"], w["backbone.conv1.bias"])
    h = F.relu(F.max_pool2d(h, 2))
    h = F.conv2d(h, w["backbone.conv2.weight"], w["backbone.conv2.bias"])
    h = F.relu(F.max_pool2d(h, 2))
    features = F.relu(F.linear(h.flatten(1), w["map.linear.weight"], w["map.linear.bias"]))
    out = model(x)
    torch.testing.assert_close(out.features, features)
    torch.testing.assert_close(out.logits, F.linear(features, w["head.weight"], w["head.bias"]))


def test_head_dropout_spares_the_features_and_stops_in_eval_mode():
    model = one("resnet18", options={"dropout": 0.5}).eval()
    features = torch.ones(1, 64)
    assert torch.equal(model.classify(features), model.head(features))
    model.train()
    assert not torch.equal(model.classify(features), model.head(features))
    torch.manual_seed(0)
    logits = model.classify(features)
    torch.manual_seed(0)
    assert torch.equal(logits, model.head(F.dropout(features, 0.5)))


def test_feature_dropout_of_mobilenet_is_part_of_the_extractor():
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain, noisy = (one("mobilenet_v2", options={"feature_dropout": p}).eval() for p in (0.0, 0.5))
    noisy.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(noisy(x).features, plain(x).features)
    for module in noisy.modules():  # BatchNorm stays in eval mode
        module.train(not isinstance(module, torch.nn.BatchNorm2d))
    assert not torch.equal(noisy(x).features, plain(x).features)
    names = [name for name, _ in noisy.named_parameters()]
    assert names == [name for name, _ in plain.named_parameters()]


def test_resnet18_strides_change_the_geometry_and_not_the_weights():
    a, b = (one("resnet18", options={"stem_stride": s}).eval() for s in ((1, 4), (2, 2)))
    x = torch.randn(1, 3, 32, 32)
    stem = nn.Sequential(*list(a.extractor.backbone.children())[:4])
    assert stem(x).shape[-1] == 8
    assert parameter_count(a) == parameter_count(b)
    assert not torch.allclose(a(x).features, b(x).features)


def test_resnet8_cifar_stem_keeps_resolution():
    model = one("resnet8", options={"stem": "cifar", "widths": [8, 16, 32]}, d=32).eval()
    body = model.extractor.backbone
    assert body[:-2](torch.randn(1, 3, 32, 32)).shape == (1, 32, 8, 8)
    assert isinstance(model.extractor.map, nn.Identity)


@given(st.integers(1, 40), st.integers(1, 40))
def test_pool_averages_neighbours(width, d):
    x = torch.randn(3, width)
    # Output i averages inputs floor(i·w/d) … ceil((i+1)·w/d) − 1.
    bins = [x[:, i * width // d : -((i + 1) * -width // d)].mean(1) for i in range(d)]
    torch.testing.assert_close(make_map("pool", width, d)(x), torch.stack(bins, 1))


@few("name", [n for n in IMAGES if n not in OWN_MAP], 4)
def test_maps(name):
    width = one(name).extractor.backbone(torch.randn(2, 3, 32, 32)).shape[1]
    assert isinstance(one(name, d=width).extractor.map, nn.Identity)
    assert isinstance(one(name, d=30).extractor.map, nn.AdaptiveAvgPool1d)
    linear = one(name, d=30, mapping="linear")
    assert linear.extractor.map.weight.shape == (30, width)
    assert linear(torch.randn(2, 3, 32, 32)).features.shape == (2, 30)


@pytest.mark.parametrize("name", sorted(OWN_MAP))
@pytest.mark.parametrize("relu", [True, False])
def test_architectures_with_their_own_map_ignore_the_choice(name, relu):
    options = {} if name.startswith("fedproto") else {"relu_features": relu}
    pool, linear = (one(name, mapping=m, options=options) for m in ("pool", "linear"))
    assert pool.state_dict().keys() == linear.state_dict().keys()
    features = pool(torch.randn(8, 3, 32, 32)).features
    assert bool((features >= 0).all()) is (relu or name.startswith("fedproto"))


def test_mlp_takes_vectors_and_images():
    assert one("mlp", (13,), options={"hidden": []})(torch.randn(1, 13)).features.shape == (1, 64)
    assert one("mlp", (2, 3, 4))(torch.randn(1, 2, 3, 4)).features.shape == (1, 64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: one("cnn2", (1, 3, 3)),
            ModelError,
            "cnn2 cannot take samples of shape 1×3×3: .*larger images",
        ),
        (lambda: one("cnn4", (1, 7, 7)), ModelError, "cnn4 cannot take samples of shape 1×7×7"),
        (lambda: one("cnn2", (64,)), ModelError, "cnn2 takes images .*shape 64: use mlp"),
        (lambda: one("mlp", (0,)), ModelError, "input_shape .* must be positive integers"),
        (lambda: one("restnet8"), ConfigError, "unknown architecture 'restnet8': did you mean 'resnet8'"),
        (lambda: one("resnet8", mapping="pol"), ConfigError, "unknown map 'pol': did you mean 'pool'"),
        (lambda: one("mlp", d=0), ConfigError, "d must be positive, not 0"),
        (lambda: make_map("none", 2, 2), ConfigError, "unknown map 'none'"),
    ],
)
def test_errors_are_one_line_that_says_what_fits(call, error, message):
    with one_line(error, message):
        call()
