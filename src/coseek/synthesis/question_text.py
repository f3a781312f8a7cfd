"""Question text: the question of a chain, in the words of its own passages and without the names between.

    Souls at Sea was directed by a director. This director was born in which city?

A name between is called by its type, which its passage or the use of the phrase tells.
"""

from collections import Counter

from coseek.synthesis.graph import Chain, Hop, HopGraph
from coseek.synthesis.statements import Facts, Phrase

_PLACED = ("in", "at", "from", "by", "to", "of", "on", "year", "until", "since")
"""Words before a date that it is asked for behind."""
_DETERMINERS = ("a", "an", "this", "which", "whom", "what", "when")
_ORDER = ("", "other ", "third ", "fourth ")


def question_of(graph: HopGraph, chain: Chain) -> str:
    """One sentence a hop; the last one asks."""
    known = graph.names_of(chain[0].source)[0]
    met: Counter[str] = Counter()
    said: list[str] = []
    for place, hop in enumerate(chain):
        kind = graph.type_of(hop)
        if place + 1 == len(chain):
            said.append(_sentence(graph, hop, known, _asked(hop, kind)) + "?")
        else:
            new = f"{_ORDER[met[kind]]}{kind}"
            said.append(_sentence(graph, hop, known, f"{_article(new)}{new}") + ".")
            known = f"this {new}"
            met[kind] += 1
    return " ".join(one[0].upper() + one[1:] for one in said)


def single_questions(graph: HopGraph, chain: Chain) -> list[str]:
    """The question of each hop alone, with the name that it starts from."""
    return [question_of(graph, (hop,)) for hop in chain]


def _sentence(graph: HopGraph, hop: Hop, known: str, new: str) -> str:
    subject, value = (new, known) if hop.back else (known, new)
    return f"{subject}{_joint(graph.facts, hop.phrase)} {_filled(hop.phrase, value)}".strip()


def _filled(phrase: Phrase, value: str) -> str:
    before = phrase.before.removeprefix("whose ")
    if value == "where":
        before = before.rpartition(" ")[0]
    elif before.endswith(" the") and value.partition(" ")[0] in _DETERMINERS:
        before = before.removesuffix(" the")
    return " ".join(part for part in (before, value, phrase.behind) if part)


def _joint(facts: Facts, phrase: Phrase) -> str:
    """What stands between the subject and the phrase."""
    first, _, rest = phrase.before.partition(" ")
    if first == "whose":
        return "'s"
    if first == "where" or rest.partition(" ")[0] in ("which", "whom"):
        return " is one"
    style = facts.styles[phrase]
    if not style.verbal and not style.copulas:
        style = facts.openers.get(first, style)
    usual = style.copulas.most_common(1)[0][0] if style.copulas else "is"
    return "" if style.verbal > style.copulas.total() else f" {usual}"


def _article(kind: str) -> str:
    """The indefinite article before a type."""
    return "an " if kind[:1] in tuple("aeiou") and not kind.startswith(("uni", "use", "eu", "one")) else "a "


def _asked(hop: Hop, kind: str) -> str:
    """The words that ask for the target."""
    before = hop.phrase.before
    last = before.rpartition(" ")[2]
    if hop.kind != "name":
        return f"which {hop.kind}" if last in _PLACED else "when"
    if kind == "place" and last == "in" and not hop.phrase.behind:
        return "where"
    return "whom" if kind == "person or body" else f"which {kind}" if kind else "what"
