"""Text that a tokenizer does not know is counted, warned of, and refused where it is most of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from token_files import write_tokenizer
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from slipway.cli.data import data
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.corpus import open_corpus
from slipway.train.text.coverage import Coverage, CoverageCounter, judge_coverage
from slipway.train.text.token_folder import MANIFEST, read_folder
from slipway.train.text.tokenizer import FileTokenizer
from slipway.train.worker.context import outside_job

pytestmark = pytest.mark.pull

GREEK = "θάλασσα και άνεμος"  # 16 letters


def save(folder: Path, model: models.Model, normalizer: normalizers.Normalizer | None = None) -> FileTokenizer:
    """A tokenizer of whole words, or of what `model` makes of them."""
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    if normalizer:
        library.normalizer = normalizer
    library.save(str(folder / "tokenizer.json"))
    return FileTokenizer(folder / "tokenizer.json", "own")


def words(folder: Path) -> FileTokenizer:
    """Knows two words, and a token for all others."""
    return save(folder, models.WordLevel({"[UNK]": 0, "sea": 1, "wind": 2}, unk_token="[UNK]"))


def pieces(folder: Path) -> FileTokenizer:
    """BERT's kind: a word of which one piece is unknown is unknown as a whole."""
    vocab = {"[UNK]": 0, "sea": 1, "##s": 2, "a": 3}
    return save(folder, models.WordPiece(vocab, unk_token="[UNK]"))


def whole_and_letters(folder: Path) -> FileTokenizer:
    """BERT's kind with all that its words are made of."""
    vocab = ["[UNK]", "sea", "wind", *"aesinwd", *(f"##{letter}" for letter in "aesinwd")]
    return save(folder, models.WordPiece({word: place for place, word in enumerate(vocab)}, unk_token="[UNK]"))


def letters(folder: Path) -> FileTokenizer:
    """BPE without bytes and without a token for what is unknown: it leaves letters out."""
    return save(folder, models.BPE(vocab={letter: place for place, letter in enumerate("aesinwd")}, merges=[]))


def letters_and_unknown(folder: Path) -> FileTokenizer:
    """BPE without bytes, with a token for what is unknown."""
    vocab = {letter: place for place, letter in enumerate(["<unk>", *"aesinwd"])}
    return save(folder, models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True))


def unigram(folder: Path) -> FileTokenizer:
    """SentencePiece's kind, several unknown letters in one token."""
    return save(folder, models.Unigram([("<unk>", 0.0), *((letter, -1.0) for letter in "aesinwd")], unk_id=0))


def named_in_the_text(folder: Path) -> FileTokenizer:
    """The unknown token is a special one, which the text spells out."""
    library = Library(models.Unigram([("<unk>", 0.0), *((letter, -1.0) for letter in "aesinwd")], unk_id=0))
    library.add_special_tokens(["<unk>"])
    library.save(str(folder / "tokenizer.json"))
    return FileTokenizer(folder / "tokenizer.json", "own")


def in_bytes(folder: Path) -> FileTokenizer:
    """GPT-2's kind, which knows everything."""
    return FileTokenizer(write_tokenizer(folder / "tokenizer.json"), "own")


def stripped(folder: Path) -> FileTokenizer:
    """Takes accents away and small letters for large ones, which loses no letter."""
    normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    return save(
        folder, models.BPE(vocab={letter: place for place, letter in enumerate("aesinwd")}, merges=[]), normalizer
    )


COUNTED: list[tuple[Callable[[Path], FileTokenizer], str, Coverage]] = [
    (words, "sea wind", Coverage(7, 0)),
    (words, "sea mist wind", Coverage(11, 4)),
    (words, GREEK, Coverage(16, 16)),
    (words, "", Coverage(0, 0)),
    (words, " \n\t\u3000", Coverage(0, 0)),
    (pieces, "sea seas", Coverage(7, 0)),
    (pieces, "sea seat a", Coverage(8, 4)),
    (letters, "sea wind", Coverage(7, 0)),
    (letters, f"sea {GREEK}", Coverage(19, 16)),
    (letters, "sea!", Coverage(4, 1)),
    (letters_and_unknown, "seaxyz wind", Coverage(10, 3)),
    (unigram, "seaxyz wind", Coverage(10, 3)),
    (unigram, GREEK, Coverage(16, 16)),
    (named_in_the_text, "sea<unk>wind<unk>", Coverage(17, 0)),
    (in_bytes, f"sea {GREEK} \U0001f6a2\x00\u0301", Coverage(22, 0)),
    (stripped, "séa WIND", Coverage(7, 0)),
    (stripped, "séa ΘIND", Coverage(7, 1)),
]


@pytest.mark.parametrize(("make", "text", "coverage"), COUNTED)
def test_characters_without_a_token_are_counted(
    make: Callable[[Path], FileTokenizer], text: str, coverage: Coverage, tmp_path: Path
) -> None:
    tokenizer = make(tmp_path)
    for texts in ([text], ["sea", text]):
        tokens, counted = tokenizer.encode_all(texts)
        assert [one.tolist() for one in tokens] == [tokenizer.encode(text) for text in texts]
        assert counted == (coverage if texts == [text] else coverage + Coverage(3, 0))


