"""Bytes in; a file that is whole or absent out."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from jaxtag.config import InputError


class FileError(InputError):
    """A file or directory that cannot be written."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that its place holds the old content or the new, never a part.

    It is written beside its place, synced and renamed. A link is followed; a device or a pipe is
    written to directly. ``FileError`` where the system refuses, or the name can be none.
    """
    try:
        # Asked before the link is followed: /dev/fd/3 may lead to a pipe that has no name.
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
            return
        real = Path(os.path.realpath(path))
        # A short name: the file's own may be as long as the system allows.
        temporary = real.with_name(f".jaxtag.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(real)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(real.parent)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(
            f"{printable(path)}: expected a file that can be written, found {reason!r}; "
            "choose another place"
        ) from error


def printable(path: Path | str) -> str:
    r"""Show a path on one line, whatever is in its name.

    >>> printable("a\nb")
    'a\\nb'
    """
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def sync_directory(path: Path) -> None:
    """Make the names in a directory last through a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
