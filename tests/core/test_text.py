"""Text: reading bytes of unknown encoding, repetition, and differences between a policy's spelling and people's."""

import pytest

from coseek.core.text import DecodedText, as_written, decode, decoded, has_loop, separated, without_repetition
from coseek.lab.world.world import WorldSettings, make_world

WESTERN = [
    "Müller, Köln",
    "L’été dernier, nous avons mangé des crêpes à la forêt, où qu’il fût.",
    "¿Dónde está el niño? Mañana vendrá su tía con más información.",
    "El 1º de mayo, Mª Peña compró 2 m² en el nº 5.",
    "Der er så mange træer på øen, at man ikke kan gå gennem skoven.",
    "Hän näki järven jäällä kävelevän miehen, mutta äiti sanoi että jää ei ole kestävää.",
    "Það er ekki hægt að ganga yfir ána því ísinn er of þunnur.",
    "Price: £5 – 10 °C, “quoted” words and a café; 50 € or ½ litre.",
]


@pytest.mark.parametrize("text", WESTERN)
def test_western_european_text_without_a_declaration_is_windows_1252(text: str) -> None:
    for body in (text, f"{text} " * 30, f"<html><body>{text}</body></html>"):
        result = decoded(body.encode("cp1252"))
        assert (result.text, result.encoding, result.is_guess) == (body, "cp1252", True)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Das kostet 5 € für Müller.", "iso8859-15"),
        ("Die Straße führt über den Fluss.", "mac-roman"),
        ("L'été dernier, nous avons mangé des crêpes à la forêt.", "cp850"),
        ("Wczoraj poszedłem do sklepu, żeby kupić chleb dla mojej córki.", "cp1250"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "cp1250"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "iso8859-2"),
        ("Dün mağazaya gittim ve kızım için ekmek aldım.", "cp1254"),
        ("Вчера я пошёл в магазин и купил хлеб и молоко.", "cp1251"),
        ("Χθες πήγα στο κατάστημα και αγόρασα ψωμί. Η ζωή είναι ωραία, και η κόρη μου το ξέρει.", "cp1253"),
        ("昨日、店に行って娘のためにパンと牛乳を買いました。", "shift_jis"),
        ("昨日、店に行って娘のためにパンと牛乳を買いました。", "iso2022_jp"),
        ("昨日、店に行って娘のためにパンと牛乳を買いました。", "euc_jp"),
        ("어제 가게에 가서 딸을 위해 빵과 우유를 샀다.", "euc_kr"),
        ("昨天我去商店给女儿买了面包和牛奶。", "gb18030"),
        ("昨天我去商店給女兒買了麵包和牛奶。", "big5"),
        ("Вчера я пошёл в магазин.", "koi8-r"),
        ("Вчера я пошёл в магазин.", "cp866"),
        ("Vakar es devos uz veikalu un nopirku maizi savai meitai.", "cp1257"),
        ("A könyv az asztalon fekszik, és senki sem olvassa.", "cp1250"),
        ("אתמול הלכתי לחנות וקניתי לחם.", "cp1255"),
        ("ذهبت أمس إلى المتجر واشتريت خبزا.", "cp1256"),
        ("เมื่อวานฉันไปที่ร้านและซื้อขนมปัง", "cp874"),
        ("The café in Zürich opens at nine, and nobody who works there has ever come later than eight.", "cp1252"),
    ],
)
def test_text_of_other_languages_is_not_taken_for_western_european(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding), "") == text


def test_a_few_broken_bytes_do_not_make_utf_8_another_encoding() -> None:
    body = ("Straße, Größe, Bäume " * 20).encode()
    result = decoded(body + b"\xff")
    assert result.text.count("Straße") == 20 and (result.encoding, result.lost, result.is_guess) == ("utf-8", 1, False)
    wrong = "<meta charset=utf-8>Die Straße führt über den Fluss".encode("cp1252")
    assert "Straße" in decode(wrong, "text/html; charset=utf-8")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_replacement_character_in_a_text_is_no_lost_byte(encoding: str) -> None:
    text = "The caf\ufffd opens at nine."
    assert decoded(text.encode(encoding)) == DecodedText(text, encoding)
    broken = decoded(("Straße " * 9 + "\ufffd").encode() + b"\xff")
    assert (broken.encoding, broken.lost) == ("utf-8", 1)


