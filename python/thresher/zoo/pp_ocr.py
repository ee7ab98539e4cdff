"""PP-OCRv4: finds the lines of a page and reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from thresher.compiler import compile as thresher_compile
from thresher.zoo.entry import Entry, Parts, package_folder
from thresher.zoo.imagery import PACKAGES, centred, image, resized
from thresher.zoo.pp_ocr_networks import TextDetector, TextReader
from thresher.zoo.weights import fill, of_onnx

PAGE = "page.png"
DETECTOR_FILE, READER_FILE = (f"models/ch_PP-OCRv4_{part}_infer.onnx" for part in ("det", "rec"))
_PACKAGES = (("rapidocr_onnxruntime", "rapidocr-onnxruntime"), ("onnx", "onnx"), *PACKAGES)
_ORIGIN = "PP-OCRv4 in the package rapidocr-onnxruntime (Apache-2.0); page: scikit-image"

SHORT_SIDE = 480  # of pages, at least
MULTIPLE = 32
CELL = 4  # lines are told apart on a grid of such cells
TEXT, LINE = 0.3, 0.5  # how likely a pixel of text is one, and a line on the average
GROWTH = 1.6  # the network marks the middle of a line
STEEPEST = math.radians(30)  # what is steeper is no line, but higher than wide
SPECK = 5  # pixels; what is smaller is no text
HEIGHT, WIDTH = 48, 320  # of lines that are read; long ones are wider


@dataclass(frozen=True)
class Line:
    """Where a page has a line of text: a rectangle, in pixels.

    Attributes:
      x: of its middle, from the left.
      y: of its middle, from the top.
      angle: by which it is turned clockwise, in radians.
      width: along the text.
      height: across.
    """

    x: float
    y: float
    angle: float
    width: float
    height: float


@dataclass(frozen=True)
class Text:
    """What a line says, and how sure that is, from 0 to 1."""

    text: str
    sure: float


def load_detector() -> TextDetector:
    """The network that finds text."""
    weights, _ = of_onnx(package_folder("rapidocr_onnxruntime") / DETECTOR_FILE)
    detector: TextDetector = fill(TextDetector(), weights)
    return detector


def load_reader() -> tuple[TextReader, list[str]]:
    """The network that reads lines, and its letters; the first stands for none."""
    weights, metadata = of_onnx(package_folder("rapidocr_onnxruntime") / READER_FILE)
    return fill(TextReader(), weights), ["", *metadata["character"].splitlines(), " "]


def enlarged(page: torch.Tensor) -> torch.Tensor:
    """A page as the detector wants it: at least 480 high and wide, sides multiples of 32, from -1 to 1."""
    factor = max(1.0, SHORT_SIDE / min(page.shape[2:]))
    height, width = (round(side * factor / MULTIPLE) * MULTIPLE for side in page.shape[2:])
    return centred(resized(page, height, width))


def lines_of(run: Callable[..., Any], page: torch.Tensor) -> list[Line]:
    """The lines of a page, from top to bottom.

    Args:
      run: the detector.
      page: [1, 3, height, width] from 0 to 1.
    """
    given = enlarged(page)
    with torch.no_grad():
        likely = run(given)
    text = likely > TEXT
    cells = _components(functional.max_pool2d(text.float(), CELL))
    labels = (functional.interpolate(cells, scale_factor=CELL) * text)[0, 0]
    scale = page.shape[2] / given.shape[2]  # rows' and columns' differ by less than the rounding of sides
    found = []
    for label in labels.unique().tolist()[1:]:
        inside = labels == label
        if float(likely[0, 0][inside].mean()) >= LINE and (line := _around(inside.nonzero())) is not None:
            found.append(Line(line.x * scale, line.y * scale, line.angle, line.width * scale, line.height * scale))
    return sorted(found, key=lambda line: (line.y, line.x))


def _around(pixels: torch.Tensor) -> Line | None:
    """The rectangle around pixels, [count, (row, column)], along their main direction; None of a speck."""
    points = pixels.flip(1).double() + 0.5
    middle = points.mean(0)
    # Of directions, the one along which the pixels vary most.
    direction = torch.linalg.eigh((points - middle).T @ (points - middle)).eigenvectors[:, 1]
    x, y = (direction * (1 if direction[0] >= 0 else -1)).tolist()
    angle = math.atan2(y, x)
    if abs(angle) > STEEPEST:
        angle, x, y = 0.0, 1.0, 0.0
    turned = (points - middle) @ torch.tensor([[x, -y], [y, x]], dtype=torch.float64)
    low, high = turned.min(0).values - 0.5, turned.max(0).values + 0.5
    width, height = (high - low).tolist()
    if min(width, height) < SPECK:
        return None
    along, across = ((low + high) / 2).tolist()
    more = GROWTH * width * height / (width + height)
    place = middle.tolist()
    return Line(
        place[0] + along * x - across * y, place[1] + along * y + across * x, angle, width + more, height + more
    )


def _components(marked: torch.Tensor) -> torch.Tensor:
    """A number for each group of cells that touch, 0 where there is none: the largest number spreads."""
    labels = torch.arange(1.0, marked.numel() + 1).reshape(marked.shape) * marked
    while True:
        spread = functional.max_pool2d(labels, 3, 1, 1) * marked
        if torch.equal(spread, labels):
            return labels
        labels = spread


def cut(page: torch.Tensor, lines: Sequence[Line]) -> torch.Tensor:
    """Lines as the reader wants them: [count, 3, 48, width], from -1 to 1, upright, and 0 behind their ends."""
    widths = [max(1, round(line.width * HEIGHT / line.height)) for line in lines]
    longest = -(-max(WIDTH, *widths) // MULTIPLE) * MULTIPLE
    parts = [
        functional.pad(_straight(page, line, width), (0, longest - width))
        for line, width in zip(lines, widths, strict=True)
    ]
    return torch.cat(parts)


def _straight(page: torch.Tensor, line: Line, width: int) -> torch.Tensor:
    steps = [(torch.arange(count) + 0.5) / count - 0.5 for count in (HEIGHT, width)]
    v, u = torch.meshgrid(steps[0] * line.height, steps[1] * line.width, indexing="ij")
    cos, sin = math.cos(line.angle), math.sin(line.angle)
    rows, columns = page.shape[2:]
    x, y = line.x + u * cos - v * sin, line.y + u * sin + v * cos
    grid = torch.stack([2 * x / columns - 1, 2 * y / rows - 1], -1)[None]
    return centred(functional.grid_sample(page, grid, padding_mode="border", align_corners=False))


def text_of(shares: torch.Tensor, letters: list[str]) -> Text:
    """What the shares of letters at positions, [positions, letters], say: one letter where several follow."""
    sure, found = shares.max(1)
    kept = (found != 0) & (found != torch.cat([found.new_zeros(1), found[:-1]]))
    text = "".join(letters[index] for index in found[kept].tolist())
    return Text(text, float(sure[kept].mean()) if text else 0.0)


def read(detect: Callable[..., Any], run: Callable[..., Any], letters: list[str], page: torch.Tensor) -> list[Text]:
    """What the lines of a page say.

    Args:
      detect: the detector, in eager PyTorch or compiled.
      run: the reader, likewise.
      letters: of the reader.
      page: [1, 3, height, width] from 0 to 1.
    """
    lines = lines_of(detect, page)
    if not lines:
        return []
    with torch.no_grad():
        return [text_of(shares, letters) for shares in run(cut(page, lines))]


def _detector() -> Parts:
    def demonstrate(run: Callable[..., Any]) -> str:
        page = image(PAGE)
        lines = [
            f"row {line.y:3.0f}, column {line.x:3.0f}: {line.width:3.0f} x {line.height:2.0f}, turned by "
            f"{math.degrees(line.angle):.1f} degrees"
            for line in lines_of(run, page)
        ]
        height, width = page.shape[2:]
        return "\n".join([f"lines of {PAGE}, {height} x {width} pixels", *lines])

    return Parts(load_detector(), {"pages": centred(resized(image(PAGE), 192, 384))}, demonstrate)


def _reader() -> Parts:
    model, letters = load_reader()

    def demonstrate(run: Callable[..., Any]) -> str:
        detect = thresher_compile(load_detector())
        found = read(detect, run, letters, image(PAGE))
        return "\n".join(f"{text.sure:.2f}  {text.text}" for text in found)

    page = image(PAGE)
    example = cut(page, [Line(149, 23, 0.005, 284, 20)])
    return Parts(model, {"lines": example}, demonstrate)


DETECTOR = Entry(
    "pp-ocr-detector",
    "vision",
    "PP-OCRv4's detector, which finds the lines of a page.",
    1171593,
    "trained",
    _ORIGIN,
    _PACKAGES,
    _detector,
)
READER = Entry(
    "pp-ocr-reader",
    "vision",
    "PP-OCRv4's reader, which reads the lines that its detector has found.",
    2688509,
    "trained",
    _ORIGIN,
    _PACKAGES,
    _reader,
)
