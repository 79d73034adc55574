"""Architectures and encoders of texts as tokens, against naive references."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from protofed.data.text import HASHES, tokenize
from protofed.errors import ConfigError, ModelError
from protofed.models import build, groups, parameter_count
from protofed.models.encoders import EncoderOptions, build_encoder, width_of
from protofed.models.text import Bag, Gated

NAMES = ["text_bag", "text_cnn", "text_gru", "text_transformer"]
L = 6
WORDS = tokenize(["the knee hurts", "", "a rash on the knee and a fall", "the knee hurts"], L)


def one(name, shape=(L,), d=5, **options):
    return build(name, input_shape=shape, num_classes=3, d=d, options=options).eval()


@pytest.mark.parametrize("name", NAMES)
def test_shapes_gradients_and_texts_without_words(name):
    model = one(name)
    out = model(WORDS)
    assert out.features.shape == (4, 5)
    assert out.logits.isfinite().all()
    out.logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert torch.equal(out.logits[0], out.logits[3])
    assert [m for m, _ in groups.get("text4").members] == NAMES
    assert parameter_count(model) < 150_000


@pytest.mark.parametrize("name", NAMES)
def test_what_follows_a_text_does_not_matter(name):
    """Longer samples of the same texts have the same features, but for learned places."""
    short, long = one(name, rows=64), one(name, (9,), rows=64)
    state = short.state_dict()
    for key, value in long.state_dict().items():
        if value.shape != state[key].shape:
            state[key] = torch.cat([state[key], value[len(state[key]) :]])
    long.load_state_dict(state)
    padded = torch.cat([WORDS[:1], torch.zeros(1, 3)], 1)
    torch.testing.assert_close(long(padded).features, short(WORDS[:1]).features)


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_of_clients_computes_what_each_does(name):
    each = [build(name, input_shape=(L,), num_classes=3, d=5, seed=s).eval() for s in range(3)]
    params, buffers = stack_module_state(each)
    found = vmap(lambda p, b, x: functional_call(each[0], (p, b), x).logits)(params, buffers, WORDS.expand(3, 4, L))
    torch.testing.assert_close(found, torch.stack([model(WORDS).logits for model in each]), rtol=1e-5, atol=1e-6)


def test_the_bag_is_the_scaled_sum_of_words_and_pairs():
    bag = Bag(50, 4)
    words = [int(t) for t in WORDS[2]]
    pairs = [a * 1_000_003 + b for a, b in pairwise(words)]
    expected = sum(bag.words.table.weight[t % 50] for t in words + pairs) / math.sqrt(len(words + pairs))
    torch.testing.assert_close(bag(WORDS[2:3].long())[0], expected)


def test_the_recurrent_network_is_torch_s():
    own, theirs = Gated(50, 4, 3), nn.GRU(4, 3, batch_first=True)
    own.load_state_dict(
        {
            "words.table.weight": own.words.table.weight,
            "inputs.weight": theirs.weight_ih_l0,
            "inputs.bias": theirs.bias_ih_l0,
            "states.weight": theirs.weight_hh_l0,
            "states.bias": theirs.bias_hh_l0,
        }
    )
    tokens = WORDS[2:3].long()  # without padding
    torch.testing.assert_close(own(tokens), theirs(own.words(tokens))[0].mean(1))


def test_the_transformer_s_attention_is_torch_s():
    model = one("text_transformer", width=8, heads=2, hidden=16)
    layer = model.extractor.backbone.body.layers[0]
    theirs = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True, norm_first=True).eval()
    parts = {
        "self_attn.in_proj_{}": layer.given,
        "self_attn.out_proj.{}": layer.out,
        "linear1.{}": layer.up,
        "linear2.{}": layer.down,
        "norm1.{}": layer.norm1,
        "norm2.{}": layer.norm2,
    }
    kinds = ("weight", "bias")
    theirs.load_state_dict({name.format(k): getattr(part, k) for name, part in parts.items() for k in kinds})
    x, absent = torch.randn(4, L, 8), WORDS == 0
    absent[1, 0] = False  # torch's has no answer where nothing is present
    expected = theirs(x, src_key_padding_mask=absent)
    torch.testing.assert_close(layer(x, absent)[~absent], expected[~absent], rtol=1e-5, atol=1e-5)


def test_the_convolutions_are_those_of_the_description():
    model = one("text_cnn", rows=40, width=3, channels=2, kernels=[2])
    body = model.extractor.backbone.body
    (layer,) = body.layers
    rows = body.words.table.weight[WORDS[0].long() % 40] * (WORDS[0] > 0)[:, None]
    padded = F.pad(rows, (0, 0, 1, 1))
    responses = [(padded[i : i + 2].T * layer.weight).sum((1, 2)) + layer.bias for i in range(L + 1)]
    torch.testing.assert_close(body(WORDS[:1].long())[0], torch.stack(responses).amax(0).relu())


@pytest.mark.parametrize("name", [*NAMES, "tiny"])
def test_numbers_beside_tokens(name):
    """Two texts of two and three tokens, with numbers before, between and behind them."""
    model = one(name, (9,), tokens=(1, 2, 4, 3))
    x = torch.cat([torch.rand(4, 1), WORDS[:, :2], torch.rand(4, 1), WORDS[:, 3:6], torch.rand(4, 2)], 1)
    out = model(x).features
    for column in (0, 3, 8):
        other = x.clone()
        other[:, column] += 1
        assert not torch.equal(model(other).features, out)
    changed = x.clone()
    changed[:, 0] = -x[:, 0]
    assert model(changed).logits.isfinite().all()


def test_what_is_refused():
    with pytest.raises(ModelError, match=r"text_cnn takes texts as tokens .*not samples of shape 1×8×8: use cnn2"):
        one("text_cnn", (1, 8, 8))
    with pytest.raises(ConfigError, match="tokens must be pairs"):
        one("text_bag", tokens=(3, 2, 0, 1))
    with pytest.raises(ConfigError, match="text_bag: tokens name input 6 of 6"):
        one("text_bag", tokens=(3, 4))
    with pytest.raises(ConfigError, match="width must be a multiple of heads=3"):
        one("text_transformer", heads=3)
    with pytest.raises(ConfigError, match="kernels must name"):
        one("text_cnn", kernels=())


# Encoders.


def test_hashing_is_the_signed_root_of_counts():
    """Recomputed with Python's whole numbers; signs and buckets are spread evenly."""
    options = EncoderOptions("hashing", options={"buckets": 7}, seed=3)
    encoder = build_encoder(options, (L,), texts=((0, L),))
    start, factor = encoder.body.start, 0x9E3779B97F4A7C15

    def mixed(token):
        def signed(value):
            return (value + 2**63) % 2**64 - 2**63

        value = signed((token ^ start) * factor)
        return signed((value ^ (value >> 29)) * factor)

    for row, found in zip(WORDS, encoder(WORDS), strict=True):
        words = [int(t) for t in row if t]
        counts = [0.0] * 7
        for token in words + [a * 1_000_003 + b for a, b in pairwise(words)]:
            value = mixed(token)
            counts[(value >> 41 & 0xFFFFF) % 7] += 1 if value >> 40 & 1 else -1
        expected = torch.tensor([math.copysign(math.sqrt(abs(c)), c) for c in counts])
        torch.testing.assert_close(found, F.normalize(expected, dim=0))
    many = torch.randint(1, HASHES, (2000, 1), generator=torch.Generator().manual_seed(0)).float()
    spread = build_encoder(options, (1,), texts=((0, 1),))(many)
    assert spread.abs().sum(0).sub(2000 / 7).abs().max() < 80
    assert spread.sum().abs() < 200


def test_encoders_of_texts_and_of_numbers_are_not_mixed_up():
    texts = ((1, L - 1),)
    assert build_encoder(EncoderOptions("auto"), (L,), texts=texts).width == 1024 + 1
    assert width_of(EncoderOptions("auto"), (L,), texts) == 1025
    assert build_encoder(EncoderOptions("auto"), (L,)).body.__class__.__name__ == "Waves"
    for name in ("random", "identity", "scattering", "resnet18"):
        with pytest.raises(ConfigError, match=f"encoder.name={name} is for .*the samples are texts as tokens"):
            build_encoder(EncoderOptions(name), (L,), texts=texts)
    with pytest.raises(
        ConfigError, match=r"encoder.name=hashing is for texts, but the samples are not texts: .*data.text=C"
    ):
        build_encoder(EncoderOptions("hashing"), (L,))


def test_a_node_states_the_key_of_an_encoder_before_it_knows_the_places():
    keys = {build_encoder(EncoderOptions("hashing"), (n,), texts=((0, n),)).key for n in (3, 9)}
    assert len(keys) == 1
    assert build_encoder(EncoderOptions("hashing", seed=1), (3,), texts=((0, 3),)).key not in keys
