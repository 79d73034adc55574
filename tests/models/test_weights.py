"""Initial weights from files: published formats with random numbers, what must fit, and hostile files."""

from __future__ import annotations

import os
import pickle
import socket
import zipfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from protofed import models
from protofed.errors import ConfigError, ModelError, ProtofedError
from protofed.experiments.assemble import assemble
from protofed.models.preparation import IMAGENET
from protofed.models.weights import read_weights
from protofed.samples import ClientData, FederatedData, Samples
from support import experiment, few, one_line

MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refused(*_args, **_kwargs):
        raise AssertionError("no address may be looked up")

    monkeypatch.setattr(socket, "getaddrinfo", refused)


def one(name: str, weights: Path | str, channels: int = 3, d: int = 64, **options) -> models.SplitModel:
    chosen = {"weights": str(weights), **options}
    return models.build(name, input_shape=(channels, 32, 32), num_classes=10, d=d, options=chosen, seed=1)


def write(tensors: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=path.suffix == ".pth")
    return path


def published(name: str, **arguments) -> nn.Module:
    """torchvision's own network with its classifier, and numbers of which none is at its start."""
    import torchvision

    torch.manual_seed(5)
    network = getattr(torchvision.models, name)(weights=None, **arguments)
    for tensor in network.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape) + 0.5 if tensor.is_floating_point() else torch.tensor(3))
    for weight in network.parameters():
        weight.data.mul_(weight[0].numel() ** -0.5 if weight.dim() > 1 else 1.0)
    return network


@few("suffix", [".safetensors", ".pth", ".legacy"], 1)
def test_every_format_gives_torchvisions_features(tmp_path, suffix):
    """FedProto's ResNet-18: the features are torchvision's, of images normalised as its weights require."""
    network = published("resnet18")
    model = one("resnet18", write(network.state_dict(), tmp_path / f"r{suffix}"), d=512).eval()
    head, network.fc = network.fc, nn.Identity()
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(x).features, network.eval()((x - MEAN) / STD))
    assert model.head.weight.shape != head.weight.shape
    plain = models.build("resnet18", input_shape=(3, 32, 32), num_classes=10, d=512, seed=1)
    assert torch.equal(model.head.weight, plain.head.weight)
    assert model.state_dict().keys() == plain.state_dict().keys()


@few("name", ["mobilenet_v2", "shufflenet_v2_x1_0", "shufflenet_v2_x0_5", "efficientnet_b0"], 1)
def test_other_networks_leave_their_classifier_behind(tmp_path, name):
    network = published(name)
    model = one(name, write(network.state_dict(), tmp_path / "w.pth"), d=32).eval()
    setattr(network, "fc" if hasattr(network, "fc") else "classifier", nn.Identity())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model.extractor.backbone(x), network.eval()(x))
    assert model.extractor.preparation.normalisation == IMAGENET


def test_stem_of_other_channels_stays_random_and_the_rest_is_the_files(tmp_path):
    network = published("resnet18")
    file = write(network.state_dict(), tmp_path / "r.pth")
    model = one("resnet18", file, channels=1)
    plain = models.build("resnet18", input_shape=(1, 32, 32), num_classes=10, d=64, seed=1)
    ours, random = model.extractor.backbone, plain.extractor.backbone
    assert torch.equal(ours.conv1.weight, random.conv1.weight)
    assert torch.equal(ours.bn1.running_mean, network.bn1.running_mean)
    # Grey is equal parts of each colour.
    assert model.extractor.preparation.normalisation.mean == (pytest.approx(0.449),)


@pytest.mark.slow
def test_fedprotos_stem_is_fresh_though_it_would_fit(tmp_path):
    """The public code keeps its own conv1, bn1 and fc, and takes all else from ImageNet's ResNet-18."""
    network = published("resnet18")
    file = write(network.state_dict(), tmp_path / "r.pth")
    model = one("resnet18", file, fresh=["conv1", "bn1"], stem_stride=[1, 4])
    plain = models.build("resnet18", input_shape=(3, 32, 32), num_classes=10, d=64, seed=1)
    theirs, random = network.state_dict(), plain.extractor.backbone.state_dict()
    for name, tensor in model.extractor.backbone.state_dict().items():
        source = random if name.startswith(("conv1.", "bn1.")) else theirs
        assert torch.equal(tensor, source[name]), name
    with pytest.raises(
        ConfigError, match="fresh: 'conv9' is not part of the backbone, which has conv1, bn1, layer1"
    ):
        one("resnet18", file, fresh=["conv9"])


