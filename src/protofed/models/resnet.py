"""ResNet-8: three stages of one basic block each (He et al. 2016; Zhong et al. 2017)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from protofed.models.catalogue import Backbone, ImageOptions, architecture
from protofed.options import remote


@dataclass(frozen=True)
class ResNet8Options(ImageOptions):
    """Options of ``resnet8``."""

    stem: Literal["imagenet", "cifar"] = remote(
        "imagenet", "imagenet: 7×7 convolution of stride 2 and max pooling; cifar: 3×3 of stride 1"
    )
    widths: tuple[int, int, int] = remote((64, 128, 256), "channels of the stages; the last is the width", least=1)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut: ``(B, c_in, H, W) -> (B, c_out, H/stride, W/stride)``."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False),
                norm1=nn.BatchNorm2d(c_out),
                relu=nn.ReLU(),
                conv2=nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
                norm2=nn.BatchNorm2d(c_out),
            )
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            projection = nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, norm=nn.BatchNorm2d(c_out)))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(body(x) + shortcut(x))``."""
        result: Tensor = (self.body(x) + self.shortcut(x)).relu()
        return result


@architecture("resnet8", "ResNet with one basic block in each of three stages", ResNet8Options)
def _resnet8(input_shape: tuple[int, ...], d: int, options: ResNet8Options) -> Backbone:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, width = input_shape[0], options.widths[0]
    large = options.stem == "imagenet"
    kernel, stride = (7, 2) if large else (3, 1)
    layers["conv"] = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    layers["norm"] = nn.BatchNorm2d(width)
    layers["relu"] = nn.ReLU()
    if large:
        layers["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    for i, wider in enumerate(options.widths, start=1):
        layers[f"block{i}"] = BasicBlock(width, wider, stride=1 if i == 1 else 2)
        width = wider
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    module = nn.Sequential(layers)
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return Backbone(module, stem="conv")
