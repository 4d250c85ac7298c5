"""Pictures with the statistics of photographs, made by Pillow from a few large textures.

Photographs have power spectra near ``1/f`` (Field, "Relations between the statistics of natural
images", 1987), smooth regions beside detailed ones, sharp edges, and colour that varies slower
than brightness. That is what makes a JPEG decoder work as hard as it does on real data.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageEnhance

TEXTURE_SIZE = (1280, 960)
TEXTURES = 6
# Sizes of ImageNet's training images: half are 500x375, with portraits and a wide spread.
_COMMON_SIZES = ((500, 375), (500, 375), (500, 333), (375, 500), (333, 500), (400, 300))


def make_textures(rng: random.Random, number: int = TEXTURES) -> list[Image.Image]:
    """Large colour textures to cut pictures from; about 0.2 s each."""
    return [_texture(rng) for _ in range(number)]


def cut_picture(
    rng: random.Random, textures: list[Image.Image], size: tuple[int, int]
) -> Image.Image:
    """A picture of a size: part of a texture, scaled, sometimes flipped, recoloured."""
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
    """Write a picture with 4:2:0 colour at a quality of 75 to 95, more often high than low."""
    picture.save(path, "JPEG", quality=round(rng.triangular(75, 95, 95)))


def _texture(rng: random.Random) -> Image.Image:
    # Equal energy in each octave is what a 1/f amplitude spectrum means; a little more, because
    # scaling a cut down to its size takes the finest away.
    detail = _octaves(rng, last=960, decay=1.15, contrast=4.0)
    smooth = _octaves(rng, last=12, decay=0.5, contrast=2.5)
    mask = _octaves(rng, last=48, decay=0.7, contrast=2.5).point(_steepen)
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


def _steepen(value: float) -> int:
    return max(0, min(255, int((value - 90) * 5)))


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