@pytest.mark.slow
def test_files_without_counts_of_batches_fit(tmp_path):
    """ResNet-18 as FedProto downloads it was saved before BatchNorm counted batches."""
    tensors = {n: t for n, t in published("resnet18").state_dict().items() if "num_batches" not in n}
    one("resnet18", write({"state_dict": tensors}, tmp_path / "old.legacy"))


def test_our_own_architectures_start_from_files_too(tmp_path):
    source = models.build("cnn2", input_shape=(3, 32, 32), num_classes=10, d=8, seed=9).extractor.backbone
    model = one("cnn2", write(source.state_dict(), tmp_path / "c.safetensors"), d=8)
    assert torch.equal(model.extractor.backbone.conv2.weight, source.conv2.weight)
    assert "preparation" not in dict(model.extractor.named_children())


@pytest.mark.slow
def test_without_weights_nothing_is_normalised_unless_asked():
    shape = {"input_shape": (3, 32, 32), "num_classes": 10, "d": 64}
    x = torch.rand(2, 3, 32, 32)
    plain = models.build("resnet18", **shape).eval()
    assert list(dict(plain.extractor.named_children())) == ["backbone", "map"]
    asked = models.build("resnet18", **shape, options={"mean": [0.1, 0.2, 0.3], "std": [0.5, 1, 2]}).eval()
    seen = (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1)
    assert torch.equal(asked(x).features, plain(seen).features)
    assert torch.equal(
        models.build("resnet18", **shape, options={"mean": [0], "std": [1]}).eval()(x).logits, plain(x).logits
    )
    with pytest.raises(ConfigError, match="resnet18: mean has 1 numbers and std 0"):
        models.build("resnet18", **shape, options={"mean": [0.5]})
    with pytest.raises(ConfigError, match="resnet18: mean and std have 2 numbers for images with 3 channels"):
        models.build("resnet18", **shape, options={"mean": [0.5, 0.5], "std": [1, 1]})


@settings(max_examples=15)
@given(st.integers(4, 20), st.integers(4, 20))
def test_images_are_scaled_as_torchvision_scales_them(side, size):
    from torchvision.transforms.v2.functional import resize

    x = torch.rand(2, 1, side, side)
    model = models.build("cnn2", input_shape=(1, side, side), num_classes=3, d=4, options={"size": size})
    torch.testing.assert_close(model.extractor.preparation(x), resize(x, [size, size]))
    assert model(x).features.shape == (2, 4)


def test_no_constant_is_among_the_weights(tmp_path):
    model = models.build("cnn2", input_shape=(1, 8, 8), num_classes=3, d=4, options={"mean": [0.5], "std": [0.2]})
    assert not any("preparation" in n for n, _ in [*model.named_parameters(), *model.named_buffers()])
    assert model.double()(torch.rand(2, 1, 8, 8, dtype=torch.float64)).features.dtype == torch.float64


# What does not fit, and what is not there.


