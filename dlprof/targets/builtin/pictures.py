"""Pictures with the statistics of photographs, made by Pillow from a few large textures.

Photographs have power spectra near ``1/f`` (Field, "Relations between the statistics of natural
images", 1987), smooth regions beside detailed ones, sharp edges, and color that varies slower
than brightness. That is what makes a JPEG decoder work as hard as it does on real data.
"""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree as ET

from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageOps

from dlprof.targets.builtin.files import Progress

TEXTURE_SIZE = (1280, 960)
# Sizes of ImageNet's training images: half are 500x375, with portraits and a wide spread.
_COMMON_SIZES = ((500, 375), (500, 375), (500, 333), (375, 500), (333, 500), (400, 300))


def make_textures(rng: random.Random) -> list[Image.Image]:
    """Large color textures to cut pictures from; about 0.2 s each."""
    return [_texture(rng) for _ in range(6)]


def cut_picture(
    rng: random.Random, textures: list[Image.Image], size: tuple[int, int]
) -> Image.Image:
    """A picture of a size: part of a texture, scaled, sometimes flipped, recolored."""
    texture = rng.choice(textures)
    scale = rng.uniform(0.45, 1.0)
    aspect = size[0] / size[1]
    height = int(min(texture.height, texture.width / aspect) * scale)
    width = int(height * aspect)
    left = rng.randrange(texture.width - width + 1)
    top = rng.randrange(texture.height - height + 1)
    picture = texture.resize(
        size, Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = ImageEnhance.Color(picture).enhance(rng.uniform(0.4, 1.5))
    return ImageEnhance.Brightness(picture).enhance(rng.uniform(0.7, 1.25))


def picture_size(rng: random.Random) -> tuple[int, int]:
    """Width and height as ImageNet has them."""
    if rng.random() < 0.7:
        return rng.choice(_COMMON_SIZES)
    width = min(1200, max(96, int(rng.lognormvariate(6.05, 0.35))))
    return width, min(1200, max(96, int(width * rng.uniform(0.6, 1.4))))


def save_jpeg(rng: random.Random, picture: Image.Image, path: Path) -> None:
    """Write a picture with 4:2:0 color at a quality of 75 to 95, more often high than low."""
    picture.save(path, "JPEG", quality=round(rng.triangular(75, 95, 95)))


def _texture(rng: random.Random) -> Image.Image:
    # Equal energy in each octave is what a 1/f amplitude spectrum means; a little more, because
    # scaling a cut down to its size takes the finest away.
    detail = _octaves(rng, last=960, decay=1.15, contrast=4.0)
    smooth = _octaves(rng, last=12, decay=0.5, contrast=2.5)
    mask = _octaves(rng, last=48, decay=0.7, contrast=2.5).point(
        lambda value: max(0, min(255, int((value - 90) * 5)))
    )
    brightness = Image.composite(detail, smooth, mask)
    _draw_shapes(rng, brightness)
    chroma = [_octaves(rng, last=240, decay=0.8, contrast=1.0) for _ in range(2)]
    return Image.merge("YCbCr", (brightness, *chroma)).convert("RGB")


def _octaves(rng: random.Random, *, last: int, decay: float, contrast: float) -> Image.Image:
    """Noise summed over octaves of 3, 6, 12 ... ``last`` cells from top to bottom.

    Each finer octave weighs ``decay`` times the one before; ``contrast`` stretches the sum, whose
    histogram averaging has narrowed.
    """
    cells, weight = 3, 1.0
    total, sum_of_weights = _noise(rng, cells), weight
    while cells * 2 <= last:
        cells, weight = cells * 2, weight * decay
        sum_of_weights += weight
        total = Image.blend(total, _noise(rng, cells), weight / sum_of_weights)
    return total.point(lambda value: max(0, min(255, int((value - 128) * contrast + 128))))


def _noise(rng: random.Random, cells: int) -> Image.Image:
    size = (cells * 4 // 3 + 1, cells)
    noise = Image.frombytes("L", size, rng.randbytes(size[0] * size[1]))
    return noise.resize(TEXTURE_SIZE, Image.Resampling.BICUBIC)


def _draw_shapes(rng: random.Random, picture: Image.Image) -> None:
    """Add sharp edges: half-transparent ellipses and polygons over the brightness."""
    layer = picture.copy()
    draw = ImageDraw.Draw(layer)
    width, height = picture.size
    for _ in range(24):
        x, y = rng.randrange(width), rng.randrange(height)
        reach = rng.randrange(20, 220)
        shade = rng.randrange(256)
        if rng.random() < 0.5:
            draw.ellipse((x - reach, y - reach // 2, x + reach, y + reach // 2), fill=shade)
        else:
            corners = [
                (x + rng.randint(-reach, reach), y + rng.randint(-reach, reach)) for _ in range(5)
            ]
            draw.polygon(corners, fill=shade)
    picture.paste(ImageChops.blend(picture, layer, 0.5))


VOC_CLASSES = (
    "person", "car", "chair", "dog", "cat", "bird", "bottle", "boat", "plant", "bicycle",
    "sofa", "horse", "train", "monitor", "bus", "sheep", "table", "cow", "motorbike", "aeroplane",
)  # fmt: skip

Box = tuple[int, int, int, int]
Object = tuple[str, Box]


def make_voc(rng: random.Random, directory: Path, count: int, progress: Progress) -> None:
    """Fill a directory with ``JPEGImages``, ``Annotations`` and ``ImageSets/Main/train.txt``."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (directory / part).mkdir(parents=True)
    progress("annotated images", 0, count)
    textures = make_textures(rng)
    # Frequencies fall as 1/rank: VOC2012 has over ten times as many persons as buses.
    weights = [1 / (rank + 1) for rank in range(len(VOC_CLASSES))]
    names = [f"{number:06}" for number in range(count)]
    for number, name in enumerate(names):
        size = picture_size(rng)
        picture = cut_picture(rng, textures, size)
        # VOC2012 has 2.4 objects a picture on average, and many pictures have one.
        several = min(12, 1 + int(rng.expovariate(1 / 2.0)))
        objects = [(rng.choices(VOC_CLASSES, weights)[0], _box(rng, size)) for _ in range(several)]
        for label, box in objects:
            _paste_object(rng, picture, textures, label, box)
        save_jpeg(rng, picture, directory / "JPEGImages" / f"{name}.jpg")
        annotation = annotation_xml(f"{name}.jpg", size, objects)
        (directory / "Annotations" / f"{name}.xml").write_text(annotation, encoding="utf-8")
        progress("annotated images", number + 1, count)
    (directory / "ImageSets/Main/train.txt").write_text("\n".join(names) + "\n", encoding="ascii")


def annotation_xml(filename: str, size: tuple[int, int], objects: list[Object]) -> str:
    """One annotation as VOC2012 writes it; boxes count pixels from 1."""
    root = ET.Element("annotation")

    def add(parent: ET.Element, **texts: object) -> None:
        for key, text in texts.items():
            ET.SubElement(parent, key).text = str(text)

    add(root, folder="VOC", filename=filename)
    add(ET.SubElement(root, "size"), width=size[0], height=size[1], depth=3)
    add(root, segmented=0)
    for label, (left, top, right, bottom) in objects:
        entry = ET.SubElement(root, "object")
        add(entry, name=label, pose="Unspecified", truncated=0, difficult=0)
        add(ET.SubElement(entry, "bndbox"), xmin=left, ymin=top, xmax=right, ymax=bottom)
    ET.indent(root, "\t")
    return ET.tostring(root, encoding="unicode") + "\n"


def _box(rng: random.Random, size: tuple[int, int]) -> Box:
    width = rng.randint(size[0] // 10, size[0] * 2 // 3)
    height = rng.randint(size[1] // 10, size[1] * 2 // 3)
    left, top = rng.randint(1, size[0] - width), rng.randint(1, size[1] - height)
    return left, top, left + width, top + height


def _paste_object(
    rng: random.Random, picture: Image.Image, textures: list[Image.Image], label: str, box: Box
) -> None:
    """Paste an ellipse of another texture, in a tint that belongs to the class."""
    size = (box[2] - box[0], box[3] - box[1])
    piece = cut_picture(rng, textures, size)
    hue = VOC_CLASSES.index(label) * 360 // len(VOC_CLASSES)
    piece = ImageOps.colorize(piece.convert("L"), "black", "white", f"hsl({hue}, 70%, 50%)")
    mask = Image.new("L", size, 0)
    ImageDraw.Draw(mask).ellipse((0, 0, size[0] - 1, size[1] - 1), fill=255)
    picture.paste(piece, box[:2], mask)
