"""A disk that is small, and full for a while: for chaos and for tests."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """A disk of `size` bytes at an empty folder.

    Raises:
      PermissionError: only root may mount one.
      FileNotFoundError: there is no mount here.
    """
    options = ["-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    done = subprocess.run(
        ["mount", *options], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


def fill(folder: Path) -> Path:
    """Takes all the room that is left on the disk of a folder, by a file there."""
    rest = folder / "rest"
    with contextlib.suppress(OSError), rest.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return rest
