"""A file's bytes in, its text as raw lines out, so that the lines joined are the text again."""

from __future__ import annotations

import codecs
import difflib
import gzip
import zlib
from encodings.aliases import aliases
from pathlib import Path

from jaxtag.corpus.records import mistake, quote

BOM = "\ufeff"
_COMMON = ("utf-8", "utf-16", "latin-1", "cp1252", "gb18030", "big5", "shift-jis", "euc-kr")
_GZIP_MAGIC = b"\x1f\x8b"
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32", "utf-32"),
    (codecs.BOM_UTF32_BE, "UTF-32", "utf-32"),
    (codecs.BOM_UTF16_LE, "UTF-16", "utf-16"),
    (codecs.BOM_UTF16_BE, "UTF-16", "utf-16"),
)


def read_lines(path: Path, encoding: str) -> tuple[list[str], str]:
    """Read the file's raw lines, line ends kept, and the codec that writes them back.

    A line ends at LF only: every other Unicode line end may stand inside a token. A byte order
    mark stays in the first line.
    """
    codec = codec_for(encoding, path)
    data = _read_bytes(path)
    if not data:
        raise mistake(path, None, "a corpus", "an empty file", "give a file that has sentences")
    codec = _without_mark(codec, data)
    text = _decode(data, codec, path)
    if "\n" not in text and text.rstrip("\r").count("\r") > 1:
        cure = "convert its line ends, as with tr '\\r' '\\n'"
        raise mistake(path, 1, "lines that end in a line feed", "only carriage returns", cure)
    return split_lines(text), codec


def split_lines(text: str) -> list[str]:
    r"""Split after every LF and nowhere else.

    >>> split_lines("a\r\nb\x85c\n\nd")
    ['a\r\n', 'b\x85c\n', '\n', 'd']
    """
    *lines, rest = text.split("\n")
    return [line + "\n" for line in lines] + ([rest] if rest else [])


def content(line: str) -> str:
    r"""Take the line end off: LF, or CR and LF.

    >>> content("dog\tO\r\n")
    'dog\tO'
    """
    return line.removesuffix("\n").removesuffix("\r")


def contents(lines: list[str]) -> list[str]:
    """Take the line ends off, and the byte order mark of the first line."""
    bare = [content(line) for line in lines]
    if bare:
        bare[0] = bare[0].removeprefix(BOM)
    return bare


def codec_for(encoding: str, path: Path | str | None) -> str:
    """Python's name of the codec; an unknown one is an error with the nearest names."""
    try:
        name = codecs.lookup(encoding).name
        # Some codecs turn bytes into bytes: only using one tells.
        "".encode(name)
        b"".decode(name)
    except (LookupError, UnicodeError, ValueError):
        known = sorted({name.replace("_", "-") for name in (*aliases, *aliases.values())})
        asked = encoding.lower().replace("_", "-")
        near = difflib.get_close_matches(asked, _COMMON, 2) or difflib.get_close_matches(
            asked, known, 3
        )
        cure = f"did you mean {' or '.join(near)}?" if near else "give utf-8, latin-1, cp1252 …"
        found = f"--data.encoding {quote(encoding)}"
        raise mistake(path, None, "a known text encoding", found, cure) from None
    return name


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise mistake(path, None, "a corpus file", "no such file", "check the path") from None
    except IsADirectoryError:
        cure = "give one of the files in it"
        raise mistake(path, None, "a corpus file", "a directory", cure) from None
    except PermissionError:
        cure = "change its permissions"
        raise mistake(path, None, "a readable file", "that reading is not allowed", cure) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise mistake(path, None, "a readable file", f"{reason!r}", "check the path") from None
    named = path.name.lower().endswith(".gz")
    if not data or not (named or data.startswith(_GZIP_MAGIC)):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        cure = "fetch or compress the file again"
        if not data.startswith(_GZIP_MAGIC):
            cure = "take .gz off its name if it is not compressed"
        raise mistake(path, None, "gzip data", f"damage ({error})", cure) from None


def _without_mark(codec: str, data: bytes) -> str:
    """Name the codec that keeps a byte order mark as U+FEFF, so that it can be written again."""
    match codec:
        case "utf-8-sig":
            return "utf-8"
        case "utf-16":
            return "utf-16-be" if data.startswith(codecs.BOM_UTF16_BE) else "utf-16-le"
        case "utf-32":
            return "utf-32-be" if data.startswith(codecs.BOM_UTF32_BE) else "utf-32-le"
        case _:
            return codec


def _decode(data: bytes, codec: str, path: Path) -> str:
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        mark = next((mark for mark in _MARKS if data.startswith(mark[0])), None)
        if mark is not None:
            found, cure = f"a {mark[1]} byte order mark", f"give --data.encoding {mark[2]}"
            raise mistake(path, 1, f"{codec} text", found, cure) from None
        raise _undecodable(data, codec, error, path, 1) from None
    except UnicodeError as error:
        cure = "give the file's --data.encoding"
        raise mistake(path, None, f"{codec} text", quote(str(error)), cure) from None


def decode_line(data: bytes, codec: str, path: str, line: int) -> str:
    """Decode one line of a stream strictly."""
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        raise _undecodable(data, codec, error, path, line) from None


def _undecodable(
    data: bytes, codec: str, error: UnicodeDecodeError, path: Path | str, first_line: int
) -> Exception:
    before = data[: error.start].decode(codec, "replace")
    found = f"byte 0x{data[error.start]:02x} after {quote(before.rpartition(chr(10))[2][-20:])}"
    others = [name for name in ("utf-8", "latin-1", "cp1252") if codec_for(name, path) != codec]
    cure = f"give the file's --data.encoding, such as {' or '.join(others)}"
    return mistake(path, first_line + before.count("\n"), f"{codec} text", found, cure)