# --- loops


LOOP = "<think> Julenta , mayor" + " painter Seminary" * 48


def test_a_loop_is_shortened_and_what_follows_it_is_not() -> None:
    assert len(without_repetition(LOOP)) < 100 and has_loop(LOOP)
    rest = "</think><search> x</search>"
    assert without_repetition(LOOP + rest).endswith("…painter Seminary" + rest)


def test_lists_tables_and_emphasis_are_no_loops() -> None:
    for text in ("no, no, no, no", "| 0 | 0 | 0 |\n" * 5, "the same , the same , the same", "", " . " * 50):
        assert without_repetition(text) == text


# --- spelling


LEARNT = "Who heads Ulmstad Seminary ?"


def is_token(word: str) -> bool:
    return word in ("Ulmstad", "Seminary") or word not in ("ulmstad", "seminary")


@pytest.mark.parametrize(
    "typed",
    [
        "Who heads Ulmstad Seminary?",
        "who heads Ulmstad Seminary",
        "  Who  heads\tUlmstad Seminary ??  ",
        "who heads ulmstad seminary",
        "WHO HEADS ULMSTAD SEMINARY?",
        "Who heads “Ulmstad Seminary”?!",
        "Who heads 'Ulmstad Seminary' ?",
        "Who heads\u00a0Ulm\u00adstad\u200b Seminary？",
        f" {LEARNT}",
    ],
)
def test_what_people_type_is_spelled_as_it_was_learnt(typed: str) -> None:
    assert separated(typed, is_token) == LEARNT


def test_marks_inside_a_question_are_split_off_and_those_inside_words_are_not() -> None:
    typed = "Which was first, Golden Gate (film) or Anne-Marie’s 3.5?"
    assert separated(typed, is_token) == "Which was first , Golden Gate ( film ) or Anne-Marie 's 3.5 ?"
    assert separated("name the mayor of Julenta", is_token) == "Name the mayor of Julenta ."
    assert [separated(text, is_token) for text in ("", " ", "?")] == ["", "", "?"]


@pytest.mark.medium
@pytest.mark.parametrize("lexicon", ["laptop", "drawn", "held-out"])
def test_a_question_of_a_world_stays_byte_for_byte_and_comes_back_from_what_people_write(lexicon: str) -> None:
    world = make_world(WorldSettings(seed=7, lexicon=lexicon, size="compact"))  # type: ignore[arg-type]
    texts = [question.question for questions in world.questions.values() for question in questions]
    assert [f" {separated(text, lambda _: False)}" for text in texts] == texts
    assert [f" {separated(as_written(text), lambda _: False)}" for text in texts] == texts
    assert not any(f" {mark}" in as_written(text) for text in texts for mark in "?,.):")


@pytest.mark.parametrize("text", ["Qui a écrit cela ?", "a , b is C, too.", "x(1) . y", "  indented: code", "# Title"])
def test_text_that_no_world_wrote_is_shown_as_it_is(text: str) -> None:
    assert as_written(text) == text


def test_text_of_a_world_is_shown_as_people_write() -> None:
    passage = " Amber Island ( company ) is , also called X , led by Elor Lindby ."
    assert as_written(passage) == "Amber Island (company) is, also called X, led by Elor Lindby."
    turn = "<think> Amber Island # 1 , chief Elor Lindby . Now : who ?</think><search> Elor Lindby</search>"
    assert as_written(turn).startswith("<think> Amber Island #1, chief Elor Lindby. Now: who?</think>")
    assert as_written("<think> Next : X .</think>") == "<think> Next: X.</think>"
    assert as_written("<think> Next : the publisher</think><search> X</search>").startswith("<think> Next: the")
