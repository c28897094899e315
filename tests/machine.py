"""What only root can have a machine do for a test: mount file systems, and run a command as somebody else.

Mounts are seen by the thread of the tests and its children alone, and end with it.
"""

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.commands.running import Ran

NOBODY = 65534
_CLONE_NEWNS = 0x20000


def show_half_empty_disk() -> None:
    """Have the disk of temporary files seem half empty in this process: from 85 % on brokers delete old messages."""
    real, temporary = os.statvfs, os.statvfs(tempfile.gettempdir()).f_fsid

    def shown(path: Any) -> os.statvfs_result:
        status = real(path)
        if status.f_fsid != temporary:
            return status
        free = max(status.f_bavail, status.f_blocks // 2)
        return os.statvfs_result((*status[:3], free, free, *status[5:], status.f_fsid))

    os.statvfs = shown


@functools.cache
def leave_mounts() -> str:
    """Leave the mounts of the machine to itself; return why that cannot be done, nothing where it can."""
    if os.geteuid() != 0:
        return "only root may mount"
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        return f"this machine lets nobody mount: {os.strerror(ctypes.get_errno())}"
    ran = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True)
    return ran.stderr.strip()


@dataclass
class Mounts:
    """Mounts that end with a test."""

    made: list[Path] = field(default_factory=list)

    def tmpfs(self, path: Path, size: int = 64 << 20) -> Path:
        """Mount an empty file system of ``size`` bytes at a folder, which is made."""
        path.mkdir(parents=True, exist_ok=True)
        return self._mount(path, "-t", "tmpfs", "-o", f"size={size}", "none")

    def ext4(self, path: Path, size: int = 64 << 20) -> Path:
        """Mount an empty file system of ``size`` bytes, in a file beside the folder, that is as those of servers."""
        path.mkdir(parents=True, exist_ok=True)
        image = path.with_name(f"{path.name}.img")
        with image.open("wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-m", "0", str(image)], check=True)
        return self._mount(path, "-o", "loop", str(image))

    def over(self, path: Path) -> Path:
        """Mount a folder that has something in it on itself: nothing can be renamed into it or out of it any more."""
        return self._mount(path, "--bind", str(path))

    def read_only(self, path: Path) -> Path:
        """Mount a folder on itself so that nobody may write there."""
        self.over(path)
        return self._mount(path, "-o", "remount,ro,bind")

    def again(self, path: Path, option: str) -> Path:
        """Mount a file system with another option."""
        return self._mount(path, "-o", f"remount,{option}")

    def _mount(self, path: Path, *options: str) -> Path:
        subprocess.run(["mount", *options, str(path)], check=True)
        if not any(option.startswith("remount") for option in options):
            self.made.append(path)
        return path

    def end_last(self) -> None:
        """Unmount what was mounted last."""
        subprocess.run(["umount", "--lazy", str(self.made.pop())], check=True)

    def end(self) -> None:
        """Unmount everything."""
        while self.made:
            self.end_last()


_AS_SOMEBODY = """
import os, pkgutil, sys
import numpy.ma  # which numpy loads when it is first needed
import mqtool.cli
from tests.machine import show_half_empty_disk
show_half_empty_disk()
for module in pkgutil.walk_packages(mqtool.__path__, "mqtool."):  # while they can be read
    if module.name not in ("mqtool.__main__", "mqtool.formats.compiled", "mqtool.formats.clmul"):
        __import__(module.name)
"".encode("utf-16-be")
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
sys.exit(mqtool.cli.run(sys.argv[2:]))
"""


def run_as(user: int, *arguments: object) -> Ran:
    """Run ``mqtool`` as a user, by number."""
    command = [sys.executable, "-c", _AS_SOMEBODY, str(user), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True)
    return Ran(ran.returncode, ran.stdout, ran.stderr)
