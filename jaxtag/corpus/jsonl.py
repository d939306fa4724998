"""JSON lines in, sentences out; and predictions put into a line that else stays as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtag.config import DataConfig
from jaxtag.corpus.lines import BOM, content, is_blank
from jaxtag.corpus.records import CorpusError, Layout, Sentence, group, mistake, quote, several

TOKEN_KEYS = ("tokens", "words")
TAG_KEYS = ("tags", "ner_tags", "pos_tags", "labels")
PREDICTED_KEY = "pred_tags"
_BLANKS = " \t\n\r"
_decode = json.JSONDecoder().raw_decode


def read_jsonl(
    path: Path, lines: list[str], bare: list[str], options: DataConfig, *, tagged: bool
) -> tuple[Layout, tuple[Sentence, ...]]:
    """Read one object a line, tokens and tags under the usual keys or those that the flags name."""
    comment = None if options.comment == "auto" else options.comment or None
    kinds = ["blank" if is_blank(line) else "token" for line in bare]
    if comment is not None:
        kinds = ["aside" if line.startswith(comment) else kinds[i] for i, line in enumerate(bare)]
    token_keys: dict[str, None] = {}
    tag_keys: dict[str, None] = {}
    ids_seen = False
    sentences: list[Sentence] = []
    for start, end, (i,) in group(kinds, one_line=True):
        row = _object(path, i + 1, bare[i], first=not sentences)
        token_key = _key(path, i + 1, row, options.token_column, TOKEN_KEYS, needed=True)
        tag_key = _key(path, i + 1, row, options.tag_column, TAG_KEYS, needed=tagged)
        tokens = _tokens(path, i + 1, token_key, row[token_key])
        tags = None
        if tag_key and (tagged or not _no_tags(row[tag_key])):
            values = _values(path, i + 1, tag_key, row[tag_key], len(tokens))
            ids_seen = ids_seen or any(isinstance(value, int) for value in values)
            tags = _tags(path, i + 1, values, options.labels, tagged=tagged)
            tag_keys[tag_key] = None
        token_keys[token_key] = None
        sentences.append(Sentence(tokens, tags, tuple(lines[start:end]), (i - start,), i + 1))
    layout = Layout(
        format="jsonl",
        delimiter=None,
        columns=0,
        token_column=0,
        tag_column=0 if tag_keys else None,
        comment=comment,
        keys=("/".join(token_keys) or TOKEN_KEYS[0], "/".join(tag_keys) or None),
        ids=None if not ids_seen else "named" if options.labels else "numbers",
    )
    return layout, tuple(sentences)


def _key(
    path: Path, line: int, row: dict[str, Any], given: str, usual: tuple[str, ...], *, needed: bool
) -> str:
    """Find the key that is given, else the first usual one; "" where none is there or needed."""
    # A column's number says nothing about JSON lines.
    named = given != "auto" and not given.removeprefix("-").isdigit()
    keys = (given,) if named else usual
    found = next((key for key in keys if key in row), "")
    if needed and not found:
        raise _no_key(path, line, keys, row)
    return found


def _object(path: Path, line: int, text: str, *, first: bool) -> dict[str, Any]:
    if first and text.lstrip().startswith("["):
        cure = "write one object a line, as with jq -c '.[]'"
        raise mistake(path, line, "one JSON object a line", "a JSON array", cure)
    cure = 'write one object a line: {"tokens": […], "tags": […]}'
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        found = f"invalid JSON at column {error.colno} ({error.msg})"
        raise mistake(path, line, "one JSON object", found, cure) from None
    except (ValueError, RecursionError) as error:
        found = f"JSON that cannot be read ({error})"
        raise mistake(path, line, "one JSON object", found, cure) from None
    if not isinstance(row, dict):
        raise mistake(path, line, "one JSON object", quote(text), cure)
    return row


def _no_key(path: Path, line: int, keys: Sequence[str], row: dict[str, Any]) -> CorpusError:
    expected = f"the key {' or '.join(map(repr, keys))}"
    found = f"the keys {', '.join(map(repr, row))}" if row else "no keys"
    cure = "add it, or name the keys by --data.token-column and --data.tag-column"
    return mistake(path, line, expected, found[:200], cure)


def _tokens(path: Path, line: int, key: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        cure = "write each token as a string of the list"
        raise mistake(path, line, f"a list under {key!r}", quote(json.dumps(values)), cure)
    for place, value in enumerate(values, 1):
        if not isinstance(value, str):
            found = f"{quote(json.dumps(value))} as token {place}"
            raise mistake(path, line, f"strings under {key!r}", found, "put it in quotes")
    return tuple(values)


def _no_tags(values: Any) -> bool:
    """Whether there is no list of tags, or an empty one, or one of nulls."""
    return not values or (isinstance(values, list) and all(value is None for value in values))


def _values(path: Path, line: int, key: str, values: Any, length: int) -> list[str | int]:
    """Check that there is a string or an integer for every token."""
    if not isinstance(values, list):
        cure = "write one tag for each token"
        raise mistake(path, line, f"a list under {key!r}", quote(json.dumps(values)), cure)
    for place, value in enumerate(values, 1):
        if isinstance(value, bool) or not isinstance(value, str | int):
            found = f"{quote(json.dumps(value))} as tag {place}"
            cure = "write a tag's name or its id"
            raise mistake(path, line, f"strings or integers under {key!r}", found, cure)
    if len(values) != length:
        expected = f"a tag for each of {several(length, 'token')}"
        cure = "write one tag for each token"
        raise mistake(path, line, expected, several(len(values), "tag"), cure)
    return values


def _tags(
    path: Path, line: int, values: Sequence[str | int], names: Sequence[str], *, tagged: bool
) -> tuple[str, ...] | None:
    """Name the ids; an empty tag is a mistake, or, where tags are not needed, no tags."""
    tags = []
    for place, value in enumerate(values, 1):
        if isinstance(value, str):
            tags.append(value)
        elif value >= 0 and (value < len(names) or not names):
            tags.append(names[value] if names else str(value))
        else:
            known = f" to {len(names) - 1:,}" if names else " upwards"
            found = f"{value} as tag {place}"
            cure = "correct the id" + (", or name it in --data.labels" if names else "")
            raise mistake(path, line, f"tag ids from 0{known}", found, cure)
    if "" not in tags:
        return tuple(tags)
    if not tagged:
        return None
    found = f"an empty string as tag {tags.index('') + 1}"
    raise mistake(path, line, "a tag for each token", found, "add the missing tag")


def with_predictions(line: str, predicted: Sequence[str], *, ascii_only: bool) -> str:
    r"""Put the list of predicted tags into a line, as its last member or over an older list.

    >>> with_predictions('{"tokens": ["a"], "x":1.0}\r\n', ["O"], ascii_only=False)
    '{"tokens": ["a"], "x":1.0, "pred_tags": ["O"]}\r\n'
    >>> with_predictions('{"pred_tags": [], "tokens": ["a"]}', ["O"], ascii_only=False)
    '{"pred_tags": ["O"], "tokens": ["a"]}'
    """
    written = json.dumps(list(predicted), ensure_ascii=ascii_only)
    mark = BOM if line.startswith(BOM) else ""
    text = content(line)[len(mark) :]
    key, start, end, older = "", 0, 0, None
    place = _skip(text, 0) + 1
    while text[place - 1] != "}":
        key, place = _decode(text, _skip(text, place))
        start = _skip(text, _skip(text, place) + 1)
        _, end = _decode(text, start)
        if key == PREDICTED_KEY:
            older = start, end
        place = _skip(text, end) + 1
    if older is not None:
        text = text[: older[0]] + written + text[older[1] :]
    else:
        text = f'{text[:end]}, "{PREDICTED_KEY}": {written}{text[end:]}'
    return mark + text + line[len(content(line)) :]


def _skip(text: str, place: int) -> int:
    while text[place] in _BLANKS:
        place += 1
    return place
