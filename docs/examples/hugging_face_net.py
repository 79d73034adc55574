"""A model of Hugging Face's transformers as a client's model: model.name=hugging_face_net.py:Net."""

from torch import nn
from transformers import ViTConfig, ViTForImageClassification


class Net(nn.Module):
    """A small vision transformer with initial weights; ``from_pretrained`` of a folder serves as well."""

    def __init__(self, num_classes, input_shape, width=32):
        super().__init__()
        channels, side, _ = input_shape
        config = ViTConfig(
            num_channels=channels,
            image_size=side,
            patch_size=2,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * width,
            num_labels=num_classes,
        )
        self.model = ViTForImageClassification(config)

    def forward(self, x):
        return self.model(pixel_values=x).logits
