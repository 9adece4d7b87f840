"""Small models of torchvision and timm with random weights, their losses, and the rows that they are trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.integration.training.models.zoo import declare_torchvision
from tests.integration.training.published_models import rows
from tests.integration.training.published_models.published import Published
from tests.integration.training.published_models.rows import CLASSES, DTYPE

_HERE = __name__


def with_auxiliary_scores(outputs: Any, classes: torch.Tensor) -> torch.Tensor:
    """The loss of a classifier that gives auxiliary scores in training."""
    if isinstance(outputs, torch.Tensor):
        return functional.cross_entropy(outputs, classes)
    first, *others = (scores for scores in outputs if scores is not None)
    return functional.cross_entropy(first, classes) + 0.3 * sum(
        functional.cross_entropy(scores, classes) for scores in others
    )


def of_segments(outputs: dict[str, torch.Tensor], classes: torch.Tensor) -> torch.Tensor:
    """The loss of torchvision's models of segmentation."""
    loss = functional.cross_entropy(outputs["out"], classes)
    return loss + 0.5 * functional.cross_entropy(outputs["aux"], classes) if "aux" in outputs else loss


class Detector(nn.Module):
    """The loss of one of torchvision's detectors, which takes lists where data have rows."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        from torchvision.models.detection.image_list import ImageList

        targets = [{"boxes": own, "labels": labels} for own, labels in zip(boxes, classes, strict=True)]
        features = [self.detector.backbone(images)]
        scores = self.detector.head(features)
        sizes = [tuple(images.shape[-2:])] * len(images)
        anchors = self.detector.anchor_generator(ImageList(images, sizes), features)
        return sum(self.detector.compute_loss(targets, scores, anchors).values())


def _still(module: nn.Module) -> nn.Module:
    """Without what is random in training, so that two trainings can be compared."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0
        if type(part).__name__ == "DropPath":
            part.drop_prob = 0.0
    return module.to(DTYPE)


def _timm(name: str, size: int = 32, *, large: bool = False, **settings: Any) -> Published:
    def make() -> nn.Module:
        declare_torchvision()
        import timm

        return _still(timm.create_model(name, num_classes=CLASSES, **settings))

    return Published(make, rows.parts_of(rows.pictures(size)), loss="cross_entropy", large=large)


def _torchvision(
    name: str, data: Any, loss: str = "cross_entropy", *, large: bool = False, **settings: Any
) -> Published:
    def make() -> nn.Module:
        declare_torchvision()
        from torchvision import models

        place: Any = models
        for part in name.split("."):
            place = getattr(place, part)
        with torch.random.fork_rng():
            return _still(place(num_classes=CLASSES, **settings))

    return Published(make, rows.parts_of(data), loss, large=large)


def _vgg() -> nn.Module:
    """As for fine-tuning: a small head in place of the large one."""
    from torchvision import models

    vgg = models.VGG(models.vgg.make_layers([8, "M", 8, "M", 16, "M", 16], batch_norm=True), num_classes=CLASSES)
    vgg.classifier = nn.Sequential(nn.Flatten(), nn.Linear(16 * 49, 8), nn.ReLU(True), nn.Linear(8, CLASSES))
    return _still(vgg)


def _densenet() -> nn.Module:
    from torchvision import models

    return _still(models.DenseNet(4, (2, 2), 8, num_classes=CLASSES, memory_efficient=True))


def _detector() -> nn.Module:
    from torchvision import models
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    backbone = models.mobilenet_v2(width_mult=0.25).features[:7]
    backbone.out_channels = 8
    anchors = AnchorGenerator(sizes=((8, 16),), aspect_ratios=((0.5, 1.0, 2.0),))
    found = models.detection.RetinaNet(backbone, CLASSES, anchor_generator=anchors)
    return Detector(_still(found))


_SWIN = {"patch_size": [2, 2], "embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": [4, 4]}
_VIT = {"image_size": 16, "patch_size": 8, "num_layers": 3, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
_NO_WEIGHTS = {"weights": None, "weights_backbone": None}

TORCHVISION = {
    "resnet18": _torchvision("resnet18", rows.pictures(32)),
    "vgg": Published(_vgg, rows.parts_of(rows.pictures(32)), "cross_entropy"),
    "tv_densenet": Published(_densenet, rows.parts_of(rows.pictures(32)), "cross_entropy"),
    "googlenet": _torchvision(
        "googlenet", rows.pictures(64), f"{_HERE}:with_auxiliary_scores", aux_logits=True, init_weights=False,
        large=True,
    ),
    "inception_v3": _torchvision("inception_v3", rows.pictures(75), large=True, aux_logits=False, init_weights=False),
    "mobilenet_v2": _torchvision("mobilenet_v2", rows.pictures(32), width_mult=0.25),
    "squeezenet": _torchvision("squeezenet1_1", rows.pictures(32)),
    "shufflenet": _torchvision("shufflenet_v2_x0_5", rows.pictures(32)),
    "mnasnet": _torchvision("mnasnet0_5", rows.pictures(32)),
    "tv_swin": _torchvision("SwinTransformer", rows.pictures(16), **_SWIN),
    "tv_vit": _torchvision("VisionTransformer", rows.pictures(16), **_VIT),
    "r3d": _torchvision("video.r3d_18", rows.films, large=True),
    "deeplab": _torchvision(
        "segmentation.deeplabv3_mobilenet_v3_large", rows.segmented_pictures(32), f"{_HERE}:of_segments",
        aux_loss=True, large=True, **_NO_WEIGHTS,
    ),
    "lraspp": _torchvision(
        "segmentation.lraspp_mobilenet_v3_large", rows.segmented_pictures(32), f"{_HERE}:of_segments", large=True,
        **_NO_WEIGHTS
    ),
    "retinanet": Published(_detector, rows.parts_of(rows.boxed_pictures), "model"),
}  # fmt: skip

TIMM = {
    "timm_resnet": _timm("resnet14t", large=True),
    "efficientnet": _timm("efficientnet_b0", large=True),
    "mobilenetv3": _timm("mobilenetv3_small_050"),
    "regnet": _timm("regnetx_002"),
    "timm_vit": _timm("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=12, num_heads=2),
    "mixer": _timm("mixer_s32_224", large=True, img_size=32),
    "convnext": _timm("convnext_atto", depths=(1, 1, 2, 1), dims=(4, 8, 8, 16)),
    "timm_densenet": _timm("densenet121", growth_rate=4, block_config=(2, 2)),
    "timm_swin": _timm("swin_tiny_patch4_window7_224", 28, img_size=28, embed_dim=8, depths=(1, 2), num_heads=(1, 2)),
    "ghostnet": _timm("ghostnet_050", large=True, drop_rate=0.0),
    "repvgg": _timm("repvgg_a0", large=True),
    "levit": _timm("levit_128s", 224, large=True),
    "nfnet": _timm("nf_resnet26", large=True),
    "vit_positions": _timm("test_vit2", 160),  # it resizes what it knows of positions, in single precision
    "cait": _timm("cait_xxs24_224", img_size=32, depth=2, embed_dim=12, num_heads=2),
}
