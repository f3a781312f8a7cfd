"""Analyzer: splits queries and passages into words for lexical search."""

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, TypeAlias, cast

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from coseek.core.errors import MissingExtra, UnknownName
from coseek.core.text import CJK, SOFT_HYPHEN, ZERO_WIDTH

# Marks: characters that readers see as a part of a letter or word.

_BLOCKS = (
    (0x300, 0x2E80),
    (0xA640, 0xAC00),
    (0xFB00, 0xFE00),
    (0xFE20, 0x12000),
    (0x16A00, 0x17000),
    (0x1BC00, 0x1F000),
)
"""Blocks with marks, except those of Han and kana, whose texts have no words, and variation selectors, which follow
characters that are not letters."""


@cache
def marks() -> frozenset[str]:
    """All marks. Python's `\\w` matches none of them, and each ends a run of letters."""
    characters = map(chr, chain.from_iterable(range(*block) for block in _BLOCKS))
    return frozenset(character for character in characters if unicodedata.category(character) in ("Mn", "Mc"))


def undotted(text: str) -> str:
    """A lower-case text without the second dot above an i, which `"İ".lower()` leaves."""
    return unicodedata.normalize("NFC", text.replace("i\u0307", "i")) if "\u0307" in text else text


ANALYZER = 2
"""Version of the tokenisation. Version 1 broke words at invisible characters, and not between Thai words."""
# Han, kana and Hangul have no reliable spaces; overlapping character pairs replace words.
_CJK = CJK + r"\U00020000-\U0003134f"
_SPACELESS_BLOCKS = (
    (0xE00, 0xF00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x1950, 0x19E0), (0x1A20, 0x1AB0), (0x1B00, 0x1B80),
    (0xA980, 0xAA00), (0xAA60, 0xAAE0),
)  # fmt: skip
"""Scripts without blanks between words (Unicode's line-breaking class SA, Balinese, Javanese): Thai, Lao,
Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham, Tai Viet. Pairs of letters with their marks replace words."""
_POINTS = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7"
    "\u06e8\u06ea-\u06ed\u0730-\u074a\u08ca-\u08e1\u08e3-\u08ff]+"
)
"""Vowel points of Hebrew, Arabic and Syriac, which most texts omit, and the Arabic tatweel, which stretches a word."""
_LINE_END_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010][ \t]*\r?\n[ \t]*(?=[^\W\d_])")
_HYPHENATED = SOFT_HYPHEN
"""Replaces a hyphen at the end of a line, inside a word. Soft hyphens of the text itself are removed before."""
_SOFT_HYPHEN = re.compile(rf"{SOFT_HYPHEN}+([ \t]*\r?\n)?")

_PLAIN = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
"""Maps each ASCII character to its lower case, or to a blank. Twice as fast as a regular expression on ASCII text."""
AUTO = "auto"
_BUILT_IN = ("none", "plural", AUTO)
_LOCAL = threading.local()
"""Snowball stemmers by language, per thread: a stemmer has a buffer and is not thread-safe."""


def check_stem(name: str) -> str:
    """Validate the name of a stemmer. A Snowball language needs PyStemmer."""
    if name not in _BUILT_IN:
        try:
            _snowball(name)
        except UnknownName as error:
            raise PydanticCustomError("unknown_stemmer", "{sentence}", {"sentence": str(error)}) from None
    return name


Stem: TypeAlias = Annotated[str, AfterValidator(check_stem)]
"""`none`; `plural` removes English plural endings (`cities` → `city`, `films` → `film`); a language (`english`,
`german`, …) selects its Snowball stemmer; `auto`, in settings, that of the corpus's language."""


