"""BM25 and its words."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import bm25s  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from tests.examples_drawn import at_most

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import IndexCard, build_index, open_index
from coseek.retrieval.lexical.analyzer import singular, units, words
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings, build_postings

VOCABULARY = ["ada", "bob", "cat", "dog", "elm", "fig"]
TEXTS = st.lists(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8), min_size=1, max_size=12)
QUERY = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=5)


def corpus_of(texts: Sequence[str]) -> Corpus:
    return Corpus(Passage(str(row), "", text) for row, text in enumerate(texts))


def ids(retriever: Bm25, query: QueryLike, k: int = 10) -> list[str]:
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


ZOO = corpus_of(["the cat sat", "a dog sat on the dog", "the cat saw the dog", "fig trees", ""])


@given(TEXTS, QUERY, st.floats(0, 3), st.floats(0, 1))
def test_scores_are_those_of_bm25s_to_the_last_bit(
    texts: list[list[str]], query: list[str], k1: float, b: float
) -> None:
    ours = Bm25.over(corpus_of([" ".join(text) for text in texts]), Bm25Settings(k1=k1, b=b))
    theirs = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    theirs.index(texts, show_progress=False)
    assert np.array_equal(ours.scores(query), theirs.get_scores(query))


@settings(max_examples=at_most(50))
@given(TEXTS, st.lists(QUERY, min_size=1, max_size=4))
def test_a_query_finds_the_same_alone_and_in_a_batch(texts: list[list[str]], queries: list[list[str]]) -> None:
    retriever = Bm25.over(corpus_of([" ".join(text) for text in texts]))
    lines = [" ".join(query) for query in queries]
    assert retriever.search(lines, 3) == [retriever.search([line], 3)[0] for line in lines]


@given(st.lists(QUERY, min_size=1, max_size=60), st.lists(st.integers(0, 4), max_size=8), st.integers(1, 30))
def test_looking_at_few_passages_finds_what_looking_at_all_finds(
    texts: list[list[str]], query: list[int], k: int
) -> None:
    postings, vocabulary = build_postings(corpus_of([" ".join(text) for text in texts]), Bm25Settings())
    words = [word for word in query if word < len(vocabulary)]
    few_rows, few_scores = postings.best(words, k, few_rows=0)
    rows, scores = postings.best(words, k)
    assert np.array_equal(few_rows, rows) and np.array_equal(few_scores, scores)


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_words_in_many_passages_and_rare_ones_are_ranked_alike_either_way(k: int) -> None:
    rng = np.random.default_rng(0)
    texts = (np.minimum(rng.zipf(1.3, size=(4000, 12)), 3000)).astype(str)
    postings, vocabulary = build_postings(corpus_of([" ".join(text) for text in texts]), Bm25Settings())
    pruned: list[bool] = []
    for _ in range(40):
        words = [vocabulary[word] for word in texts[rng.integers(4000), : rng.integers(1, 12)]]
        rows, scores = postings.best(words, k)
        few_rows, few_scores = postings.best(words, k, few_rows=0)
        assert np.array_equal(few_rows, rows) and np.array_equal(few_scores, scores)
        pruned.append(len(postings._candidates(words, k)) < int(np.count_nonzero(postings.scores(words))))
    assert sum(pruned) > 20 or k == 1000


@settings(max_examples=at_most(50))
@given(TEXTS, st.integers(1, 5))
def test_an_index_made_in_small_chunks_is_the_same(texts: list[list[str]], chunk_rows: int) -> None:
    corpus = corpus_of([" ".join(text) for text in texts])
    (whole, words), (parts, same) = (
        build_postings(corpus, Bm25Settings()),
        build_postings(corpus, Bm25Settings(), chunk_rows),
    )
    assert words == same and all(
        np.array_equal(getattr(whole, name), getattr(parts, name))
        for name in ("weights_P", "rows_P", "starts_V1", "maxima_V")
    )


def test_a_title_that_counts_three_times_is_a_title_written_three_times() -> None:
    thrice = Corpus([Passage("1", "", "ada ada ada cat"), Passage("2", "", "bob bob bob ada")])
    once = Corpus([Passage("1", "Ada", "cat"), Passage("2", "Bob", "ada")])
    weighted = Bm25.over(once, Bm25Settings(title_weight=3))
    assert np.array_equal(weighted.scores(["ada", "cat"]), Bm25.over(thrice).scores(["ada", "cat"]))
    assert ids(Bm25.over(once, Bm25Settings(title_weight=0)), "ada") == ["2"]
    assert ids(Bm25.over(once, Bm25Settings(text_weight=0)), "ada") == ["1"]
    with pytest.raises(SettingError, match="both 0"):
        make_settings(Bm25Settings, {"title_weight": 0, "text_weight": 0})


def test_equal_scores_keep_corpus_order_even_at_the_cut() -> None:
    retriever = Bm25.over(corpus_of(["cat"] * 40))
    assert ids(retriever, "cat", 7) == [str(row) for row in range(7)]


@pytest.mark.parametrize("query", ["", "  ", "?!", "unheard"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert ids(Bm25.over(ZOO), query) == []


def test_stop_words_and_plurals_can_be_dropped() -> None:
    retriever = Bm25.over(ZOO, Bm25Settings(stop_words=True, stem="plural"))
    assert ids(retriever, "the on a") == []
    assert ids(retriever, "cats tree") == ["3", "0", "2"]


def test_a_stop_word_is_known_as_it_is_written_whatever_the_stemmer_would_make_of_it() -> None:
    for stem in ("plural", "english"):
        assert Bm25Settings(stop_words=True, stem=stem).tokenize("this was the cities") in (["city"], ["citi"])


def test_a_view_gives_words_to_look_up_and_none_of_its_labels() -> None:
    corpus = corpus_of(["query reasoning empty sep turn", "ada", "cat"])
    query = Query("cat", question="ada", reasoning="ada")
    for view in ("question+query", "question+history", "reasoning+query", "last-3-turns"):
        assert sorted(ids(Bm25.over(corpus, Bm25Settings(view=view)), query)) == ["1", "2"]


# --- words


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
SPELLINGS = ["Hafenmeister, 1.", "naïve café", "ประเทศไทย", "黑豹队 NFL", "हिन्दी में", "مُحَمَّد", "won-\nderful", "a\r\nb"]


@given(st.sampled_from(SPELLINGS) | st.text(), st.lists(st.tuples(st.integers(0, 99), st.sampled_from(INVISIBLE))))
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
