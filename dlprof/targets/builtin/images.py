"""``images``: JPEG files on disk, decoded in full, cropped, flipped, normalized."""

from __future__ import annotations

import math
import random
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dlprof.targets.builtin.files import directory
from dlprof.targets.builtin.options import ImagesOptions

Sample = tuple[torch.Tensor, int]


class ImageFiles(Dataset[Sample]):
    """JPEG files in class directories, as ``(image, label)``.

    Pillow's draft mode, which lets libjpeg decode at a reduced size, is not used: most training
    pipelines don't use it. Indices beyond the last file start over at the first.
    """

    def __init__(self, directory: Path, size: int, length: int) -> None:
        self.size = size
        self.length = length
        classes = sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(classes)
            for path in sorted((directory / name).glob("*.jpg"))
        ]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        path, label = self.samples[index % len(self.samples)]
        with Image.open(path) as image:
            return training_image(image.convert("RGB"), self.size), label


def make_loader(options: ImagesOptions, *, seed: int) -> DataLoader[Sample]:
    """The loader of the workload, shuffled as for training."""
    dataset = ImageFiles(directory("images", options.count), options.size, options.length)
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=32, shuffle=True, generator=generator)


# Means and standard deviations of ImageNet, the usual normalization.
_MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
_STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def training_image(image: Image.Image, size: int) -> torch.Tensor:
    """Random resized crop, random flip, tensor, normalized: the ImageNet training recipe."""
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
