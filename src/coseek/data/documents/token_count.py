"""Token count: how much of a passage's size a text takes, in words or in the tokens of a model's tokenizer."""

from functools import lru_cache
from pathlib import Path

from coseek.core.errors import DataError
from coseek.data.documents.split import Count, count_words

TOKENIZER = "tokenizer.json"


def check_tokenizer(name: str) -> None:
    """Refuse a folder without a tokenizer that can be opened."""
    folder = Path(name).expanduser()
    if not (folder / TOKENIZER).is_file():
        raise DataError(f"{folder} holds no {TOKENIZER}; name the folder of an encoder or of a language model")
    try:
        counter(name)
    except Exception as error:  # the library raises plain ones
        if isinstance(error, ModuleNotFoundError):
            raise
        raise DataError(f"{folder / TOKENIZER} cannot be opened ({str(error)[:200]}); fetch it again") from None


@lru_cache(maxsize=1)
def counter(name: str | None) -> Count:
    """Counts words, or the tokens of the tokenizer in a folder, without special ones."""
    if name is None:
        return count_words
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(name).expanduser() / TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()  # some files pad every text to the encoder's length

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count
