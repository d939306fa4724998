"""A file's bytes in, its text as raw lines out, so that the lines joined are the text again."""

from __future__ import annotations

import codecs
import difflib
import gzip
import zlib
from encodings.aliases import aliases
from pathlib import Path
from typing import BinaryIO

from jaxtag.corpus.records import CorpusError, mistake, quote

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
    codec_for(encoding, path)
    data = _read_bytes(path)
    if not data:
        raise mistake(path, None, "a corpus", "an empty file", "give a file that has sentences")
    text, codec = _decode(data, encoding, path)
    if "\n" not in text and text.rstrip("\r").count("\r") > 1:
        cure = "convert its line ends, as with tr '\\r' '\\n'"
        raise mistake(path, 1, "lines that end in a line feed", "only carriage returns", cure)
    return split_lines(text), codec


def read_stream(stream: BinaryIO, encoding: str, name: str) -> list[str]:
    """Read the raw lines of a whole stream, which a codec of wide characters needs."""
    codec_for(encoding, name)
    try:
        data = stream.read()
    except (OSError, ValueError) as error:
        raise _unreadable(error, name, "check where it comes from") from None
    return split_lines(_decode(data, encoding, name)[0])


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


def is_blank(line: str) -> bool:
    r"""Whether a line holds nothing but spaces, tabs and its end; other white space is a token.

    >>> [is_blank(line) for line in ("\t\r\n", " ", "\u3000", "\x1c")]
    [True, True, False, False]
    """
    return not line.strip(" \t\r\n")


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
        raise _unreadable(error, path, "check the path") from None
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


def _unreadable(error: OSError | ValueError, path: Path | str, cure: str) -> CorpusError:
    reason = getattr(error, "strerror", None) or str(error)
    what = "a readable file" if isinstance(path, Path) else "readable text"
    return mistake(path, None, what, repr(reason), cure)


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


def _decode(data: bytes, encoding: str, path: Path | str) -> tuple[str, str]:
    """Give the text and the codec that turns it into the same bytes again, or refuse them."""
    codec = _without_mark(codec_for(encoding, path), data)
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as error:
        mark = next((mark for mark in _MARKS if data.startswith(mark[0])), None)
        if mark is not None:
            found, cure = f"a {mark[1]} byte order mark", f"give --data.encoding {mark[2]}"
            raise mistake(path, 1, f"{codec} text", found, cure) from None
        raise _undecodable(data, codec, error, path) from None
    except UnicodeError as error:
        cure = "give the file's --data.encoding"
        raise mistake(path, None, f"{codec} text", quote(str(error)), cure) from None
    try:
        again = text.encode(codec)
    except UnicodeError as error:
        raise _one_way(codec, path, None, quote(str(error))) from None
    if again != data:
        same = min(len(data), len(again))
        start = next((i for i in range(same) if data[i] != again[i]), same)
        found = f"bytes {data[start : start + 4]!r} that would become {again[start : start + 4]!r}"
        raise _one_way(codec, path, data[:start].count(b"\n") + 1, found)
    return text, codec


def _one_way(codec: str, path: Path | str, line: int | None, found: str) -> CorpusError:
    """Some codecs have several spellings of one character and write only one of them."""
    expected = f"text that can be written back unchanged as {codec}"
    return mistake(path, line, expected, found, "convert the file to utf-8")


def _undecodable(
    data: bytes, codec: str, error: UnicodeDecodeError, path: Path | str
) -> CorpusError:
    before = data[: error.start].decode(codec, "replace")
    found = f"byte 0x{data[error.start]:02x} after {quote(before.rpartition(chr(10))[2][-20:])}"
    others = [name for name in ("utf-8", "latin-1", "cp1252") if codec_for(name, path) != codec]
    cure = f"give the file's --data.encoding, such as {' or '.join(others)}"
    return mistake(path, 1 + before.count("\n"), f"{codec} text", found, cure)
