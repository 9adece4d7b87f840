"""Layers of published convolutional networks for images of 224 x 224 pixels, by name.

AlexNet in the single-tower form of "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014),
61,100,840 parameters; VGG16 is configuration D of "Very deep convolutional networks for large-scale image recognition"
(Simonyan, Zisserman 2015), 138,357,544 parameters. Biases are counted; pooling layers have no parameters.
"""

from __future__ import annotations

from jellybean_solver.pipeline.layer_parallelism.network import LayerKind, NetworkLayer


def _conv(name: str, channels: tuple[int, int], kernel: int, pixels: tuple[int, int]) -> NetworkLayer:
    """A convolution; `channels` and `pixels` (edge of the image) of its input and its output."""
    (inputs, outputs), (before, after) = channels, pixels
    parameters = outputs * (inputs * kernel**2 + 1)
    return NetworkLayer(name, LayerKind.CONV, parameters, inputs * before**2, outputs * after**2)


def _linear(name: str, inputs: int, outputs: int) -> NetworkLayer:
    return NetworkLayer(name, LayerKind.LINEAR, outputs * (inputs + 1), inputs, outputs)


_ALEXNET = (
    _conv("conv1", (3, 64), 11, (224, 55)),
    _conv("conv2", (64, 192), 5, (27, 27)),
    _conv("conv3", (192, 384), 3, (13, 13)),
    _conv("conv4", (384, 256), 3, (13, 13)),
    _conv("conv5", (256, 256), 3, (13, 13)),
    _linear("fc6", 256 * 6**2, 4096),
    _linear("fc7", 4096, 4096),
    _linear("fc8", 4096, 1000),
)

_VGG16 = (
    _conv("conv1_1", (3, 64), 3, (224, 224)),
    _conv("conv1_2", (64, 64), 3, (224, 224)),
    _conv("conv2_1", (64, 128), 3, (112, 112)),
    _conv("conv2_2", (128, 128), 3, (112, 112)),
    _conv("conv3_1", (128, 256), 3, (56, 56)),
    _conv("conv3_2", (256, 256), 3, (56, 56)),
    _conv("conv3_3", (256, 256), 3, (56, 56)),
    _conv("conv4_1", (256, 512), 3, (28, 28)),
    _conv("conv4_2", (512, 512), 3, (28, 28)),
    _conv("conv4_3", (512, 512), 3, (28, 28)),
    _conv("conv5_1", (512, 512), 3, (14, 14)),
    _conv("conv5_2", (512, 512), 3, (14, 14)),
    _conv("conv5_3", (512, 512), 3, (14, 14)),
    _linear("fc6", 512 * 7**2, 4096),
    _linear("fc7", 4096, 4096),
    _linear("fc8", 4096, 1000),
)

PUBLISHED_NETWORKS = {"alexnet": _ALEXNET, "vgg16": _VGG16}
