"""Pillow to tensor, as training pipelines do it; no numpy, which torch does not bring."""

from __future__ import annotations

import math
import random

import torch
from PIL import Image

# Means and standard deviations of ImageNet, the usual normalisation.
_MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
_STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def training_image(image: Image.Image, size: int) -> torch.Tensor:
    """Random resized crop, random flip, tensor, normalised: the ImageNet training recipe."""
    box = _random_crop(*image.size)
    cropped = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_tensor(cropped).sub_(_MEAN).div_(_STD)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """An RGB image as a float tensor, channels first, 0 to 1."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    planes = pixels.view(image.height, image.width, 3).permute(2, 0, 1).contiguous()
    return planes.to(torch.float32).div_(255)


def _random_crop(width: int, height: int) -> tuple[float, float, float, float]:
    """A box of 8 to 100 % of the area and an aspect of 3:4 to 4:3 (Szegedy et al., 2015)."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
