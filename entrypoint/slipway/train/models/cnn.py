"""Convolutional networks for labelled pictures: two small ones, and torchvision's ResNets.

They take float pictures of shape (n, 3, height, width), best in channels_last, and return logits (n, classes). All end
with a global pooling, so they take any size that the earlier poolings leave something of.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SMALL_PICTURE = 64  # pixels; up to this size torchvision's ResNets begin as in He et al. (2016) for CIFAR


def build(model: str, classes: int, size: int) -> nn.Module:
    """Return the network of this name (small, resnet9, resnet18, resnet50) for square pictures of `size` pixels.

    Weights come from torch's random generator. A ResNet of torchvision has its parameter names; for pictures of up to
    SMALL_PICTURE pixels its first convolution is 3×3 with stride 1 and it has no first pooling (He et al., "Deep Residual
    Learning for Image Recognition", 2016, section 4.2).
    """
    if model == "small":
        return small(classes)
    if model == "resnet9":
        return resnet9(classes)
    import torchvision  # takes most of a second

    network: nn.Module = getattr(torchvision.models, model)(num_classes=classes)
    if size <= SMALL_PICTURE:
        network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    return network


def small(classes: int) -> nn.Sequential:
    """99,306 parameters for ten classes; 3.7 million multiplications for a picture of 32×32."""
    return nn.Sequential(
        layer(3, 16, size=4, stride=2),
        layer(16, 32, pool=True),
        layer(32, 64, pool=True),
        layer(64, 128),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def resnet9(classes: int) -> nn.Sequential:
    """The network of D. Page, "How to train your ResNet" (2018), part 4, made for DAWNBench; 6.6 million parameters."""
    return nn.Sequential(
        layer(3, 64),
        layer(64, 128, pool=True),
        Residual(128),
        layer(128, 256, pool=True),
        layer(256, 512, pool=True),
        Residual(512),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes, bias=False),
        Scaled(0.125),
    )


def layer(inputs: int, outputs: int, size: int = 3, stride: int = 1, pool: bool = False) -> nn.Sequential:
    """Convolution, pooling to half the size if asked for, normalisation, ReLU.

    Pooling comes directly after the convolution: the rest then has a quarter of the work.
    """
    parts: list[nn.Module] = [nn.Conv2d(inputs, outputs, size, stride, padding=1, bias=False)]
    parts += [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(*parts, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two layers whose input is added to their output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(layer(width, width), layer(width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, width, height, width) to the same shape."""
        result: torch.Tensor = hidden + self.layers(hidden)
        return result


class Scaled(nn.Module):
    """A constant factor that keeps the logits of `resnet9` small at first."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return logits * self.factor


def sgd(model: nn.Module, lr: float, momentum: float, weight_decay: float) -> torch.optim.SGD:
    """Fused SGD with Nesterov momentum, if any; only matrices and convolutions decay."""
    groups = [
        {"params": [part for part in model.parameters() if part.ndim > 1], "weight_decay": weight_decay},
        {"params": [part for part in model.parameters() if part.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr, momentum=momentum, nesterov=momentum > 0, fused=True)


def flops_per_picture(model: nn.Module, size: int) -> float:
    """Return the floating-point operations of forward and backward for a picture: three times the forward pass.

    Convolutions and matrix products count, as in Chowdhery et al., "PaLM" (2022), appendix B.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy.deepcopy(model).to("meta").eval()(torch.empty(1, 3, size, size, device="meta"))
    return 3.0 * float(counter.get_total_flops())
