"""Language: which language a corpus is written in, by the function words that its texts hold."""

from collections import Counter
from collections.abc import Iterable

from coseek.retrieval.lexical.analyzer import words

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
"""Frequent words that no Snowball stemmer needs to touch, by the stemmer's name."""
_LEAST = 0.1
"""Share of a text's words that its language's function words hold; in running text about a third."""


def language_of(texts: Iterable[str]) -> str | None:
    """The language with the largest share of function words, as Snowball names it; `None` where no share reaches .1."""
    counts = Counter(word for text in texts for word in words(text))
    known = {name: sum(counts[word] for word in listed.split()) for name, listed in _FUNCTION_WORDS.items()}
    best = max(known, key=lambda name: known[name])
    return best if known[best] > _LEAST * counts.total() else None
