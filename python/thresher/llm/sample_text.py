"""A text that models are tried on where nobody gives one."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path

_NEWS = "gensim/test/test_data/lee_background.cor"  # 300 articles, one a line

_PARAGRAPHS = """\
The harbour of the old town lies where the river meets the sea. In the morning, when the fog lifts from the water, the
first boats come home with nets full of fish, and the gulls follow them as far as the market. Farmers from the hills
bring bread, cheese and apples, and by nine o'clock there is hardly room to walk between the stalls. Children run along
the wall that was built two hundred years ago, after a storm had carried away the wooden houses by the shore.

Water is made of two parts of hydrogen and one part of oxygen. It freezes at zero degrees and boils at one hundred, but
only at the pressure of the air at sea level: on a high mountain it boils sooner, and potatoes take longer to cook. When
the sun warms a lake, some of the water rises as vapour, cools down above the land and falls again as rain. Part of the
rain flows back to the sea in rivers, part of it sinks into the ground and feeds wells and springs.

A computer program is a list of instructions. Each of them is simple: add two numbers, compare them, store the result,
go on at another place. What makes programs powerful is that millions of such steps follow each other in the blink of an
eye, and that one program may call another. Whoever writes one should first say what it is for, then try it with small
examples, and only then make it fast. A mistake that is found early costs a minute; one that is found late costs a week.

"I have never been further than the lighthouse," said the old man, "and I have never wished to." He looked at the map on
the table, at the names of cities that he knew from letters only. His daughter had promised to come back in the spring,
before the swallows, and to tell him everything that she had seen. Until then there was work to do: the roof had to be
mended, the boat wanted paint, and somebody had to feed the cat.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class SampleText:
    """A text.

    Attributes:
      text: itself.
      source: where it is from, in a few words.
    """

    text: str
    source: str


def sample_text() -> SampleText:
    """News where the package gensim is installed, which is not imported; else Python's own manual; else some prose."""
    try:
        news = Path(str(importlib.metadata.distribution("gensim").locate_file(_NEWS)))
        return SampleText(news.read_text(encoding="latin-1"), "news of gensim's lee_background")
    except (importlib.metadata.PackageNotFoundError, OSError):
        pass
    if importlib.util.find_spec("pydoc_data") is not None:  # some distributions of Python leave it out
        from pydoc_data import topics

        return SampleText("\n\n".join(topics.topics.values()), "Python's manual")
    return SampleText(_PARAGRAPHS, "four short paragraphs")
