"""Plain text: how the bytes of texts are decoded that say no encoding."""

import pytest

from coseek.core.text import DecodedText, decode, decoded

WESTERN = [
    "Müller, Köln",
    "Élève déjà reçu",
    "L’été dernier, nous avons mangé des crêpes à la forêt, où qu’il fût.",
    "¿Dónde está el niño? Mañana vendrá su tía con más información.",
    "A informação não está disponível; às vezes há exceções.",
    "La città è più bella di ciò che si può immaginare, perché lì c'è la libertà.",
    "De coördinator vond het idee één keer geïnteresseerd reëel.",
    "El 1º de mayo, Mª Peña compró 2 m² en el nº 5.",
    "Sjön är djup och vattnet är kallt på våren när isen smälter.",
    "Der er så mange træer på øen, at man ikke kan gå gennem skoven.",
    "Hän näki järven jäällä kävelevän miehen, mutta äiti sanoi että jää ei ole kestävää.",
    "Það er ekki hægt að ganga yfir ána því ísinn er of þunnur.",
    "Price: £5 – 10 °C, “quoted” words and a café; 50 € or ½ litre.",
]


@pytest.mark.parametrize("text", WESTERN)
def test_western_european_text_without_a_declaration_is_windows_1252(text: str) -> None:
    for body in (text, f"{text} " * 30, f"<html><body>{text}</body></html>"):
        found = decoded(body.encode("cp1252"))
        assert (found.text, found.encoding, found.is_guess) == (body, "cp1252", True)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Das kostet 5 € für Müller.", "iso8859-15"),
        ("Die Straße führt über den Fluss.", "mac-roman"),
        ("L'été dernier, nous avons mangé des crêpes à la forêt.", "cp850"),
        ("Wczoraj poszedłem do sklepu, żeby kupić chleb dla mojej córki.", "cp1250"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "cp1250"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "iso8859-2"),
        ("Az időjárás ma nagyon szép, ezért elmegyünk a folyóhoz. Öt hűtőház.", "cp1250"),
        ("Včeraj sem kupil mleko in češnje za svojo hčerko.", "cp1250"),
        ("Ieri am cumpărat pâine şi lapte pentru fiica mea.", "cp1250"),
        ("Dün mağazaya gittim ve kızım için ekmek aldım.", "cp1254"),
        ("Вчера я пошёл в магазин и купил хлеб и молоко.", "cp1251"),
        ("Χθες πήγα στο κατάστημα και αγόρασα ψωμί. Η ζωή είναι ωραία, και η κόρη μου το ξέρει.", "cp1253"),
        ("昨日、店に行って娘のためにパンと牛乳を買いました。", "shift_jis"),
    ],
)
def test_text_of_other_languages_is_not_taken_for_western_european(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding), "") == text


def test_a_few_broken_bytes_do_not_make_utf_8_another_encoding() -> None:
    body = ("Straße, Größe, Bäume " * 20).encode()
    found = decoded(body + b"\xff")
    assert found.text.count("Straße") == 20 and (found.encoding, found.lost, found.is_guess) == ("utf-8", 1, False)
    wrong = "<meta charset=utf-8>Die Straße führt über den Fluss".encode("cp1252")
    assert "Straße" in decode(wrong, "text/html; charset=utf-8")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_replacement_character_in_a_text_is_no_lost_byte(encoding: str) -> None:
    text = "The caf\ufffd opens at nine."
    assert decoded(text.encode(encoding)) == DecodedText(text, encoding)
    broken = decoded(("Straße " * 9 + "\ufffd").encode() + b"\xff")
    assert (broken.encoding, broken.lost) == ("utf-8", 1)
