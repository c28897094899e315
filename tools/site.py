"""Build the site of the documentation: ``python -m tools.site FOLDER``, which ``tools/docs`` calls.

mkdocs wants all pages below one folder: pages of the repository's root and of the fixtures are put beside those of
``docs/``, and links to them are changed. A link that leads nowhere, and a page that the navigation lacks, end it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FURTHER = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_policy.md",
    "CHANGELOG.md": "changelog.md",
    "fixtures/README.md": "fixtures.md",
}
"""Pages from elsewhere, and what they are called on the site."""


def gather(folder: Path) -> None:
    """Put all pages, and what they show, into a folder."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    for path in sorted(folder.rglob("*.md")):
        path.write_text(_links(path.read_text(), ROOT / "docs" / path.relative_to(folder).parent, path.parent, folder))
    for source, name in FURTHER.items():
        path = ROOT / source
        (folder / name).write_text(_links(path.read_text(), path.parent, folder, folder))


def _links(text: str, before: Path, now: Path, folder: Path) -> str:
    """Return a page whose links lead to the same pages on the site; what is not on it becomes text."""

    def moved(found: re.Match[str]) -> str:
        words, link, anchor = found[1], found[2], found[3] or ""
        if "://" in link or not link:
            return found[0]
        target = Path(os.path.normpath(before / link))
        inside = target.relative_to(ROOT)
        if str(inside) in FURTHER:
            place = folder / FURTHER[str(inside)]
        elif inside.is_relative_to("docs") and target.is_file():
            place = folder / inside.relative_to("docs")
        else:
            return words
        return f"[{words}]({os.path.relpath(place, now)}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", moved, text)


def build(site: Path) -> None:
    """Build the site into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        gather(Path(folder) / "docs")
        shutil.copy(ROOT / "mkdocs.yml", folder)
        subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site.resolve())],
            cwd=folder,
            check=True,
        )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