def cases() -> dict[str, tuple]:
    good = {"conv1.weight": torch.rand(32, 3, 5, 5), "conv1.bias": torch.rand(32)}
    good |= {"conv2.weight": torch.rand(64, 32, 5, 5), "conv2.bias": torch.rand(64)}
    return {
        "missing": ({n: t for n, t in good.items() if n != "conv2.bias"}, r"it lacks conv2\.bias \(64\)"),
        "extra": (good | {"conv3.bias": torch.rand(1)}, r"does not fit cnn2: the model has no conv3\.bias"),
        "shape": (
            good | {"conv2.weight": torch.rand(64, 32, 3, 3)},
            r"conv2\.weight is 64×32×3×3, in the model 64×32×5×5",
        ),
        "wide": (good | {"conv1.weight": torch.rand(31, 3, 5, 5)}, r"conv1\.weight is 31×3×5×5"),
        "scalar": (good | {"conv1.weight": torch.tensor(1.0)}, r"conv1\.weight is \(\), in the model"),
        "nan": (
            good | {"conv2.bias": torch.full((64,), float("nan"))},
            r"conv2\.bias has numbers that are not finite",
        ),
        "kind": (
            good | {"conv2.bias": torch.ones(64, dtype=torch.int64)},
            r"conv2\.bias has numbers .*not of the model",
        ),
    }


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".legacy"])
@pytest.mark.parametrize("case", cases())
def test_what_does_not_fit_is_one_line_that_names_the_tensor(tmp_path, case, suffix):
    tensors, message = cases()[case]
    path = write(tensors, tmp_path / f"w{suffix}")
    with one_line(ModelError, message, says=str(path)):
        one("cnn2", path)


def test_weights_that_are_not_at_hand_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("IMAGENET1K_V1", "DEFAULT"):
        with pytest.raises(
            ModelError, match=r"weights \w+ are not on this machine: put resnet18-\w+\.pth into .*hub"
        ):
            one("resnet18", name)
    with pytest.raises(ModelError, match=r"'absent\.pth' not found on this machine, nor one of .*IMAGENET1K_V1"):
        one("resnet18", "absent.pth")
    with pytest.raises(ModelError, match=r"cnn2: weights 'IMAGENET1K_V1' not found on this machine$"):
        one("cnn2", "IMAGENET1K_V1")


@pytest.mark.parametrize(
    "options", [{"weights": "DEFAULT"}, {"weights": "ResNet18_Weights.IMAGENET1K_V1"}, {"pretrained": True}]
)
def test_torchvisions_own_functions_download_nothing(tmp_path, monkeypatch, options):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"torchvision\.models:resnet18: .*put resnet18-\w+\.pth into"):
        models.build("torchvision.models:resnet18", input_shape=(3, 32, 32), num_classes=10, d=8, options=options)


@pytest.mark.slow
def test_torchvisions_weights_are_found_where_torch_keeps_them(tmp_path, monkeypatch):
    from torchvision.models import ResNet18_Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    network = published("resnet18")
    write(network.state_dict(), folder / Path(ResNet18_Weights.IMAGENET1K_V1.url).name)
    model = one("resnet18", "IMAGENET1K_V1")
    assert torch.equal(model.extractor.backbone.layer4[1].conv2.weight, network.layer4[1].conv2.weight)


# Hostile files.


