"""Annotated pictures in Pascal VOC's layout: several objects each, classes of uneven frequency."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

from PIL import Image, ImageDraw, ImageOps

from dlprof.targets.builtin import pictures

CLASSES = (
    "person", "car", "chair", "dog", "cat", "bird", "bottle", "boat", "plant", "bicycle",
    "sofa", "horse", "train", "monitor", "bus", "sheep", "table", "cow", "motorbike", "aeroplane",
)  # fmt: skip

Box = tuple[int, int, int, int]
Object = tuple[str, Box]


def make_voc(
    rng: random.Random, directory: Path, count: int, progress: Callable[[str, int, int], None]
) -> None:
    """Fill a directory with ``JPEGImages``, ``Annotations`` and ``ImageSets/Main/train.txt``."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (directory / part).mkdir(parents=True)
    progress("annotated images", 0, count)
    textures = pictures.make_textures(rng)
    # Frequencies fall as 1/rank: VOC2012 has over ten times as many persons as buses.
    weights = [1 / (rank + 1) for rank in range(len(CLASSES))]
    names = [f"{number:06}" for number in range(count)]
    for number, name in enumerate(names):
        size = pictures.picture_size(rng)
        picture = pictures.cut_picture(rng, textures, size)
        objects = [
            (rng.choices(CLASSES, weights)[0], _box(rng, size)) for _ in range(_object_count(rng))
        ]
        for label, box in objects:
            _paste_object(rng, picture, textures, label, box)
        pictures.save_jpeg(rng, picture, directory / "JPEGImages" / f"{name}.jpg")
        annotation = annotation_xml(f"{name}.jpg", size, objects)
        (directory / "Annotations" / f"{name}.xml").write_text(annotation, encoding="utf-8")
        progress("annotated images", number + 1, count)
    (directory / "ImageSets/Main/train.txt").write_text("\n".join(names) + "\n", encoding="ascii")


def annotation_xml(filename: str, size: tuple[int, int], objects: list[Object]) -> str:
    """One annotation as VOC2012 writes it; boxes count pixels from 1."""
    root = ET.Element("annotation")
    ET.SubElement(root, "folder").text = "VOC"
    ET.SubElement(root, "filename").text = filename
    shape = ET.SubElement(root, "size")
    for key, value in zip(("width", "height", "depth"), (*size, 3), strict=True):
        ET.SubElement(shape, key).text = str(value)
    ET.SubElement(root, "segmented").text = "0"
    for label, box in objects:
        entry = ET.SubElement(root, "object")
        ET.SubElement(entry, "name").text = label
        for key, text in (("pose", "Unspecified"), ("truncated", "0"), ("difficult", "0")):
            ET.SubElement(entry, key).text = text
        bounds = ET.SubElement(entry, "bndbox")
        for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ET.SubElement(bounds, key).text = str(value)
    ET.indent(root, "\t")
    return ET.tostring(root, encoding="unicode") + "\n"


def _object_count(rng: random.Random) -> int:
    """Objects per picture: VOC2012 has 2.4 on average, many pictures have one."""
    return min(12, 1 + int(rng.expovariate(1 / 2.0)))


def _box(rng: random.Random, size: tuple[int, int]) -> Box:
    width = rng.randint(size[0] // 10, size[0] * 2 // 3)
    height = rng.randint(size[1] // 10, size[1] * 2 // 3)
    left, top = rng.randint(1, size[0] - width), rng.randint(1, size[1] - height)
    return left, top, left + width, top + height


def _paste_object(
    rng: random.Random,
    picture: Image.Image,
    textures: list[Image.Image],
    label: str,
    box: Box,
) -> None:
    """Paste an ellipse of another texture, in a tint that belongs to the class."""
    size = (box[2] - box[0], box[3] - box[1])
    piece = pictures.cut_picture(rng, textures, size)
    hue = CLASSES.index(label) * 360 // len(CLASSES)
    piece = ImageOps.colorize(piece.convert("L"), "black", "white", f"hsl({hue}, 70%, 50%)")
    mask = Image.new("L", size, 0)
    ImageDraw.Draw(mask).ellipse((0, 0, size[0] - 1, size[1] - 1), fill=255)
    picture.paste(piece, box[:2], mask)
