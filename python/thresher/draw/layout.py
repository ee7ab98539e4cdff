"""Where boxes and edges of a layered drawing go.

The usual four steps: layers by longest paths, one chain of bends for every box whose edges cross layers, order within
layers by barycentres, and coordinates that follow the neighbours without overlaps.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right, insort
from collections.abc import Sequence

LAYER_GAP = 34.0
BOX_GAP = 22.0
BEND_WIDTH = 10.0
ORDER_SWEEPS = 12
ROUGH_SWEEPS = 8
PLACE_SWEEPS = 48

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The result.

    Attributes:
      boxes: centre and top of every box.
      edges: the points of every edge, in the order given; curves between them run vertically at both ends.
      width: of the drawing.
      height: of the drawing.
    """

    boxes: list[Point]
    edges: list[list[Point]]
    width: float
    height: float


@dataclasses.dataclass(slots=True)
class _Cell:
    """A box, or a bend of an edge that crosses a layer."""

    width: float
    box: int  # -1: a bend
    above: list[int] = dataclasses.field(default_factory=list)
    below: list[int] = dataclasses.field(default_factory=list)


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lays out boxes, operands above what uses them.

    Args:
      sizes: width and height of each box. Boxes stand in topological order.
      edges: pairs of boxes, the first the lower number.
    """
    layer = _layers(len(sizes), edges)
    cells, rows, chains = _cells(sizes, edges, layer)
    _order(cells, rows)
    xs = _coordinates(cells, rows)
    heights = [max((sizes[cells[c].box][1] for c in row if cells[c].box >= 0), default=0.0) for row in rows]
    tops: list[float] = []
    y = 0.0
    for height in heights:
        tops.append(y)
        y += height + LAYER_GAP
    boxes = [(xs[i], tops[layer[i]] + (heights[layer[i]] - sizes[i][1]) / 2) for i in range(len(sizes))]
    width = max((xs[c] + cell.width / 2 for c, cell in enumerate(cells)), default=0.0)
    return Layout(boxes, _routes(sizes, edges, layer, chains, xs, boxes, tops, heights), width, max(y - LAYER_GAP, 0.0))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for start, end in set(edges):
        above[end].append(start)
        below[start].append(end)
    layer = [0] * count
    for i in range(count):
        layer[i] = max((layer[j] + 1 for j in above[i]), default=0)
    # What has no more operands than users moves down to its first user: its edges get shorter in sum.
    for i in reversed(range(count)):
        if below[i] and len(above[i]) <= len(below[i]):
            layer[i] = min(layer[j] for j in below[i]) - 1
        elif not below[i] and not above[i] and i + 1 < count:
            layer[i] = layer[i + 1]  # dead: beside what follows it in the program
    return layer


def _cells(
    sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], layer: list[int]
) -> tuple[list[_Cell], list[list[int]], list[list[int]]]:
    """Boxes and bends, those of each layer, and per box its bends: edges of one box share them as far as they go."""
    cells = [_Cell(width, i) for i, (width, _) in enumerate(sizes)]
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    chains: list[list[int]] = [[] for _ in sizes]
    for i, row in enumerate(layer):
        rows[row].append(i)
    for start, end in dict.fromkeys(edges):
        chain = chains[start]
        while layer[start] + len(chain) + 1 < layer[end]:
            last = chain[-1] if chain else start
            cells.append(_Cell(BEND_WIDTH, -1, above=[last]))
            cells[last].below.append(len(cells) - 1)
            rows[layer[start] + len(chain) + 1].append(len(cells) - 1)
            chain.append(len(cells) - 1)
        reach = layer[end] - layer[start] - 1
        last = chain[reach - 1] if reach else start
        cells[last].below.append(end)
        cells[end].above.append(last)
    return cells, rows, chains


# ---- order within layers ----


def _order(cells: list[_Cell], rows: list[list[int]]) -> None:
    place_of = [0.0] * len(cells)
    for row in rows:
        for i, c in enumerate(row):
            place_of[c] = i
    best, fewest = [list(row) for row in rows], _crossings(cells, rows, place_of)
    for sweep in range(ORDER_SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = {}
            for c in row:
                near = cells[c].above if down else cells[c].below
                wanted[c] = sum(place_of[o] for o in near) / len(near) if near else place_of[c]
            row.sort(key=wanted.__getitem__)
            for i, c in enumerate(row):
                place_of[c] = i
        found = _crossings(cells, rows, place_of)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
    for row, chosen in zip(rows, best, strict=True):
        row[:] = chosen


def _crossings(cells: list[_Cell], rows: list[list[int]], place_of: list[float]) -> int:
    total = 0
    for row in rows:
        ends: list[float] = []
        for c in row:
            own = sorted(place_of[o] for o in cells[c].below)
            total += sum(len(ends) - bisect_right(ends, end) for end in own)
            for end in own:
                insort(ends, end)
    return total


# ---- coordinates ----


def _coordinates(cells: list[_Cell], rows: list[list[int]]) -> list[float]:
    xs = [0.0] * len(cells)
    for row in rows:
        x = 0.0
        for c in row:
            xs[c] = x + cells[c].width / 2
            x += cells[c].width + BOX_GAP
        shift = (x - BOX_GAP) / 2
        for c in row:
            xs[c] -= shift
    # First only one side's neighbours count, which brings things near to where they belong; then both.
    pulls = [_pulls(cells, c) for c in range(len(cells))]
    for sweep in range(PLACE_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted, weights = [], []
            for c in row:
                above, below = pulls[c]
                near = above + below if sweep >= ROUGH_SWEEPS else above if down else below
                weight = sum(w for _, w in near)
                wanted.append(sum(xs[o] * w for o, w in near) / weight if near else xs[c])
                weights.append(weight or 0.1)
            _spread(row, cells, wanted, weights, xs)
    left = min((xs[c] - cell.width / 2 for c, cell in enumerate(cells)), default=0.0)
    return [x - left for x in xs]


def _pulls(cells: list[_Cell], c: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Neighbours above and below with how much they count."""
    return (
        [(o, _stiffness(cells, o, c)) for o in cells[c].above],
        [(o, _stiffness(cells, c, o)) for o in cells[c].below],
    )