class Trap:
    """What a pickle would call when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("suffix", [".pth", ".legacy"])
def test_code_in_a_file_is_not_run(tmp_path, suffix):
    torch.save(
        {"conv1.weight": Trap(tmp_path / "sprung")},
        tmp_path / f"w{suffix}",
        _use_new_zipfile_serialization=suffix == ".pth",
    )
    refused(tmp_path / f"w{suffix}")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refused(tmp_path / "plain.pth")
    assert not (tmp_path / "sprung").exists()


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_weights(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", [".pth", ".legacy"])
def test_claimed_numbers_reserve_no_memory(tmp_path, suffix):
    """A tensor of 300 numbers is renamed one of 2³⁰ or more where the file describes it."""
    path = write({"a": torch.rand(300)}, tmp_path / f"w{suffix}")
    small, large = b"M\x2c\x01", b"J\x00\x00\x00\x40"
    data = path.read_bytes()
    if suffix == ".legacy":
        assert small in data
        path.write_bytes(data.replace(small, large))
    else:
        with zipfile.ZipFile(path) as archive:
            members = {i.filename: archive.read(i) for i in archive.infolist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                assert small in content or not name.endswith("data.pkl")
                archive.writestr(name, content.replace(small, large) if name.endswith("data.pkl") else content)
    assert "claims 1073741824 of something" in refused(path)


def test_archives_that_grow_are_refused(tmp_path):
    path = write({"a": torch.zeros(10**6)}, tmp_path / "w.pth")
    with zipfile.ZipFile(path) as archive:
        members = {i.filename: archive.read(i) for i in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert "it is compressed" in refused(path)


@pytest.mark.filterwarnings("ignore:Validating sparse")
def test_other_content_is_refused(tmp_path):
    for number, content in enumerate(
        [
            [1, 2],
            {"a": 1},
            {1: torch.ones(1)},
            {},
            torch.ones(2),
            {"a": torch.eye(2).to_sparse()},
            {"a": torch.ones(1, device="meta")},
        ]
    ):
        path = tmp_path / f"{number}.pth"
        torch.save(content, path)
        assert "holds no weights" in refused(path)
    os.mkfifo(tmp_path / "pipe")
    assert "not an ordinary file" in refused(tmp_path / "pipe")
    refused(tmp_path)
    (tmp_path / "long.safetensors").write_bytes((2**62).to_bytes(8, "little"))
    assert "header" in refused(tmp_path / "long.safetensors")


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> dict[str, bytes]:
    """Return a file of each form, written once: a legacy one is not always as long."""
    tensors, folder = {"a": torch.rand(5), "b": torch.rand(2, 2)}, tmp_path_factory.mktemp("undamaged")
    return {s: write(tensors, folder / f"w{s}").read_bytes() for s in (".safetensors", ".pth", ".legacy")}


@given(st.data())
def test_damaged_files_are_one_line_or_still_tensors(undamaged, tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    suffix = data.draw(st.sampled_from(sorted(undamaged)))
    content = bytearray(undamaged[suffix])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / f"damaged{suffix}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with suppress(ModelError):
        assert all(isinstance(tensor, Tensor) for tensor in read_weights(path).values())


# Federations.


def images() -> FederatedData:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int) -> Samples:
        return Samples(torch.rand(count, 1, 8, 8, generator=generator), torch.arange(count) % 3)

    clients = (
        ClientData(name, samples(n), samples(6), None, {}) for name, n in (("ann", 9), ("bob", 7), ("cid", 8))
    )
    return FederatedData(tuple(clients), 3, tuple("abc"), (1, 8, 8))


@pytest.fixture
def small(tmp_path):
    source = models.build("cnn2", input_shape=(1, 10, 10), num_classes=3, d=5, options={"channels": [3, 4]}, seed=7)
    return write(source.extractor.backbone.state_dict(), tmp_path / "small.safetensors")


def test_what_does_not_fit_ends_a_run_before_it_begins(small):
    with pytest.raises(
        ProtofedError, match=r"^ann: .*small\.safetensors: does not fit cnn2: conv1\.weight is 3×1×5×5"
    ):
        assemble(
            experiment("fedproto", model__name="cnn2", model__options={"channels": [8, 4], "weights": str(small)}),
            images(),
        )


def test_trained_models_are_restored_without_the_file_they_began_from(small):
    options = {"channels": [3, 4], "weights": str(small), "mean": [0.4], "std": [0.3]}
    chosen = experiment("fedavg", model__name="cnn2", model__options=options)
    small.unlink()
    with pytest.raises(ModelError, match=r"^ann: cnn2: weights .* not found on this machine"):
        assemble(chosen, images())
    federation, _ = assemble(chosen, images(), pretrained=False)
    with closing(federation.executor):
        model = federation.executor.clients.model("ann")
    assert model.extractor.preparation.normalisation.mean == (0.4,)


def test_a_folder_of_ones_own_holds_the_files_of_a_recipe(small, tmp_path):
    """As on a node of a network, which opens no path that a recipe names."""
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    options = {"weights": f"/recipes/machine/{small.name}", "channels": [3, 4]}
    shape = {"input_shape": (1, 10, 10), "num_classes": 3, "d": 5}
    with pytest.raises(ModelError, match=rf"'{elsewhere}/small\.safetensors' not found on this machine"):
        models.build("cnn2", **shape, options=options, weights_dir=str(elsewhere))
    small.rename(elsewhere / small.name)
    found = models.build("cnn2", **shape, options=options, weights_dir=str(elsewhere))
    assert torch.equal(found.extractor.backbone.conv1.bias, read_weights(elsewhere / small.name)["conv1.bias"])
    models.build("cnn2", **shape, options=options, pretrained=False)
