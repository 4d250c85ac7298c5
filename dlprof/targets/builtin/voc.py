"""``voc``: detection on JPEG files with VOC XML annotations, classes balanced by sampling."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from dlprof.targets.builtin.files import directory
from dlprof.targets.builtin.images import to_tensor
from dlprof.targets.builtin.options import VocOptions
from dlprof.targets.builtin.pictures import VOC_CLASSES

Labels = dict[str, torch.Tensor]
Sample = tuple[torch.Tensor, Labels]
Batch = tuple[list[torch.Tensor], list[Labels]]


class VocFiles(Dataset[Sample]):
    """Images with ``{"boxes": [n, 4], "labels": [n]}``, as torchvision's detectors take them."""

    def __init__(self, directory: Path, size: int) -> None:
        self.size = size
        self.directory = str(directory)
        listed = directory / "ImageSets" / "Main" / "train.txt"
        self.names = listed.read_text(encoding="ascii").split()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        name = self.names[index]
        labels, boxes = read_annotation(self.annotation(name))
        with Image.open(Path(self.directory, "JPEGImages", f"{name}.jpg")) as file:
            image = file.convert("RGB")
        width, height = image.size
        scale = self.size / max(width, height)
        image = image.resize((max(1, round(width * scale)), max(1, round(height * scale))))
        scaled = torch.tensor(boxes, dtype=torch.float32) * scale
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            scaled[:, [0, 2]] = width * scale - scaled[:, [2, 0]]
        return to_tensor(image), {"boxes": scaled, "labels": torch.tensor(labels)}

    def annotation(self, name: str) -> Path:
        """The XML file of an image."""
        return Path(self.directory, "Annotations", f"{name}.xml")


def read_annotation(path: Path) -> tuple[list[int], list[list[float]]]:
    """Class indices (1 onwards; 0 is background) and corner boxes of one VOC XML file."""
    labels, boxes = [], []
    for entry in ET.parse(path).iterfind("object"):  # noqa: S314 - files that dlprof made
        labels.append(VOC_CLASSES.index(entry.findtext("name", "")) + 1)
        # VOC counts pixels from 1.
        edges = ("xmin", "ymin", "xmax", "ymax")
        boxes.append([float(entry.findtext(f"bndbox/{edge}", "")) - 1 for edge in edges])
    return labels, boxes


def balanced_weights(annotations: Sequence[Sequence[int]]) -> list[float]:
    """A weight per image that draws rare classes as often as frequent ones.

    An image weighs the mean of ``1 / frequency`` over its objects, where the frequency of a class
    is the number of images that show it.
    """
    frequency = Counter(label for labels in annotations for label in set(labels))
    return [
        sum(1 / frequency[label] for label in labels) / len(labels) if labels else 0.0
        for labels in annotations
    ]


def collate(samples: Sequence[Sample]) -> Batch:
    """Keep images and boxes ragged: a list of each."""
    return [image for image, _ in samples], [labels for _, labels in samples]


def make_loader(options: VocOptions, *, seed: int) -> DataLoader[Sample]:
    """The loader of the workload; its weights come from the annotations, no image is decoded."""
    dataset = VocFiles(directory("voc", options.count), options.size)
    annotations = [read_annotation(dataset.annotation(name))[0] for name in dataset.names]
    generator = torch.Generator().manual_seed(seed)
    sampler = WeightedRandomSampler(
        balanced_weights(annotations), num_samples=options.length, generator=generator
    )
    return DataLoader(dataset, batch_size=16, sampler=sampler, collate_fn=collate)
