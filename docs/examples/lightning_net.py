"""A Lightning module as a client's model: model.name=lightning_net.py:Net."""

import math

import lightning
import torch
from torch import nn


class Net(lightning.LightningModule):
    """A small network; protofed trains it itself, so ``training_step`` and the optimiser are for your own use."""

    def __init__(self, num_classes, input_shape, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.ReLU())
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
