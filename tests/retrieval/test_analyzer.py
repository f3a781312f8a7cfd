import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import IndexCard, build_index, open_index
from coseek.retrieval.lexical.analyzer import singular, units, words
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings


def test_words_are_lower_cased_and_parted_by_everything_but_letters_and_digits() -> None:
    expected = ["kiss", "tell", "1945", "film", "a", "j", "s", "under", "score"]
    assert words("Kiss & Tell (1945 film), A.J.'s under_score") == expected


def test_chinese_is_cut_into_overlapping_pairs_and_a_lone_character_stays() -> None:
    assert words("黑豹队 在 NFL赛") == ["黑豹", "豹队", "在", "nfl", "赛"]


HINDI = "दिन दान दीन दून हिन्दी विकिपीडिया सूरज निकलता नदी गाँव किताब पानी"


@pytest.mark.parametrize("text", [HINDI, "বাংলা ভাষা", "சென்னை", "ẋ̣̇a"])
def test_a_vowel_sign_does_not_end_a_word(text: str) -> None:
    assert words(text) == [unicodedata.normalize("NFKC", word) for word in text.split()]
    assert words(f"_{text}, 1️⃣ ") == [*words(text), "1"]
    days = Bm25.over(Corpus([Passage("day", "", "दिन में"), Passage("gift", "", "दान देना")]))
    found_ids = [[hit.passage.id for hit in hits] for hits in days.search(["दिन", "दान", "दून"], 2)]
    assert found_ids == [["day"], ["gift"], []]


def test_a_turkish_capital_finds_its_small_letter() -> None:
    assert words("İstanbul, İZMİR") == words("istanbul izmir") == ["istanbul", "izmir"]
    assert words("Li\u0307\u0301g") == ["l\u00edg"]


NO_BLANKS = {
    "thai": ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "เมืองหลวง"),
    "lao": ("ວຽງຈັນເປັນນະຄອນຫຼວງຂອງປະເທດລາວ", "ນະຄອນຫຼວງ"),
    "khmer": ("ភ្នំពេញគឺជារាជធានីនៃប្រទេសកម្ពុជា", "រាជធានី"),
    "burmese": ("နေပြည်တော်သည်မြန်မာနိုင်ငံ၏မြို့တော်ဖြစ်သည်", "မြို့တော်"),
    "javanese": ("ꦏꦸꦛꦪꦺꦴꦒꦾꦏꦂꦠ", "ꦪꦺꦴꦒꦾ"),
    "chinese": ("东京是日本的首都", "首都"),
}


@pytest.mark.parametrize("script", NO_BLANKS)
def test_a_word_is_found_in_a_sentence_without_blanks_and_so_is_one_letter(script: str) -> None:
    sentence, word = NO_BLANKS[script]
    bm25 = Bm25.over(Corpus([Passage("other", "", "a harbour"), Passage("this", "", sentence)]))
    queries = [word, sentence, units(words(word)[0])[0]]
    assert [[hit.passage.id for hit in hits] for hits in bm25.search(queries, 2)] == [["this"]] * 3
    assert bm25.scores(words(queries[2]))[1] == bm25.search(queries[2:], 1)[0][0].score


def test_arabic_and_hebrew_are_found_with_and_without_vowel_points_and_stretched() -> None:
    for plain, pointed in (("محمد", "مُحَمَّد"), ("محمد", "محمـــد"), ("שלום", "שָׁלוֹם"), ("ܫܠܡܐ", "ܫܠܵܡܵܐ")):
        assert words(pointed) == words(plain) == [plain]
    assert words("أحمد") != words("احمد")


INVISIBLE = "\u200b\u200c\u200d\u200e\u2060\ufeff\u034f\ufe0f\U000e0100\u180e\u061c"
TEXTS = ["Hafenmeister, 1.", "naïve café", "ประเทศไทย", "黑豹队 NFL", "हिन्दी में", "مُحَمَّد", "won-\nderful", "a\r\nb"]


@given(st.sampled_from(TEXTS) | st.text(), st.lists(st.tuples(st.integers(0, 99), st.sampled_from(INVISIBLE))))
@example("Hafenmeister", [(5, "\u00ad"), (3, "\u00ad\u200b")])
@example("Hafen\u00ad \r\nmeister", [(8, "\u200b"), (7, "\u200b"), (6, "\u200b"), (5, "\u200b")])
def test_characters_that_nobody_sees_change_no_word(text: str, inserted: list[tuple[int, str]]) -> None:
    changed = text
    for position, signs in inserted:
        changed = changed[:position] + signs + changed[position:]
    assert words(changed) == words(text)


