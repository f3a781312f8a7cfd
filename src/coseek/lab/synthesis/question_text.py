"""Question text: the question of a chain, in the words of its own passages and without the names between.

    Souls at Sea was directed by a director. In which city was this director born?

A name between is called by its type, which its passage or the use of the phrase tells.
"""

from collections import Counter
from collections.abc import Sequence

from coseek.lab.synthesis.clauses import ARTICLES, COPULAS, FUNCTION_WORDS
from coseek.lab.synthesis.graph import Chain, Hop, HopGraph
from coseek.lab.synthesis.statements import Facts, Phrase, Style, is_participle

_PLACED = ("in", "at", "from", "by", "to", "of", "on", "year", "until", "since")
"""Words before a date that it is asked for behind."""
_DETERMINERS = ("a", "an", "this", "which", "whom", "what", "when")
_LONGEST_PHRASE = 6
"""Words of a phrase that still reads naturally."""
_SINGULAR = ("is", "was")
_SHORT_VERB = 4
"""Letters of `dies`, `lies` and `ties`."""
_ORDER = ("", "other ", "third ", "fourth ")


def question_of(graph: HopGraph, chain: Chain) -> str:
    """One sentence a hop; the last one asks."""
    known = graph.names_of(chain[0].source)[0]
    met: Counter[str] = Counter()
    said: list[str] = []
    for place, hop in enumerate(chain):
        kind = graph.type_of(hop)
        if place + 1 == len(chain):
            asked = _asked(hop, kind)
            said.append(_fronted(graph, hop, known, asked) or f"{_sentence(graph, hop, known, asked)}?")
        else:
            new = f"{_ORDER[met[kind]]}{kind}"
            said.append(_sentence(graph, hop, known, f"{_article(new)}{new}") + ".")
            known = f"this {new}"
            met[kind] += 1
    return " ".join(one[0].upper() + one[1:] for one in said)


def reads_naturally(graph: HopGraph, chain: Chain) -> bool:
    """Whether the question of a chain is one that people would ask: every phrase follows its subject in the corpus as
    it does in the question, and the last one asks with its question word in front."""
    usual = all(_is_usual(graph.facts, hop.phrase) for hop in chain)
    last = chain[-1]
    return usual and bool(_fronted(graph, last, "it", _asked(last, graph.type_of(last))))


def single_questions(graph: HopGraph, chain: Chain) -> list[str]:
    """The question of each hop alone, with the name that it starts from."""
    return [question_of(graph, (hop,)) for hop in chain]


def _is_usual(facts: Facts, phrase: Phrase) -> bool:
    """Whether the words between subject and phrase were read in the corpus, and are neither `is one where` nor long."""
    first, style = phrase.before.partition(" ")[0], _style(facts, phrase)
    joined = bool(style.verbal or style.copulas or is_participle(first) or first in ARTICLES | {"whose"})
    return joined and not _joint(facts, phrase).endswith(" is one") and len(str(phrase).split()) <= _LONGEST_PHRASE


def _fronted(graph: HopGraph, hop: Hop, known: str, asked: str) -> str:
    """The question of a hop with its question word in front, as `In which year was Ferry made?`; empty where that takes
    another form of the verb."""
    joint, phrase = _joint(graph.facts, hop.phrase).strip(), hop.phrase
    if hop.back:
        return f"{_sentence(graph, hop, known, asked)}?"
    if joint == "'s":
        rest, _, copula = phrase.before.removeprefix("whose ").rpartition(" ")
        usual = copula in COPULAS and not phrase.behind and bool(rest)
        return f"{'who' if asked == 'whom' else asked} {copula} {known}'s {rest}?" if usual else ""
    before = phrase.before.removesuffix(" the")
    rest, _, last = before.rpartition(" ")
    if phrase.behind or " is " in f" {before} ":
        return ""
    if not joint:
        return _with_do(known, before.split(), asked)
    if joint not in _SINGULAR:
        return ""
    if asked == "where":
        return f"where {joint} {known} {rest}?" if rest else f"where {joint} {known}?"
    if asked == "when":
        return f"when {joint} {known} {before}?" if is_participle(last) else ""
    return _with_preposition(f"{joint} {known}", rest.split(), last, asked)


def _with_preposition(subject: str, cut: Sequence[str], last: str, asked: str) -> str:
    """The question where the name stands behind a preposition, `last`; `cut` are the words between."""
    low = {word for word in cut if word in FUNCTION_WORDS} - ARTICLES
    opens = bool(cut) and (is_participle(cut[0]) or cut[0] in ARTICLES or cut == ["part"])
    if not opens or low or last not in FUNCTION_WORDS or last in ("year", "as", "than"):
        return ""
    if last == "by" and not any(map(is_participle, cut)):
        return ""
    if asked == "what":
        return f"what {subject} {' '.join(cut)} {last}?"
    return f"{last} {asked} {subject} {' '.join(cut)}?"


def _with_do(known: str, cut: Sequence[str], asked: str) -> str:
    """The question of a verb in the present: `For which company does Ada work?`; empty for any other form."""
    verb, *rest = cut
    if not verb.endswith("s") or verb.endswith("ss") or verb in FUNCTION_WORDS:
        return ""
    asking = f"does {known} {_infinitive(verb)}"
    if not rest:
        return f"{asked} {asking}?"
    *middle, last = rest
    if last not in FUNCTION_WORDS or {word for word in middle if word in FUNCTION_WORDS} - ARTICLES:
        return ""
    if asked == "where":
        return f"{' '.join([asked, asking, *middle])}?"
    return f"{' '.join([asked, asking, *rest] if asked == 'what' else [last, asked, asking, *middle])}?"


def _infinitive(verb: str) -> str:
    """The infinitive of a verb in the third person: `works`, `teaches`, `goes`, `studies`, `lies`."""
    if verb.endswith("ies") and len(verb) > _SHORT_VERB:
        return f"{verb[:-3]}y"
    return verb[:-2] if verb.endswith(("ches", "shes", "sses", "xes", "zzes", "oes")) else verb[:-1]


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


def _style(facts: Facts, phrase: Phrase) -> Style:
    """How a phrase follows its subject; where that was not read, how phrases with its first word do."""
    style = facts.styles[phrase]
    if style.verbal or style.copulas:
        return style
    return facts.openers.get(phrase.before.partition(" ")[0], style)


def _joint(facts: Facts, phrase: Phrase) -> str:
    """What stands between the subject and the phrase."""
    first, _, rest = phrase.before.partition(" ")
    if first == "whose":
        return "'s"
    if first == "where" or rest.partition(" ")[0] in ("which", "whom"):
        return " is one"
    style = _style(facts, phrase)
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
