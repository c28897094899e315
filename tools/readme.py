"""The README as a package index shows it: hatch asks for it when a package is built.

Links within the repository and the picture lead nowhere there, so the words of a link are left, and the picture goes.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def plain(readme: str) -> str:
    """Return a page without pictures and links that are relative."""
    text = re.sub(r"^!\[[^\]]*\]\((?!\w+:)[^)]*\)\n\n?", "", readme, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\((?!\w+:)[^)]*\)", r"\1", text)


class Readme(MetadataHookInterface):
    """Gives a package its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the README into the metadata."""
        text = plain((Path(self.root) / "README.md").read_text())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