def words(text: str) -> list[str]:
    """Split text into lower-case words, in order, repetitions included. A word is a run of Unicode letters and digits,
    with their marks, after NFKC normalisation; accents are kept. Characters that are displayed as nothing and optional
    vowel points are removed. A run of n > 1 CJK characters, or of letters of a script without blanks, gives n − 1
    overlapping pairs. A word that is hyphenated at the end of a line gives its two parts, then the whole."""
    if not text.isascii():
        text = ZERO_WIDTH.sub("", text)
        if SOFT_HYPHEN in text:
            text = _SOFT_HYPHEN.sub(_display_soft_hyphen, text)
    if "\n" in text:
        text = _LINE_END_HYPHEN.sub(_join_hyphen, text)
    if text.isascii():
        return text.translate(_PLAIN).split()
    normalised = undotted(_POINTS.sub("", unicodedata.normalize("NFKC", text)).lower())
    runs = word_runs().findall(normalised)
    if _patterns().spaceless.search(normalised) or _HYPHENATED in normalised:
        return [word for run in runs for word in _split_run(run)]
    return runs


def has_words(text: str, *phrases: str) -> bool:
    """Whether a text has the words of one of the phrases in a row. A phrase without words is in no text."""
    padded = f" {' '.join(words(text))} "
    return any(phrase and f" {' '.join(phrase)} " in padded for phrase in map(words, phrases))


def _display_soft_hyphen(soft_hyphen: re.Match[str]) -> str:
    """A soft hyphen as it is displayed: a hyphen at the end of a line, nothing elsewhere."""
    return f"-{soft_hyphen[1]}" if soft_hyphen[1] else ""


def _join_hyphen(hyphen: re.Match[str]) -> str:
    """A character that continues the word, unless a capital begins another word (`Anglo-Saxon`)."""
    before, after = hyphen.string[hyphen.start() - 1], hyphen.string[hyphen.end()]
    return hyphen[0] if after.isupper() and not before.isupper() else _HYPHENATED


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Patterns from Unicode's tables."""

    spaceless: re.Pattern[str]
    """A character of a script without blanks."""
    pieces: re.Pattern[str]
    """Groups: a run of CJK characters, a run of another script without blanks, other text."""
    units: re.Pattern[str]
    """A CJK character, or a letter of another script without blanks with its marks."""


@cache
def _patterns() -> _Patterns:
    letters, marks = "", ""
    for character in map(chr, chain.from_iterable(range(*block) for block in _SPACELESS_BLOCKS)):
        category = unicodedata.category(character)[0]
        letters += character if category == "L" else ""
        marks += character if category == "M" else ""
    return _Patterns(
        spaceless=re.compile(f"[{_CJK}{letters}]"),
        pieces=re.compile(f"([{_CJK}]+)|([{letters}][{letters}{marks}]*)|([^{_CJK}{letters}]+)"),
        units=re.compile(f"[{_CJK}]|[{letters}][{marks}]*"),
    )


@cache
def word_runs() -> re.Pattern[str]:
    """Letters and digits, and the marks between and after them. Most words end at a character that is looked up faster
    in a range than among all marks."""
    inner_marks = "".join(sorted(marks())) + _HYPHENATED
    return re.compile(rf"[^\W_]+(?:(?=[{_HYPHENATED}\u0300-\u1fff\u20d0-\U0001efff])[{inner_marks}]+[^\W_]*)*")


def fold_accents(word: str) -> str:
    """The letters of a word without accents (`café` → `cafe`, `straße` → `strasse`). Marks that are vowel signs or
    form another letter (Devanagari, kana) are kept."""
    if word.isascii():
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare.translate(_UNACCENTED))