class Passes:
    """A tokenizer of the library's that notes what it reads."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.fast: list[str] = []
        self.closely: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._library, name)

    def encode_batch_fast(self, texts: list[str], **more: bool) -> object:
        self.fast += texts
        return self._library.encode_batch_fast(texts, **more)

    def encode_batch(self, texts: list[str], **more: bool) -> object:
        self.closely += texts
        return self._library.encode_batch(texts, **more)


@pytest.mark.parametrize(
    ("make", "texts", "fast", "closely"),
    [
        # What holds an unknown letter is read once, with the positions of its tokens.
        (letters_and_unknown, ["sea", "seat", "seas", "a sea"], ["sea", "seas", "a sea"], ["seat"]),
        (whole_and_letters, ["sea wind", "wind 🚢", "a"], ["sea wind", "a"], ["wind 🚢"]),
        # A word that is too long for WordPiece shows only in the tokens.
        (whole_and_letters, ["sea", 101 * "a"], ["sea", 101 * "a"], [101 * "a"]),
        (letters, ["sea", "seat"], ["sea", "seat"], []),
        (in_bytes, ["sea", "水"], ["sea", "水"], []),
    ],
)
def test_a_text_is_read_once_and_only_closely_where_something_may_be_unknown(
    make: Callable[[Path], FileTokenizer], texts: list[str], fast: list[str], closely: list[str], tmp_path: Path
) -> None:
    make(tmp_path)
    content = (tmp_path / "tokenizer.json").read_bytes()
    passes = Passes(Library.from_buffer(content))
    CoverageCounter(passes, content).encode(texts)  # type: ignore[arg-type]
    assert (passes.fast, passes.closely) == (fast, closely)


def test_a_tokenizer_that_refuses_unknown_words_is_named(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, models.WordLevel({"sea": 0, "wind": 1}, unk_token="<none>"))
    assert tokenizer.encode_all(["sea wind"])[1] == Coverage(7, 0)
    with pytest.raises(ConfigurationError, match=r"The tokenizer own cannot read the text: .* --tokenizer; bytes"):
        tokenizer.encode_all([GREEK])


@pytest.mark.parametrize(
    ("coverage", "beginning"),
    [
        (Coverage(1000, 0), "unknown text: 0.00 % (0 of 1,000 characters"),
        (Coverage(1000, 10), "unknown text: 1.00 %"),
        (Coverage(1000, 11), "warning: the tokenizer own does not know 1.10 % of the text: 11 of 1,000 characters"),
        (Coverage(1000, 500), "warning: the tokenizer own does not know 50.00 %"),
        (Coverage(0, 0), "unknown text: 0.00 %"),
    ],
)
def test_more_than_a_hundredth_is_warned_of(coverage: Coverage, beginning: str) -> None:
    assert judge_coverage(coverage, "own").startswith(beginning)


def test_more_than_half_is_refused_unless_that_is_asked_for() -> None:
    with pytest.raises(
        ConfigurationError, match=r"own does not know 50.10 % .* or --allow-unknown to use it all the same"
    ):
        judge_coverage(Coverage(1000, 501), "own")
    assert judge_coverage(Coverage(1000, 501), "own", allowed=True).startswith("warning: ")


def prepare(*arguments: object) -> tuple[str, BaseException | None]:
    """What `slipway data prepare` prints, and how it fails."""
    result = CliRunner().invoke(data, ["prepare", *map(str, arguments)])
    return result.output, result.exception


def test_prepare_refuses_unknown_text_before_there_are_tokens_and_goes_on_where_it_is_allowed(tmp_path: Path) -> None:
    words(tmp_path)
    (tmp_path / "greek.txt").write_text(f"{GREEK}\n" * 40)
    arguments = (tmp_path / "greek.txt", "--out", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer.json")
    output, error = prepare(*arguments)
    assert isinstance(error, LaunchError)
    assert (error.code, "does not know 100.00 % of the text" in str(error)) == (CONFIGURATION, True)
    assert "tokenizer: tokenizer.json, 3 tokens" in output
    assert not (tmp_path / "out" / MANIFEST).exists()
    output, error = prepare(*arguments, "--allow-unknown")
    assert (error, "1 of 1 piece finished" in output, "warning: " in output) == (None, True, True)
    assert read_folder(tmp_path / "out").coverage == Coverage(640, 640)


def test_training_says_which_tokenizer_it_uses_and_refuses_unknown_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "greek.txt").write_text(f"{GREEK}\n" * 40)
    dataset, own = f"file:{tmp_path / 'greek.txt'}", words(tmp_path)
    with outside_job() as context:
        with pytest.raises(ConfigurationError, match=r"does not know 100.00 %"):
            open_corpus(dataset, own, context, 8, allow_unknown=False)
        assert "tokenizer: own, 3 tokens, sha256 " in capsys.readouterr().out
        open_corpus(dataset, own, context, 8, allow_unknown=True)
        assert "warning: the tokenizer own does not know 100.00 %" in capsys.readouterr().out
        open_corpus(dataset, None, context, 8, allow_unknown=False)
        assert "tokenizer: bytes, 256 tokens, token 0 ends a document\n" in capsys.readouterr().out
