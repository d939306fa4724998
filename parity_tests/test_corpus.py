"""Corpus files: what is read, what is refused, and that writing is the inverse of reading."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtag import corpus, labels
from jaxtag.config import DataConfig
from jaxtag.corpus import CorpusError
from jaxtag.files import FileError

# File, sentences, tokens, entities (None: parts of speech), token and tag column from 0.
CORPORA = [
    ("wnut17/wnut17train.conll", 3_394, 62_730, 1_975, 0, 1),
    ("wnut17/emerging.dev.conll", 1_009, 15_733, 836, 0, 1),
    ("wnut17/emerging.test.annotated", 1_287, 23_394, 1_079, 0, 1),
    ("ud_en_ewt/en_ewt-ud-train.conllu", 12_544, 204_577, None, 1, 3),
    ("ud_en_ewt/en_ewt-ud-dev.conllu", 2_001, 25_147, None, 1, 3),
    ("ud_en_ewt/en_ewt-ud-test.conllu", 2_077, 25_094, None, 1, 3),
    ("uner_zh_gsdsimp/zh_gsdsimp-ud-train.iob2", 3_997, 98_616, 6_118, 1, 2),
    ("uner_zh_gsdsimp/zh_gsdsimp-ud-dev.iob2", 500, 12_663, 753, 1, 2),
    ("uner_zh_gsdsimp/zh_gsdsimp-ud-test.iob2", 500, 12_012, 763, 1, 2),
    ("uner_en_ewt/en_ewt-ud-dev.iob2", 2_001, 25_149, 966, 1, 2),
    ("uner_en_ewt/en_ewt-ud-test.iob2", 2_077, 25_097, 1_088, 1, 2),
    ("uner_de_pud/de_pud-ud-test.iob2", 1_000, 21_331, 1_039, 1, 2),
    ("wikigold/wikigold.conll.txt", 1_696, 39_007, 3_558, 0, 1),
]

CONLL2003 = (
    "-DOCSTART- -X- -X- O\n\n"
    "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n. . O O\n\n"
    "Peter NNP B-NP B-PER\nBlackburn NNP I-NP I-PER\n\n"
)
UNER = (
    "# sent_id = 1\n# text = Kim saw it\n"
    "1\tKim\tB-PER\t-\tann\n2\tsaw\tO\t-\t-\n3\tit\tO\t-\t-\n\n"
    "# sent_id = 2\n1\t#\tO\t-\t-\n2\tRome\tB-LOC\t-\tann\n\n"
)


def conllu_line(id_: str, form: str, upos: str, misc: str = "_") -> str:
    return "\t".join([id_, form, form.lower(), upos, "XX", "_", "0", "root", "_", misc]) + "\n"


CONLLU = (
    "# text = Don't go\n"
    + conllu_line("1-2", "Don't", "_")
    + conllu_line("1", "Do", "AUX")
    + conllu_line("2", "n't", "PART", "SpaceAfter=No|Pred=X")
    + conllu_line("3", "go", "VERB", "SpaceAfter=No")
    + conllu_line("3.1", "gone", "_")
    + "\n"
)


@pytest.fixture
def write(tmp_path):
    def write_file(text: str | bytes, name: str = "a.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def pairs(read: corpus.Corpus) -> list[list[tuple[str, str]]]:
    return [list(zip(s.tokens, s.tags, strict=True)) for s in read.sentences]


def tokens(read: corpus.Corpus) -> list[list[str]]:
    return [list(s.tokens) for s in read.sentences]


def refused(path: Path | str, options: DataConfig = DataConfig(), *, tagged: bool = True) -> str:  # noqa: B008
    with pytest.raises(CorpusError) as caught:
        corpus.read(path, options, tagged=tagged)
    message = str(caught.value)
    assert "\n" not in message
    assert re.match(rf"{re.escape(str(path))}(:[0-9]+)?: expected .+, found .+; .+", message), (
        message
    )
    return message


def predictions(read: corpus.Corpus, tag: str = "B-X") -> list[list[str]]:
    return [[tag] * len(s.tokens) for s in read.sentences]


def cut_off(text: str, format_: str) -> str:
    match format_:
        case "conllu":
            return text.replace("\tPred=B-X", "\t_").replace("|Pred=B-X", "")
        case "jsonl":
            return re.sub(r', "pred_tags": \[[^]]*\]', "", text)
        case _:
            return re.sub(r"[\t ]B-X(?=\r?$)", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(("name", "sentences", "count", "entities", "token", "tag"), CORPORA)
def test_a_public_corpus_reads_to_the_known_counts_and_writes_back_byte_for_byte(
    name, sentences, count, entities, token, tag, data_dir, tmp_path
):
    path = data_dir / name
    read = corpus.read(path)
    assert (len(read.sentences), read.token_count) == (sentences, count)
    assert (read.layout.token_column, read.layout.tag_column) == (token, tag)
    if entities is not None:
        assert sum(len(labels.spans(s.tags, "IOB2")) for s in read.sentences) == entities
    assert read.text.encode() == path.read_bytes()
    out = tmp_path / "predicted"
    corpus.write_predictions(read, predictions(read), out)
    written = out.read_text(encoding="utf-8")
    assert written.count("B-X") == count
    assert cut_off(written, read.layout.format).encode() == path.read_bytes()
    for sentence in read.sentences[:200]:
        for place, form in zip(sentence.token_lines, sentence.tokens, strict=True):
            assert form in sentence.source[place]


def test_two_tab_columns_are_token_and_tag(write):
    read = corpus.read(write("Rome\tB-LOC\nis\tO\n\nGo\tO\n"))
    assert pairs(read) == [[("Rome", "B-LOC"), ("is", "O")], [("Go", "O")]]
    assert [s.line for s in read.sentences] == [1, 4]
    assert read.tagged
    assert read.token_count == 3
    assert read.layout.describe() == (
        "conll, 2 columns separated by tabs, token in column 1, tag in column 2 (guessed)"
    )


def test_a_lone_tab_ends_a_sentence(write):
    read = corpus.read(write("a\tO\n\t\nb\tB-X\n  \nc\tO\n\r\n\nd\tO\n"))
    assert tokens(read) == [["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize("strange", ["\u3000", "\x1c", "\xa0", "\x85", "\u2028", "\x0c"])
def test_a_line_of_other_white_space_is_a_token_line(write, strange):
    read = corpus.read(write(f"a\n{strange}\n\nb\n"), tagged=False)
    assert tokens(read) == [["a", strange], ["b"]]
    assert ":2: " in refused(write(f"a\tO\n{strange}\nb\tB-X\n"))
    assert ":2: " in refused(write(f"a O\n{strange}\nb B-X\n"))
    assert ":2: " in refused(write(conllu_line("1", "a", "X") + f"{strange}\n", "a.conllu"))
    assert ":2: " in refused(write(f'{{"tokens": ["a"], "tags": ["O"]}}\n{strange}\n', "a.jsonl"))
    assert ":1: " in refused(write(f"{strange}\n" + CONLLU))
    assert ":1: " in refused(write(f'{strange}\n{{"tokens": ["a"]}}\n', "a.jsonl"))


def test_a_file_without_blank_lines_is_one_sentence(write):
    read = corpus.read(write("a\tO\n" * 20_000 + "b\tB-X"))
    assert [len(s.tokens) for s in read.sentences] == [20_001]


@pytest.mark.parametrize("strange", ["\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\r", "\xa0", " "])
def test_only_a_line_feed_ends_a_line_and_only_a_tab_a_column(write, strange):
    token = f"a{strange}b"
    assert tokens(corpus.read(write(f"{token}\tO\nc\tB-X\n"))) == [[token, "c"]]


def test_spaces_separate_in_runs_and_a_no_break_space_does_not(write):
    read = corpus.read(write("New\xa0York   B-LOC\n\xa0x O \n"))
    assert pairs(read) == [[("New\xa0York", "B-LOC"), ("\xa0x", "O")]]


def test_crlf_belongs_to_the_line_end(write):
    read = corpus.read(write("a\tB-X\r\n\r\nb\tO\r\n"))
    assert pairs(read) == [[("a", "B-X")], [("b", "O")]]
    assert read.text == "a\tB-X\r\n\r\nb\tO\r\n"


def test_old_mac_line_ends_are_named(write):
    assert "carriage returns" in refused(write("a\tO\rb\tB-X\rc\tO\r"))


def test_the_leading_bom_is_no_part_of_the_token_and_inner_ones_are(write):
    read = corpus.read(write("\ufeffa\tO\nb\ufeff\tB-X\n\u200b\tO\n"))
    assert tokens(read) == [["a", "b\ufeff", "\u200b"]]
    assert read.sentences[0].source[0] == "\ufeffa\tO\n"


def test_the_hashtag_is_a_token_in_two_columns(write):
    assert tokens(corpus.read(write("#\tO\n#tag\tB-X\n\n# O\tO\n"))) == [["#", "#tag"], ["# O"]]
    assert tokens(corpus.read(write("# O\n#tag I-X\n"))) == [["#", "#tag"]]


def test_a_hash_line_without_delimiter_is_a_comment_in_three_columns(write):
    read = corpus.read(write(UNER))
    assert tokens(read) == [["Kim", "saw", "it"], ["#", "Rome"]]
    assert read.sentences[0].token_lines == (2, 3, 4)
    assert read.sentences[1].source[0] == "# sent_id = 2\n"
    assert read.sentences[1].line == 8


def test_a_tab_in_a_comment_does_not_make_the_file_one_of_tabs(write):
    options = DataConfig(comment="#")
    read = corpus.read(write("# a\tb\nRome NNP B-LOC\nis VBZ O\n"), options)
    assert pairs(read) == [[("Rome", "B-LOC"), ("is", "O")]]


def test_a_comment_with_spaces_in_a_file_of_spaces_is_refused_with_the_flag_to_use(write):
    message = refused(write("# text = Rome is\nRome NNP B-LOC\nis VBZ O\n"))
    assert ":1: " in message
    assert "--data.comment '#'" in message


def test_a_comment_prefix_that_is_given_holds_in_two_columns(write):
    path = write("%% note\nRome\tB-LOC\n#tag\tO\n")
    read = corpus.read(path, DataConfig(comment="%%"))
    assert tokens(read) == [["Rome", "#tag"]]
    assert read.sentences[0].source[0] == "%% note\n"


def test_docstart_is_never_a_token_and_ends_a_sentence(write):
    text = "a O\n-DOCSTART- -X- O O\n\nb I-X\n"
    read = corpus.read(write(text))
    assert tokens(read) == [["a"], ["b"]]
    assert read.sentences[1].source == ("-DOCSTART- -X- O O\n", "\n", "b I-X\n")
    assert tokens(corpus.read(write("-DOCSTART-\tO\n\na\tB-X\n"))) == [["a"]]


def test_what_stands_between_sentences_goes_to_one_of_them_in_order(write):
    text = "\n# c\n\n1\ta\tB-X\n# in\n2\tb\tO\n\n\n# d\n\n1\tc\tO\n\n# end\n\n"
    read = corpus.read(write(text))
    assert tokens(read) == [["a", "b"], ["c"]]
    assert read.text == text
    assert [s.line for s in read.sentences] == [4, 11]
    assert read.sentences[0].token_lines == (3, 5)
    assert read.sentences[1].source[0] == "# d\n"


def test_an_empty_token_of_a_tab_file_is_kept(write):
    assert tokens(corpus.read(write("a\tO\n\tO\nb\tB-X\n"))) == [["a", "", "b"]]


def test_the_last_column_of_entity_tags_is_the_tag(write):
    read = corpus.read(write(CONLL2003))
    assert pairs(read)[1] == [("Peter", "B-PER"), ("Blackburn", "I-PER")]
    assert "4 columns separated by spaces, token in column 1, tag in column 4" in (
        read.layout.describe()
    )


def test_an_index_is_not_the_token_and_an_annotator_not_the_tag(write):
    layout = corpus.read(write(UNER)).layout
    assert (layout.token_column, layout.tag_column, layout.comment) == (1, 2, "#")


def test_a_column_of_nothing_but_o_is_the_tag_where_no_entity_is(write):
    layout = corpus.read(write("1\tdog\tO\t-\n2\truns\tO\t-\n")).layout
    assert (layout.token_column, layout.tag_column) == (1, 2)


def test_the_guess_looks_at_the_whole_file(write):
    text = "a\tO\tx\n" * 3_000 + "b\tB-X\ty\n"
    assert corpus.read(write(text)).layout.tag_column == 1


def test_a_rare_wrong_tag_does_not_make_another_column_the_tag(write):
    text = "".join(f"w{i} NN B-NP {('O', 'B-X')[i % 2]}\n" for i in range(300))
    assert corpus.read(write(text + "w NN B-NP storm\n")).layout.tag_column == 3


def test_parts_of_speech_are_found_in_two_and_in_three_columns(write):
    words = [(f"w{i}", ("NOUN", "VERB", "DET")[i % 3]) for i in range(300)]
    two = corpus.read(write("".join(f"{w}\t{t}\n" for w, t in words)))
    assert (two.layout.token_column, two.layout.tag_column) == (0, 1)
    three = corpus.read(write("".join(f"{w}\t{t}\t{w}x\n" for w, t in words)))
    assert (three.layout.token_column, three.layout.tag_column) == (0, 1)
    indexed = corpus.read(write("".join(f"1\t{w}\t{t}\n\n" for w, t in words)))
    assert (indexed.layout.token_column, indexed.layout.tag_column) == (1, 2)


def test_a_tag_that_stands_first_is_found(write):
    read = corpus.read(write("O\tin\nB-LOC\tRome\n"))
    assert pairs(read) == [[("in", "O"), ("Rome", "B-LOC")]]
    text = "".join(f"{('NOUN', 'VERB')[i % 2]}\tw{i}\n" for i in range(300))
    assert corpus.read(write(text)).layout.tag_column == 0


def test_a_token_that_looks_like_a_tag_does_not_move_the_tag_column(write):
    assert pairs(corpus.read(write("B-X\tO\n"))) == [[("B-X", "O")]]
    assert pairs(corpus.read(write("0\tNUM\n"))) == [[("0", "NUM")]]


def test_columns_that_are_given_are_taken(write):
    path = write(CONLL2003)
    read = corpus.read(path, DataConfig(tag_column="2"))
    assert pairs(read)[1] == [("Peter", "NNP"), ("Blackburn", "NNP")]
    read = corpus.read(path, DataConfig(token_column="1", tag_column="-2"))
    assert pairs(read)[1] == [("Peter", "B-NP"), ("Blackburn", "I-NP")]
    assert "guessed" not in read.layout.describe()


@pytest.mark.parametrize("given", ["0", "5", "-5", "upos", "1.5", ""])
def test_a_column_that_is_not_there_is_refused_with_their_number(write, given):
    message = refused(write(CONLL2003), DataConfig(tag_column=given))
    assert "4 columns" in message
    assert "--data.tag-column" in message


def test_token_and_tag_cannot_share_a_column(write):
    refused(write("a\tO\nb\tB-X\n"), DataConfig(token_column="2", tag_column="-1"))


def test_the_delimiter_can_be_given(write):
    path = write("New York\tB-LOC\n")
    assert tokens(corpus.read(path)) == [["New York"]]
    options = DataConfig(delimiter="space", token_column="1", tag_column="2")
    assert pairs(corpus.read(path, options)) == [[("New", "York\tB-LOC")]]


def test_a_missing_tag_is_named_with_its_line(write):
    message = refused(write("a\tO\nb\nc\tB-X\n"))
    assert ":2: expected a token and a tag separated by tabs" in message
    assert "add the missing tag" in message
    assert ":4: " in refused(write("a X O\nb Y B-X\n\nc X\nd X O\n"))


def test_a_line_with_too_many_columns_is_named(write):
    assert ":2: " in refused(write("a O\nNew York B-LOC\nc O\n"))


def test_one_tab_in_a_file_of_spaces_is_named(write):
    message = refused(write("a O\nb O\nc\tB-X\nd O\n"))
    assert ":3: " in message
    assert "a tab" in message


def test_an_empty_tag_is_refused(write):
    assert ":2: " in refused(write("a\tB-X\nb\t\n"))


def test_a_file_that_is_not_there_or_not_a_file_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "none")
    assert "a directory" in refused(tmp_path)
    assert "too long" in refused(tmp_path / ("x" * 300))


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "a\n" + "x" * 5_000])
def test_a_path_that_can_be_none_is_refused_in_one_line(path):
    with pytest.raises(
        CorpusError, match=r"expected a readable file, found .+; check the path"
    ) as e:
        corpus.read(path)
    assert str(e.value).isprintable()


def test_a_pipe_is_read_once(write, tmp_path):
    like = corpus.read(write(CONLL2003)).layout
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for tagged in (True, False):
        writer = threading.Thread(target=pipe.write_text, args=(CONLL2003,))
        writer.start()
        read = corpus.read(pipe, tagged=tagged, like=like)
        writer.join()
        assert pairs(read) == pairs(corpus.read(write(CONLL2003)))


def test_a_file_like_another_has_the_columns_of_that_one(write):
    like = corpus.read(write("a B-X x\nb O y\n"), DataConfig(tag_column="2")).layout
    path = write("c B-X B-Y\nd O O\n", "b.txt")
    assert corpus.read(path).layout.tag_column == 2
    for tagged in (True, False):
        assert pairs(corpus.read(path, tagged=tagged, like=like)) == [[("c", "B-X"), ("d", "O")]]
        given = corpus.read(path, DataConfig(tag_column="3"), tagged=tagged, like=like)
        assert pairs(given) == [[("c", "B-Y"), ("d", "O")]]
        longer = corpus.read(write("c B-X x B-Y\n", "c.txt"), tagged=tagged, like=like)
        assert pairs(longer) == [[("c", "B-X")]]  # as with predictions in a new last column
        shorter = corpus.read(write("B-Y c\n", "e.txt"), tagged=tagged, like=like)
        assert pairs(shorter) == [[("c", "B-Y")]]
    message = "only 1 column"
    with pytest.raises(CorpusError, match=message):
        corpus.read(write("c B-X\nd\ne O\n", "d.txt"), like=corpus.read(write("a B-X\n")).layout)
    xpos = corpus.read(write(CONLLU, "a.conllu"), DataConfig(tag_column="xpos")).layout
    assert set(corpus.read(write(CONLLU, "b.conllu"), like=xpos).sentences[0].tags) == {"XX"}


def test_a_file_that_may_not_be_read_is_refused(write, monkeypatch):
    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert "not allowed" in refused(write("a\tO\n"))


@pytest.mark.parametrize("text", ["", "\n\n \n", "\ufeff", "-DOCSTART- O\n\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.conllu", "a.jsonl"])
@pytest.mark.parametrize("tagged", [True, False])
def test_a_file_without_a_sentence_is_refused(write, text, name, tagged):
    refused(write(text, name), tagged=tagged)


def test_a_file_without_a_label_is_refused_only_where_tags_are_needed(write):
    for name, text in {
        "a.txt": "a\nb\n",
        "b.txt": "a\t_\nb\t_\n",
        "c.conllu": conllu_line("1", "a", "_"),
        "d.jsonl": '{"tokens": ["a"]}\n',
        "e.jsonl": '{"tokens": [], "tags": []}\n',
        "f.jsonl": '{"tokens": ["a"], "tags": []}\n',
    }.items():
        path = write(text, name)
        refused(path)
        read = corpus.read(path, tagged=False)
        assert all(s.tags is None for s in read.sentences)
        assert "no tags" in read.layout.describe()


def test_an_undecodable_byte_is_named_with_its_line(write):
    path = write("a\tO\nb\tO\ncaf\xe9\tB-X\n".encode("latin-1"))
    message = refused(path)
    assert ":3: " in message
    assert "0xe9" in message
    assert "--data.encoding" in message
    assert tokens(corpus.read(path, DataConfig(encoding="latin-1"))) == [["a", "b", "caf\xe9"]]


@pytest.mark.parametrize("codec", ["utf-16", "utf-32"])
def test_a_wide_unicode_file_is_named_and_read_and_written_when_the_codec_is_given(
    write, tmp_path, codec
):
    path = write("\xe9\tB-X\nb\tO\n".encode(codec))
    assert f"--data.encoding {codec}" in refused(path)
    read = corpus.read(path, DataConfig(encoding=codec))
    assert tokens(read) == [["\xe9", "b"]]
    corpus.write_predictions(read, predictions(read), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == "\xe9\tB-X\tB-X\nb\tO\tB-X\n".encode(codec)


@pytest.mark.parametrize(
    ("codec", "token"),
    [
        ("cp932", b"\x87\x90"),
        ("utf-7", b"+AGE-"),
        ("big5", b"\xa2\xcc"),
        ("iso2022_jp", b"\x1b$B0!\x1b(J\x1b(B"),
        ("hz", b"~{<:~}~{<:~}"),
        ("unicode_escape", b"\\x41"),
        ("raw_unicode_escape", b"\\u0041"),
    ],
)
def test_bytes_that_would_not_be_written_back_are_refused(write, codec, token):
    message = refused(write(b"a\tO\n" + token + b"\tB-X\n"), DataConfig(encoding=codec))
    assert "expected text that can be written back unchanged as" in message
    assert message.endswith("; convert the file to utf-8")
    assert (
        codec != "cp932"
        or r":2: expected text that can be written back unchanged as cp932, " in (message)
    )
    with pytest.raises(CorpusError, match="written back unchanged"):
        corpus.read_text_lines(io.BytesIO(b"a\n" + token), codec)


@pytest.mark.parametrize("codec", ["cp932", "shift_jis", "iso2022_jp", "gb18030", "big5", "hz"])
def test_a_codec_of_many_bytes_is_read_and_written_back(write, tmp_path, codec):
    text = "\u5c71\tB-X\nb\tO\n"
    read = corpus.read(write(text.encode(codec)), DataConfig(encoding=codec))
    corpus.write_predictions(read, predictions(read), tmp_path / "out")
    written = (tmp_path / "out").read_bytes()
    assert written == "\u5c71\tB-X\tB-X\nb\tO\tB-X\n".encode(codec)


@pytest.mark.parametrize("codec", ["utf-9", "base64", "nonsense-codec"])
def test_an_unknown_codec_is_refused(write, codec):
    message = refused(write("a\tO\n"), DataConfig(encoding=codec))
    assert codec in message
    assert codec != "utf-9" or "utf-8" in message


def test_gzip_is_read_by_name_and_by_content(write):
    data = gzip.compress(b"a\tB-X\n")
    assert tokens(corpus.read(write(data, "a.conll.gz"))) == [["a"]]
    assert tokens(corpus.read(write(data, "a.conll"))) == [["a"]]
    jsonl = gzip.compress(b'{"tokens": ["a"], "tags": ["O"]}\n')
    assert corpus.read(write(jsonl, "a.jsonl.gz")).layout.format == "jsonl"


def test_damaged_gzip_is_refused(write):
    data = gzip.compress(b"a\tB-X\n" * 1_000)
    assert "gzip" in refused(write(data[:-20], "a.gz"))
    assert "gzip" in refused(write(data[:30] + b"\xff\xff" + data[32:], "b.gz"))
    assert "take .gz off" in refused(write("a\tB-X\n", "c.gz"))


def test_an_error_is_one_line_whatever_the_file_is_called(tmp_path):
    with pytest.raises(CorpusError) as caught:
        corpus.read(tmp_path / "a\nb")
    assert "\n" not in str(caught.value)


def test_prediction_reads_tokens_alone_whatever_columns_training_had(write):
    options = DataConfig(token_column="2", tag_column="3")
    assert tokens(corpus.read(write("a\nb\n\nc\n"), options, tagged=False)) == [["a", "b"], ["c"]]
    read = corpus.read(write("1\ta\n2\tb\n"), options, tagged=False)
    assert tokens(read) == [["a", "b"]]
    assert read.sentences[0].tags is None
    read = corpus.read(write("a X\nb Y\n"), DataConfig(tag_column="4"), tagged=False)
    assert tokens(read) == [["a", "b"]]
    assert read.sentences[0].tags is None


def test_prediction_does_not_take_an_index_for_a_token_nor_a_token_for_a_tag(write):
    read = corpus.read(write("1\ta\n2\tb\n\n1\tc\n"), tagged=False)
    assert tokens(read) == [["a", "b"], ["c"]]
    assert not read.tagged
    read = corpus.read(write("1\ta\t-\n2\tb\t-\n"), tagged=False)
    assert tokens(read) == [["a", "b"]]
    assert not read.tagged


def test_prediction_keeps_the_tags_that_are_there(write):
    read = corpus.read(write("a\tO\nb\tB-X\n\nc\t\n"), tagged=False)
    assert [s.tags for s in read.sentences] == [("O", "B-X"), None]


def test_text_lines_split_on_spaces_and_tabs_alone():
    stream = io.BytesIO("\ufeffNew\xa0York  is\tbig \r\n\na\u2028b\x85c".encode())
    read = list(corpus.read_text_lines(stream))
    assert [s.tokens for s in read] == [("New\xa0York", "is", "big"), (), ("a\u2028b\x85c",)]
    assert [s.line for s in read] == [1, 2, 3]
    assert all(s.tags is None for s in read)


def test_text_lines_are_decoded_strictly_and_whole():
    with pytest.raises(CorpusError, match=r"<stdin>:2: .*0xe9"):
        corpus.read_text_lines(io.BytesIO(b"a b\ncaf\xe9\n"))
    with pytest.raises(CorpusError, match=r"--data\.encoding utf-16"):
        corpus.read_text_lines(io.BytesIO("a".encode("utf-16")))
    assert corpus.read_text_lines(io.BytesIO(b"")) == ()
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(CorpusError, match="<stdin>: expected readable text, found "):
        corpus.read_text_lines(closed)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp932"])
def test_text_lines_are_written_in_the_encoding_that_they_came_in(tmp_path, codec):
    # U+0A0A and U+0D0A hold the byte of a line feed.
    token = "\u5c71" if codec == "cp932" else "\u0a0a\u0d0a"
    stream = io.BytesIO(f"{token} b\r\n\nc\n".encode(codec))
    read = corpus.read_text_lines(stream, codec)
    assert [s.tokens for s in read] == [(token, "b"), (), ("c",)]
    pairs = [(s.tokens, ["O"] * len(s.tokens)) for s in read]
    corpus.write(corpus.conll_corpus(pairs, encoding=codec), tmp_path / "out")
    expected = f"{token}\tO\nb\tO\n\n\nc\tO\n\n"
    assert (tmp_path / "out").read_bytes() == expected.encode(codec)
    with pytest.raises(CorpusError, match="utf-9"):
        corpus.conll_corpus(pairs, encoding="utf-9")


@pytest.mark.parametrize("name", ["a.conllu", "a.txt", "a.conllu.gz"])
def test_ranges_and_empty_nodes_are_no_tokens_but_stay(write, name):
    data = CONLLU.encode()
    read = corpus.read(write(gzip.compress(data) if name.endswith("gz") else data, name))
    assert read.layout.format == "conllu"
    assert pairs(read) == [[("Do", "AUX"), ("n't", "PART"), ("go", "VERB")]]
    assert read.text == CONLLU
    assert read.sentences[0].token_lines == (2, 3, 4)
    assert read.sentences[0].line == 3


@pytest.mark.parametrize("given", ["xpos", "XPOS", "5", "-6"])
def test_a_conllu_column_is_named_or_numbered(write, given):
    read = corpus.read(write(CONLLU, "a.conllu"), DataConfig(tag_column=given))
    assert set(read.sentences[0].tags) == {"XX"}
    assert "xpos" in refused(write(CONLLU, "a.conllu"), DataConfig(tag_column="ner"))


def test_one_missing_upos_is_an_error_only_where_tags_are_needed(write):
    path = write(CONLLU + conllu_line("1", "a", "_"), "a.conllu")
    assert ":8: " in refused(path)
    read = corpus.read(path, tagged=False)
    assert [s.tags is None for s in read.sentences] == [False, True]


def test_a_conllu_line_that_is_none_is_refused(write):
    assert ":2: " in refused(write("# c\n1\ta\tNOUN\n", "a.conllu"))
    assert ":1: " in refused(write(conllu_line("x", "a", "NOUN"), "a.conllu"))


def test_json_lines_hold_tokens_and_tags(write):
    text = '{"id": 7, "tokens": ["a", "b"], "tags": ["O", "B-X"]}\n\n{"tokens": [], "tags": []}'
    for name in ("a.jsonl", "a.json", "a.txt"):
        read = corpus.read(write(text, name))
        assert pairs(read) == [[("a", "O"), ("b", "B-X")], []]
        assert read.text == text
        assert [(s.line, s.token_lines) for s in read.sentences] == [(1, (0,)), (3, (0,))]
        assert read.layout.describe() == 'jsonl, tokens in "tokens", tags in "tags"'


def test_other_usual_keys_are_taken_and_shown(write):
    read = corpus.read(write('{"words": ["a"], "pos_tags": [3], "ner_tags": ["O"]}\n', "a.jsonl"))
    assert pairs(read) == [[("a", "O")]]
    assert 'tokens in "words", tags in "ner_tags"' in read.layout.describe()


def test_a_flag_names_the_key_of_json_lines(write):
    path = write('{"tokens": ["a"], "upos": ["X"], "tags": ["O"]}\n', "a.jsonl")
    assert pairs(corpus.read(path, DataConfig(tag_column="upos"))) == [[("a", "X")]]
    assert pairs(corpus.read(path, DataConfig(tag_column="3"))) == [[("a", "O")]]


def test_ids_are_named_by_position_or_become_numbers(write):
    path = write('{"tokens": ["a", "b"], "tags": [0, 2]}\n', "a.jsonl")
    named = corpus.read(path, DataConfig(labels=("O", "B-X", "I-X")))
    assert named.sentences[0].tags == ("O", "I-X")
    assert "named by --data.labels" in named.layout.describe()
    plain = corpus.read(path)
    assert plain.sentences[0].tags == ("0", "2")
    assert "numbers" in plain.layout.describe()


def test_an_id_outside_the_names_is_refused_with_the_range(write):
    path = write('\n{"tokens": ["a"], "tags": [2]}\n', "a.jsonl")
    message = refused(path, DataConfig(labels=("O", "B-X")))
    assert ":2: expected tag ids from 0 to 1, found 2" in message
    path = write('{"tokens": ["a"], "tags": [-100]}\n', "a.jsonl")
    assert "found -100" in refused(path)
    assert "found -100" in refused(path, DataConfig(labels=("O", "B-X")))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"tokens": ["a"], "tags": ["O", "O"]}', "1 token, found 2 tags"),
        ('{"tokens": ["a", 3], "tags": ["O", "O"]}', "token 2"),
        ('{"tokens": "a b", "tags": ["O", "O"]}', "a list"),
        ('{"tokens": ["a"], "tags": "O"}', "a list"),
        ('{"tokens": ["a"], "tags": [true]}', "true"),
        ('{"tokens": ["a"], "tags": [1.0]}', "1.0"),
        ('{"tokens": ["a"], "tags": [null]}', "null"),
        ('{"tokens": ["a"], "tags": [""]}', "empty"),
        ('{"tokens": ["a"]}', "'tags'"),
        ('{"text": "a"}', "'text'"),
        ("{}", "no keys"),
        ('["a"]', "array"),
        ("3", "one JSON object"),
        ('{"tokens": ["a"] "tags": ["O"]}', "column 18"),
        ('{"tokens": [', "column"),
        ('{"tokens": ' + "[" * 100_000, "cannot be read"),
        ('{"tokens": [' + "9" * 5_000 + "]}", "cannot be read"),
    ],
)
def test_a_wrong_json_line_is_refused_with_its_line(write, row, said):
    message = refused(write(f"\n{row}\n", "a.jsonl"))
    assert ":2: " in message
    assert said in message
    assert len(message) < 600


@pytest.mark.parametrize("tags", ["null", "[null]", "[null, null]", "[]"])
def test_null_tags_are_none_where_tags_are_not_needed(write, tags):
    path = write(
        f'{{"tokens": ["a", "b"], "tags": {tags}}}\n{{"tokens": ["c"], "tags": ["O"]}}\n',
        "a.jsonl",
    )
    assert ":1: " in refused(path)
    assert [s.tags for s in corpus.read(path, tagged=False).sentences] == [None, ("O",)]
    message = refused(write('{"tokens": ["a", "b"], "tags": [null, "O"]}', "b.jsonl"), tagged=False)
    assert "'null' as tag 1" in message


def test_a_pretty_printed_array_is_refused(write):
    text = json.dumps([{"tokens": ["a"], "tags": ["O"]}], indent=1)
    assert "array" in refused(write(text, "a.json"))


def test_predictions_are_a_new_last_column_and_nothing_else_changes(write, tmp_path):
    text = "\ufeff-DOCSTART- O\r\n\r\na  O \r\n\xa0b I-X\r\n \r\n#tag O"
    read = corpus.read(write(text))
    corpus.write_predictions(read, [["O", "B-Y"], ["B-Z"]], tmp_path / "out")
    expected = "\ufeff-DOCSTART- O\r\n\r\na  O  O\r\n\xa0b I-X B-Y\r\n \r\n#tag O B-Z"
    assert (tmp_path / "out").read_bytes() == expected.encode()


def test_tokens_alone_get_a_tag_column(write, tmp_path):
    read = corpus.read(write("a\nb\n"), tagged=False)
    corpus.write_predictions(read, [["O", "B-X"]], tmp_path / "out")
    assert (tmp_path / "out").read_text() == "a O\nb B-X\n"


def test_conllu_predictions_stand_in_misc(write, tmp_path):
    read = corpus.read(write(CONLLU, "a.conllu"))
    corpus.write_predictions(read, [["X", "Y", "Z"]], tmp_path / "out.conllu")
    lines = (tmp_path / "out.conllu").read_text().split("\n")
    misc = [line.split("\t")[9] for line in lines if "\t" in line]
    assert misc == ["_", "Pred=X", "SpaceAfter=No|Pred=Y", "SpaceAfter=No|Pred=Z", "_"]
    assert corpus.read(tmp_path / "out.conllu").sentences[0].tags == read.sentences[0].tags


def test_json_predictions_are_added_in_place_and_all_else_stays(write, tmp_path):
    text = (
        '\ufeff{"tokens" :["a\\u00e9"], "tags":["O"],"x":1.50, "x": {"}": "}"} }  \r\n'
        "\n"
        '{"pred_tags": ["O", "old"], "tokens": ["b"], "tags": ["O"]}'
    )
    read = corpus.read(write(text, "a.jsonl"))
    corpus.write_predictions(read, [["B-É"], ["B-X"]], tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes().decode() == (
        '\ufeff{"tokens" :["a\\u00e9"], "tags":["O"],"x":1.50, "x": {"}": "}"}, '
        '"pred_tags": ["B-É"] }  \r\n'
        "\n"
        '{"pred_tags": ["B-X"], "tokens": ["b"], "tags": ["O"]}'
    )


def test_the_encoding_stays_and_a_tag_that_it_lacks_is_refused(write, tmp_path):
    options = DataConfig(encoding="latin-1")
    read = corpus.read(write("\xe9\tB-X\n".encode("latin-1")), options)
    corpus.write_predictions(read, [["B-É"]], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"\xe9\tB-X\tB-\xc9\n"
    with pytest.raises(CorpusError, match="iso8859-1"):
        corpus.write_predictions(read, [["B-\u0416"]], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"\xe9\tB-X\tB-\xc9\n"
    path = write('{"tokens": ["\xe9"], "tags": ["O"]}'.encode("latin-1"), "a.jsonl")
    corpus.write_predictions(corpus.read(path, options), [["\u0416"]], tmp_path / "b")
    assert json.loads((tmp_path / "b").read_text("latin-1"))["pred_tags"] == ["\u0416"]


def test_a_codec_that_cannot_say_where_it_failed_is_refused_in_one_line(write, tmp_path):
    read = corpus.read(write("a\tB-X\n"), DataConfig(encoding="idna"))
    with pytest.raises(CorpusError, match=r"expected idna text, found .encoding with"):
        corpus.write_predictions(read, [["O" * 80]], tmp_path / "out")


@pytest.mark.parametrize("tag", ["a b", "", "a\nb"])
def test_a_tag_that_would_break_the_columns_is_refused(write, tmp_path, tag):
    read = corpus.read(write("a O\nb I-X\n"))
    with pytest.raises(CorpusError):
        corpus.write_predictions(read, [[tag, "O"]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_number_of_predictions_is_refused_with_the_sentence_s_line(write, tmp_path):
    read = corpus.read(write("a\tO\n\nb\tB-X\nc\tO\n"))
    with pytest.raises(CorpusError, match="2 sentences"):
        corpus.write_predictions(read, [["O"]], tmp_path / "out")
    with pytest.raises(CorpusError, match=r"a\.txt:3: expected 2 predicted tags, found 3"):
        corpus.write_predictions(read, [["O"], ["O", "O", "O"]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_name_in_gz_is_compressed(write, tmp_path):
    read = corpus.read(write("a\tB-X\n"))
    corpus.write_predictions(read, [["O"]], tmp_path / "out.gz")
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == b"a\tB-X\tO\n"


@pytest.mark.parametrize("path", [None, "-", Path("-")])
def test_standard_output_gets_the_bytes(write, capfdbinary, path):
    read = corpus.read(write("\xe9\tB-X\r\n"))
    corpus.write_predictions(read, [["O"]], path)
    assert capfdbinary.readouterr().out == "\xe9\tB-X\tO\r\n".encode()


def test_an_output_is_written_whole_or_not_at_all(write, tmp_path, monkeypatch):
    read = corpus.read(write("a\tB-X\n"))
    out = tmp_path / "out"
    out.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(FileError, match="full"):
        corpus.write_predictions(read, [["O"]], out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out"]


def test_an_output_that_cannot_be_is_refused(write, tmp_path):
    read = corpus.read(write("a\tB-X\n"))
    names = ["", "none/out", "a.txt/out", "\0", "none\0/out", "\ud800", "x" * 300, "none\n/out"]
    for path in (*(tmp_path / name for name in names), "/", ""):
        with pytest.raises(FileError, match=": expected a file that can be written, found ") as e:
            corpus.write_predictions(read, [["O"]], path)
        assert str(e.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failing_clean_up_hides_no_error(write, tmp_path, monkeypatch):
    read = corpus.read(write("a\tB-X\n"))

    def fail(*_: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(FileError, match="found 'full'"):
        corpus.write_predictions(read, [["O"]], tmp_path / "out")


def test_an_output_name_may_be_as_long_as_the_system_allows(write, tmp_path):
    read = corpus.read(write("a\tB-X\n"))
    for name in ("\xe9" * 125, "\u5c71" * 85, "x" * 255):
        corpus.write_predictions(read, [["O"]], tmp_path / name)
        assert (tmp_path / name).read_text() == "a\tB-X\tO\n"


def test_a_pipe_is_written_to(write, tmp_path):
    read = corpus.read(write("a\tB-X\n"))
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    corpus.write_predictions(read, [["O"]], tmp_path / "pipe")
    reader.join()
    assert got == [b"a\tB-X\tO\n"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_pipe_that_has_a_number_alone_is_written_to(write):
    read = corpus.read(write("a\tB-X\n"))
    get, put = os.pipe()
    with open(get, "rb") as reader:
        with open(put, "wb"):
            corpus.write_predictions(read, [["O"]], f"/dev/fd/{put}")
        assert reader.read() == b"a\tB-X\tO\n"


def test_a_device_is_written_to_and_a_link_is_followed(write, tmp_path):
    read = corpus.read(write("a\tB-X\n"))
    corpus.write_predictions(read, [["O"]], "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    corpus.write_predictions(read, [["O"]], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "a\tB-X\tO\n"


def test_a_corpus_made_in_memory_is_written_and_read_back(tmp_path):
    made = corpus.conll_corpus([(["New", "York"], ["B-LOC", "I-LOC"]), (["#", ""], ["O", "O"])])
    path = tmp_path / "made"
    path.write_text(made.text)
    read = corpus.read(path)
    assert read.sentences == made.sentences
    corpus.write_predictions(made, predictions(made), tmp_path / "out")
    assert corpus.read(tmp_path / "out").layout.columns == 3
    with pytest.raises(CorpusError, match="without tab"):
        corpus.conll_source(["a\tb"], ["O"])
    with pytest.raises(CorpusError, match="a tag for each of 1 token"):
        corpus.conll_source(["a"], [])


TOKEN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\t"), min_size=1)
TOKEN = TOKEN.filter(lambda token: not token.startswith("-DOCSTART-"))
TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-creative-work"])
SENTENCES = st.lists(st.lists(st.tuples(TOKEN, TAG), min_size=1, max_size=6), min_size=1)
PROPERTY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@PROPERTY
@given(SENTENCES)
def test_any_tokens_written_as_columns_are_read_back(tmp_path, sentences):
    unzipped = [tuple(zip(*sentence, strict=True)) for sentence in sentences]
    text = corpus.conll_corpus(unzipped).text
    path = tmp_path / "a.txt"
    # A byte order mark: without it, a first token that begins with U+FEFF would lose it.
    path.write_bytes(text.encode("utf-8-sig"))
    read = corpus.read(path, DataConfig(format="conll"))
    assert pairs(read) == sentences
    assert read.text == "\ufeff" + text
    corpus.write_predictions(read, predictions(read), path)
    assert path.read_bytes().decode("utf-8-sig").replace("\tB-X\n", "\n") == text


@PROPERTY
@given(SENTENCES, st.booleans())
def test_any_tokens_written_as_json_lines_are_read_back(tmp_path, sentences, ascii_only):
    rows = [{"tokens": [t for t, _ in s], "tags": [t for _, t in s]} for s in sentences]
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode())
    read = corpus.read(path)
    assert pairs(read) == sentences
    assert read.text == text
    corpus.write_predictions(read, predictions(read), path)
    again = corpus.read(path)
    assert pairs(again) == sentences
    written = [json.loads(s.source[0])["pred_tags"] for s in again.sentences]
    assert written == predictions(read)