def _stiffness(cells: list[_Cell], upper: int, lower: int) -> float:
    """Long edges and chains of boxes are to become straight lines rather than others."""
    if cells[upper].box < 0 and cells[lower].box < 0:
        return 16.0
    if len(cells[upper].below) == 1 and len(cells[lower].above) == 1:
        return 8.0
    return 1.0


def _spread(row: list[int], cells: list[_Cell], wanted: list[float], weights: list[float], xs: list[float]) -> None:
    """The places nearest to the expected ones (least squares) that keep the order and the gaps: isotonic regression."""
    offset = 0.0
    offsets = []
    groups: list[list[float]] = []  # sum of weight * place, sum of weights, members
    for i, c in enumerate(row):
        if i:
            before = cells[row[i - 1]]
            gap = BEND_WIDTH / 2 if before.box < 0 and cells[c].box < 0 else BOX_GAP
            offset += (before.width + cells[c].width) / 2 + gap
        offsets.append(offset)
        group = [weights[i] * (wanted[i] - offset), weights[i], 1.0]
        while groups and groups[-1][0] / groups[-1][1] >= group[0] / group[1]:
            last = groups.pop()
            group = [a + b for a, b in zip(last, group, strict=True)]
        groups.append(group)
    i = 0
    for total, weight, members in groups:
        for _ in range(int(members)):
            xs[row[i]] = total / weight + offsets[i]
            i += 1


# ---- edges ----


def _routes(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    layer: list[int],
    chains: list[list[int]],
    xs: list[float],
    boxes: list[Point],
    tops: list[float],
    heights: list[float],
) -> list[list[Point]]:
    bends = [chains[start][: layer[end] - layer[start] - 1] for start, end in edges]
    arriving: dict[int, list[int]] = {}
    for e, (_, end) in enumerate(edges):
        arriving.setdefault(end, []).append(e)
    ports: dict[int, float] = {}
    for end, own in arriving.items():
        own.sort(key=lambda e: xs[bends[e][-1]] if bends[e] else xs[edges[e][0]])
        step = min(16.0, sizes[end][0] / (len(own) + 1))
        for i, e in enumerate(own):
            ports[e] = xs[end] + (i - (len(own) - 1) / 2) * step
    routes = []
    for e, (start, end) in enumerate(edges):
        points = [(xs[start], boxes[start][1] + sizes[start][1])]
        for i, bend in enumerate(bends[e]):
            row = layer[start] + 1 + i
            points += [(xs[bend], tops[row]), (xs[bend], tops[row] + heights[row])]
        points.append((ports[e], boxes[end][1]))
        routes.append(points)
    return routes