_ACCENTS = re.compile("[\u0300-\u036f\u0653-\u0655\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
_UNACCENTED = str.maketrans(
    {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ħ": "h", "ı": "i", "ŋ": "n"}
)
"""Latin letters that Unicode does not decompose."""


def spaced(text: str) -> str:
    """The text with blanks around each character of a script without blanks."""
    return text if text.isascii() else _patterns().units.sub(r" \g<0> ", text)


def units(word: str) -> list[str]:
    """The characters of a word of a script without blanks, with their marks; empty for other words."""
    if word.isascii() or not _patterns().spaceless.match(word):
        return []
    characters = _patterns().units.findall(word)
    return characters if sum(map(len, characters)) == len(word) else []


def stemmer(stem: str) -> Callable[[str], str]:
    """The function that stems a word."""
    if stem == "none":
        return str
    return singular if stem == "plural" else _snowball(stem)


def _snowball(language: str) -> Callable[[str], str]:
    """The Snowball stemmer of a language, for this thread."""
    stemmers = cast(dict[str, Callable[[str], str]], _LOCAL.__dict__)
    if language not in stemmers:
        try:
            import Stemmer  # type: ignore[import-not-found]
        except ModuleNotFoundError:
            raise MissingExtra("PyStemmer", f"the stemmer {language!r} of BM25", "stem") from None
        languages = Stemmer.algorithms()
        if language not in languages:
            raise UnknownName("stemmer", language, [*_BUILT_IN, *languages])
        stemmers[language] = Stemmer.Stemmer(language).stemWord
    return stemmers[language]


def singular(word: str) -> str:
    """Remove an English plural ending (Harman's S-stemmer, JASIS 1991)."""
    if word.endswith("ies") and len(word) > 4 and word[-4] not in "ea":
        return word[:-3] + "y"
    if word.endswith("es") and len(word) > 3 and word[-3] not in "aeo":
        return word[:-1]
    if word.endswith("s") and len(word) > 3 and word[-2] not in "us":
        return word[:-1]
    return word


def _split_run(run: str) -> list[str]:
    if run.isascii():
        return [run]
    if _HYPHENATED in run:
        parts = run.split(_HYPHENATED)
        return [word for part in (*parts, "".join(parts)) for word in _split_run(part)]
    if not _patterns().spaceless.search(run):
        return [run]
    tokens: list[str] = []
    for cjk, spaceless, other in _patterns().pieces.findall(run):
        if other:
            tokens.extend(word_runs().findall(other))  # a mark after a CJK character continues no word
        else:
            characters = cjk or _patterns().units.findall(spaceless)
            pairs = ["".join(characters[start : start + 2]) for start in range(len(characters) - 1)]
            tokens.extend(pairs or characters)
    return tokens


# Language: the language of a corpus, by the function words in its texts.

_FUNCTION_WORDS = {
    "danish": "og i at det en er til af på som med den for ikke der var de jeg har han et også men efter hun eller fra",
    "dutch": "de en van het een in is dat op te zijn met voor niet aan er om ook als door naar bij was maar uit werd",
    "english": "the of and to in a is that for it was on are as with his they at be this from have or by had not but",
    "finnish": "ja on ei että se oli hän mutta ovat joka kun myös niin sen tai kuin ole vain sekä mukaan jälkeen olla",
    "french": "de la le et les des en un une du est que dans qui par pour au sur il pas plus avec ce sont se aux ou ne",
    "german": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus",
    "hungarian": "a az és hogy nem egy is volt meg ez de csak már még mint vagy van azt ki el ezt lehet után szerint",
    "italian": "di e il la che in un è per una non del con si da della le dei nel sono al come gli anche alla più ha",
    "norwegian": "og i det er til som en på for med av at ikke den han var de et jeg har men ble fra seg også etter",
    "portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos como foi ao das seu ou são",
    "romanian": "de și în a la cu din pe o care nu un este că sau mai se fi pentru au sunt după dar prin într lui ca",
    "russian": "и в не на что с по как к из у за от это он его о для но же так был или при бы было которые она они",
    "spanish": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus fue este",
    "swedish": "och i att det som en på är av för med till den har de inte om ett han men var jag från vi sig så kan",
    "turkish": "ve bir bu da de için ile olarak çok daha olan ne gibi kadar sonra en ama ya ki her olduğu mi değil ise",
}
"""Frequent words, by the name of the language's Snowball stemmer."""
_MIN_SHARE = 0.1
"""Minimum share of function words among a text's words; in running text it is about a third."""


def language_of(texts: Iterable[str]) -> str | None:
    """The language with the largest share of function words, by Snowball's name; `None` if no share is above .1."""
    counts = Counter(word for text in texts for word in words(text))
    totals = {name: sum(counts[word] for word in word_list.split()) for name, word_list in _FUNCTION_WORDS.items()}
    best = max(totals, key=lambda name: totals[name])
    return best if totals[best] > _MIN_SHARE * counts.total() else None
