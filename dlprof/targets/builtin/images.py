"""``images``: JPEG files on disk, decoded in full, cropped, flipped, normalised."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dlprof.targets.builtin.files import images_directory
from dlprof.targets.builtin.options import ImagesOptions
from dlprof.targets.builtin.transforms import training_image

BATCH_SIZE = 32

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
    dataset = ImageFiles(images_directory(options.count), options.size, options.length)
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, generator=generator)