def test_a_word_hyphenated_at_the_end_of_a_line_is_found_whole_and_in_parts() -> None:
    assert words("won-\nderful") == words("won\u2010 \r\n  derful") == words("won\u00ad\nderful")
    assert words("won-\nderful") == ["won", "derful", "wonderful"]
    assert words("über-\nmor-\ngen") == ["über", "mor", "gen", "übermorgen"]
    assert words("Anglo-\nSaxon 1939-\n1945 a -\nb") == ["anglo", "saxon", "1939", "1945", "a", "b"]


def test_accents_are_folded_on_request_alone() -> None:
    corpus = Corpus([Passage("a", "", "Café in der Łódźer Straße"), Passage("b", "", "がか किताब ёлка")])
    plain, folded = Bm25.over(corpus), Bm25.over(corpus, Bm25Settings(fold_accents=True))
    assert plain.search(["cafe strasse lodzer"], 2) == [[]]
    for query in ("cafe", "CAFÉ", "strasse", "lodzer"):
        assert [hit.passage.id for hit in folded.search([query], 2)[0]] == ["a"]
    found_ids = [[hit.passage.id for hit in hits] for hits in folded.search(["елка", "किताब", "かか"], 2)]
    assert found_ids == [["b"], ["b"], []]
    assert plain.identity != folded.identity


def test_the_plural_ending_goes_and_nothing_else() -> None:
    plurals = ["cities", "films", "universities", "eyries", "gas", "virus", "class", "shoes", "is", "running"]
    singulars = ["city", "film", "university", "eyry", "gas", "virus", "class", "shoe", "is", "running"]
    assert [singular(word) for word in plurals] == singulars


def test_each_language_has_its_stemmer() -> None:
    assert Bm25Settings(stem="english").tokenize("Running cities 黑豹队") == ["run", "citi", "黑豹", "豹队"]
    assert Bm25Settings(stem="german").tokenize("laufende Städte") == ["laufend", "stadt"]


LANGUAGES = {
    "english": "The ferry was late and it is not known when the boats of the harbour will be back.",
    "german": "Die Fähre war spät und es ist nicht bekannt, wann die Boote des Hafens zurück sind.",
    "french": "Le bac était en retard et on ne sait pas quand les bateaux du port seront de retour.",
    "dutch": "De veerboot was te laat en het is niet bekend wanneer de boten van de haven terug zijn.",
    "norwegian": "Ferjen ble forsinket, og det er ikke kjent når båtene fra havnen kommer tilbake etter dette.",
    "danish": "Færgen var forsinket, og det er ikke kendt, hvornår bådene fra havnen er tilbage efter ham.",
    "russian": "Паром опоздал, и не известно, когда лодки из гавани вернутся на место и что это было.",
}


@pytest.mark.medium
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_corpus_is_stemmed_in_its_own_language(language: str, tmp_path: Path) -> None:
    corpus = Corpus([Passage("a", "", LANGUAGES[language])])
    build_index(corpus, "bm25", tmp_path / "index", {"stem": "auto"})
    assert IndexCard.read(tmp_path / "index").settings["stem"] == language
    opened = open_index(tmp_path / "index", corpus)
    assert opened.search([LANGUAGES[language]], 1)[0][0].passage.id == "a"


@pytest.mark.parametrize("text", ["", "1945 1946", "黑豹队 在 NFL赛", "def words ( text , stem ) : return found"])
def test_a_text_in_no_known_language_is_not_stemmed(text: str) -> None:
    assert Bm25.over(Corpus([Passage("a", "", text)]), Bm25Settings(stem="auto")).settings.stem == "none"


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_plain_text_is_cut_as_any_other(text: str) -> None:
    assert words(text) == words(f"{text} é")[:-1]


@given(st.text(), st.text())
@example("A-", "¹")
@example("A\u00ad", "b")
@example("㐀", "0⼀")  # a radical that is CJK only once compatibility forms are unified
def test_cutting_two_texts_is_cutting_each(text: str, other: str) -> None:
    """A blank line between, since a hyphen at the end of a line continues a word on the next."""
    assert words(f"{text}\n\n{other}") == words(text) + words(other)


def test_a_misspelt_stemmer_fails_when_settings_are_made() -> None:
    with pytest.raises(SettingError, match="no stemmer named 'englsh'; did you mean 'english'"):
        make_settings(Bm25Settings, {"stem": "englsh"})
