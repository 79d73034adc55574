"""Models of Hugging Face's transformers as clients' models: model.name=hugging_face_net.py:Net or :TextNet."""

from torch import nn
from transformers import AutoModel, ViTConfig, ViTForImageClassification


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


class TextNet(nn.Module):
    """A pretrained text model from a local folder with a new head; tokens count from 1, and 0 stands for none."""

    def __init__(self, num_classes, folder):
        super().__init__()
        self.body = AutoModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False)
        self.head = nn.Linear(self.body.config.hidden_size, num_classes)

    def forward(self, x):
        tokens, present = (x.long() - 1).clamp(min=0), (x > 0).long()
        present[:, 0] = 1  # attention needs a token even in an empty text
        return self.head(self.body(tokens, attention_mask=present).last_hidden_state[:, 0])
