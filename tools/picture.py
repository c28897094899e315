"""Write docs/images/repair.svg, a terminal in which a damaged store is checked and its repair planned, from a real run.

``python -m tools.picture`` makes it again.
"""

import contextlib
import html
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tools import sessions

PICTURE = sessions.ROOT / "docs" / "images" / "repair.svg"
_LINES = ("mqtool verify -s sick", "mqtool recover -s sick --dry-run")
_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def shown() -> str:
    """Return what the terminal shows, with its colors: the commands, and what they write now."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sessions.prepare(Path())
        return "\n\n".join(f"$ {line}\n{sessions.run(line, color=True)}" for line in _LINES)


def picture(text: str) -> str:
    """Return such text as an SVG that loads nothing from elsewhere."""
    console = Console(
        record=True, width=sessions.WIDTH, file=io.StringIO(), color_system="truecolor", force_terminal=True
    )
    console.print(Text.from_ansi(text), soft_wrap=False)
    return _FONT.sub("", console.export_svg(title="mqtool", unique_id="mqtool"))


def words(svg: str) -> list[str]:
    """Return the words of a picture, without those of its title."""
    texts = re.findall(r"<text [^>]*>(.*?)</text>", svg)
    return " ".join(html.unescape(text) for text in texts).replace("\xa0", " ").split()


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(shown()))
