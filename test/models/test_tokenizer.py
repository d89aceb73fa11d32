"""Tokenizer files: the real SentencePiece and tokenizers libraries, on small vocabularies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece

from flashrt_ros.models.errors import MissingTokenizerError, ProcessingError
from flashrt_ros.models.prompt import TextPrompt, encode
from flashrt_ros.models.tokenizer import load_tokenizer

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
JSON = GOLDEN / "openpi_pi05_e2e" / "tokenizer" / "tokenizer.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A vocabulary trained with PaliGemma's settings: own ids, bytes as fallback, no prefix."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    text = folder / "text.txt"
    text.write_text("pick up the red cube\nput the cup in the bin\nopen the door\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "paligemma_tokenizer"),
        vocab_size=300,
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder / "paligemma_tokenizer.model"


def test_sentencepiece(model):
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokenizer = load_tokenizer(model)
    text = "pick up the red cube"
    assert tokenizer.encode(text, bos=True) == library.encode(text, add_bos=True)
    assert tokenizer.encode(text, bos=True)[0] == 2
    assert tokenizer.encode("\n", bos=False) == library.encode("\n")
    tokens, mask = encode(tokenizer, TextPrompt(openpi=True).pieces("red_cube\n", ()), 16)
    ids = library.encode("red cube", add_bos=True) + library.encode("\n")
    assert tokens.tolist() == ids + [0] * (16 - len(ids))
    assert mask.tolist() == [True] * len(ids) + [False] * (16 - len(ids))


def test_a_folder_is_searched(model, tmp_path):
    shutil.copy(model, tmp_path)
    assert load_tokenizer(tmp_path).path.name == "paligemma_tokenizer.model"
    (tmp_path / "tokenizer").mkdir()
    shutil.copy(JSON, tmp_path / "tokenizer")
    assert load_tokenizer(tmp_path).path == tmp_path / "tokenizer" / "tokenizer.json"


def test_padding_and_truncation_inside_the_file_do_not_count(tmp_path):
    """LeRobot writes them into tokenizer.json; text longer than they allow stays whole."""
    settings = json.loads(JSON.read_text())
    settings["padding"] = json.loads(
        (GOLDEN / "lerobot_pi05_e2e" / "tokenizer" / "tokenizer.json").read_text()
    )["padding"]
    settings["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(settings))
    text = "a long instruction that does not fit"
    expected = load_tokenizer(JSON).encode(text, bos=True)
    assert len(expected) > 4
    assert load_tokenizer(path).encode(text, bos=True) == expected
    assert load_tokenizer(path).encode("cube", bos=False) == [270, 268]


@pytest.mark.parametrize("path", ["", "absent/tokenizer.model"])
def test_a_missing_file_says_where_to_get_it(tmp_path, path):
    with pytest.raises(MissingTokenizerError) as error:
        load_tokenizer(tmp_path / path)
    assert str(tmp_path) in str(error.value)
    assert "gs://big_vision/paligemma_tokenizer.model" in str(error.value)
    assert "google/paligemma-3b-pt-224" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.model", b"nothing", "expected a SentencePiece model"),
        ("a.json", b"{}", "expected a tokenizer.json"),
        ("a.txt", b"", "expected a .model or .json file, found '.txt'"),
    ],
)
def test_files_of_another_kind(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProcessingError, match=expected) as error:
        load_tokenizer(tmp_path / name)
    assert name in str(error.value)


def test_a_vocabulary_without_a_first_token(tmp_path):
    text = JSON.read_text().replace("<bos>", "<start>")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ProcessingError, match="expected the token <bos>, found none"):
        load_tokenizer(tmp_path)
