"""Relations: what a laptop world says about its entities, and the ways of saying it.

Every relation is functional: an entity has at most one value of it that holds today. A clause is how a passage states
the fact (`{o}` is the value), a phrase is how a question nests it (`{x}` is the subject, always last, so that chains
of any depth read from right to left), and an ask is a whole question. The first phrase is `the NOUN of {x}`.
"""

from dataclasses import dataclass

from coseek.lab.world.names import LITERALS

OCCUPATIONS = (
    "filmmaker", "actor", "writer", "singer", "merchant", "politician", "scholar", "painter", "doctor", "pilot",
)  # fmt: skip
"""What a person is called; some relations choose among one occupation alone."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation with its prompt templates."""

    noun: str
    subjects: tuple[str, ...]
    """The kinds that have it."""
    target: str
    """The kind of its value, or a literal: year, river, currency, language."""
    clauses: tuple[str, ...]
    synonyms: tuple[str, ...]
    """Phrases other than `the NOUN of {x}`."""
    asks: tuple[str, ...]
    occupation: str = ""
    """If given, only people of this occupation are values."""
    changes: bool = False
    """A former value may be told beside the present one."""
    first: str = ""
    """For years: the question which of `{a}` and `{b}` is earlier."""

    @property
    def phrases(self) -> tuple[str, ...]:
        return (f"the {self.noun} of {{x}}", *self.synonyms)

    @property
    def is_literal(self) -> bool:
        return self.target in LITERALS


def _relation(noun: str, subjects: str, target: str, clauses: str, synonyms: str, asks: str,
              occupation: str = "", changes: bool = False, first: str = "") -> Relation:  # fmt: skip
    """A relation from lists written with ` | ` between the parts."""
    return Relation(
        noun, tuple(subjects.split()), target, tuple(clauses.split(" | ")), tuple(synonyms.split(" | ")),
        tuple(asks.split(" | ")), occupation, changes, first,
    )  # fmt: skip


RELATIONS = (
    _relation("birthplace", "person", "city", "born in {o} | a native of {o} | raised as a child of {o}",
              "the home city of {x} | the city that gave birth to {x}",
              "Where was {x} born ? | In which city did the life of {x} begin ? | Which city is {x} a native of ?"),
    _relation("birth year", "person", "year", "with birth year {o} | whose life began in {o} | a child of the year {o}",
              "the year of birth of {x} | the first year in the life of {x}",
              "When was {x} born ? | In which year was {x} born ? | In which year did the life of {x} begin ?",
              first="Who was born first , {a} or {b} ?"),
    _relation("spouse", "person", "person", "married to {o} | the spouse of {o} | who shares a home with {o}",
              "the partner of {x} | the husband or wife of {x}",
              "Who is married to {x} ? | Whom did {x} marry ? | Who is the partner of {x} ?"),
    _relation("employer", "person", "company", "employed by {o} | who works for {o} | on the staff of {o}",
              "the company that pays {x} | the firm of {x}",
              "Who employs {x} ? | Which company does {x} work for ? | Which firm is the employer of {x} ?",
              changes=True),
    _relation("school", "person", "university", "educated at {o} | a graduate of {o} | who studied at {o}",
              "the university that taught {x} | the place of study of {x}",
              "Where did {x} study ? | Where was {x} educated ? | Which university is the school of {x} ?"),
    _relation("mentor", "person", "person", "a pupil of {o} | with {o} as mentor | who was trained by {o}",
              "the master of {x} | the teacher of {x}",
              "Who trained {x} ? | Who was the teacher of {x} ? | Whose pupil is {x} ?"),
    _relation("director", "film", "person", "directed by {o} | made by {o} | with {o} behind the camera",
              "the filmmaker behind {x} | the person who directed {x}",
              "Who directed {x} ? | Who made {x} ? | Which filmmaker is behind {x} ?", occupation="filmmaker"),
    _relation("star", "film", "person", "starring {o} | with {o} as the star | in which {o} plays the hero",
              "the lead actor of {x} | the hero of {x}",
              "Who stars in {x} ? | Who plays the hero of {x} ? | Which actor leads {x} ?", occupation="actor"),
    _relation("release year", "film", "year", "released in {o} | first shown in {o} | of the year {o}",
              "the year of release of {x} | the year of the first show of {x}",
              "When was {x} released ? | In which year was {x} released ? | In which year was {x} first shown ?",
              first="Which was released first , {a} or {b} ?"),
    _relation("country", "film city", "country", "of the country {o} | belonging to {o} | found in {o}",
              "the state of {x} | the nation behind {x}",
              "Which country does {x} belong to ? | Which state is {x} of ? | In which country is {x} found ?"),
    _relation("author", "book", "person", "written by {o} | by the pen of {o} | a work of {o}",
              "the writer of {x} | the person who wrote {x}",
              "Who wrote {x} ? | Who is the writer of {x} ? | Whose work is {x} ?", occupation="writer"),
    _relation("publisher", "book", "company", "published by {o} | printed by {o} | sold by {o}",
              "the company that printed {x} | the firm that published {x}",
              "Who published {x} ? | Which company printed {x} ? | Which firm sold {x} ?"),
    _relation("print year", "book", "year", "published in {o} | printed in {o} | dated {o}",
              "the year of print of {x} | the date of {x}",
              "When was {x} printed ? | In which year was {x} printed ? | What is the date of {x} ?",
              first="Which was printed first , {a} or {b} ?"),
    _relation("setting", "book", "city", "set in {o} | about life in {o} | whose story happens in {o}",
              "the scene of {x} | the city in the story of {x}",
              "Where is {x} set ? | Which city is {x} about ? | Where does the story of {x} happen ?"),
    _relation("vocalist", "band", "person", "fronted by {o} | with the voice of {o} | with {o} as vocalist",
              "the front singer of {x} | the voice of {x}",
              "Who sings for {x} ? | Who fronts {x} ? | Whose voice leads {x} ?", occupation="singer", changes=True),
    _relation("home town", "band", "city", "formed in {o} | that comes from {o} | at home in {o}",
              "the place of origin of {x} | the home of {x}",
              "Where was {x} formed ? | Where does {x} come from ? | Which city is {x} at home in ?"),
    _relation("founding year", "band company city university", "year",
              "founded in {o} | which dates from {o} | begun in {o}",
              "the year of origin of {x} | the first year of {x}",
              "When was {x} founded ? | In which year was {x} founded ? | In which year did {x} begin ?",
              first="Which was founded first , {a} or {b} ?"),
    _relation("label", "band", "company", "signed to {o} | whose records {o} sells | recording for {o}",
              "the record company of {x} | the firm behind the records of {x}",
              "Who sells the records of {x} ? | Which company does {x} record for ? | Which firm signed {x} ?",
              changes=True),
    _relation("founder", "company", "person", "founded by {o} | started by {o} | the creation of {o}",
              "the person who started {x} | the creator of {x}",
              "Who founded {x} ? | Who started {x} ? | Whose creation is {x} ?", occupation="merchant"),
    _relation("chief", "company", "person", "led by {o} | with {o} as chief | under the command of {o}",
              "the head of {x} | the person who leads {x}",
              "Who leads {x} ? | Who is the head of {x} ? | Who commands {x} ?", occupation="merchant", changes=True),
    _relation("seat", "company university", "city", "based in {o} | with its seat in {o} | whose main house is in {o}",
              "the main city of {x} | the city that hosts {x}",
              "Where is {x} based ? | Which city hosts {x} ? | Where is the main house of {x} ?", changes=True),
    _relation("mayor", "city", "person", "governed by {o} | whose mayor is {o} | with {o} in the town hall",
              "the governor of {x} | the person who governs {x}",
              "Who governs {x} ? | Who is the mayor of {x} ? | Who sits in the town hall of {x} ?",
              occupation="politician", changes=True),
    _relation("river", "city", "river", "on the river {o} | by the water of the {o} | with the {o} as river",
              "the water of {x} | the stream of {x}",
              "Which river runs by {x} ? | On which river is {x} ? | Which stream runs by {x} ?"),
    _relation("rector", "university", "person", "with {o} as rector | whose rector is {o} | headed by {o}",
              "the head scholar of {x} | the scholar who heads {x}",
              "Who heads {x} ? | Who is the rector of {x} ? | Which scholar heads {x} ?",
              occupation="scholar", changes=True),
    _relation("capital", "country", "city", "with the capital {o} | ruled from {o} | whose first city is {o}",
              "the main city of {x} | the first city of {x}",
              "What is the capital of {x} ? | From which city is {x} ruled ? | Which is the first city of {x} ?"),
    _relation("president", "country", "person", "with {o} as president | ruled by {o} | whose president is {o}",
              "the ruler of {x} | the person who rules {x}",
              "Who rules {x} ? | Who is the president of {x} ? | Who is the ruler of {x} ?",
              occupation="politician", changes=True),
    _relation("currency", "country", "currency",
              "which pays with the {o} | whose money is the {o} | with {o} as currency",
              "the money of {x} | the coin of {x}",
              "What money does {x} use ? | What do people pay with in {x} ? | What is the coin of {x} ?"),
    _relation("language", "country", "language", "where people speak {o} | with {o} as language | whose tongue is {o}",
              "the tongue of {x} | the speech of {x}",
              "What language has {x} ? | Which tongue do people speak in {x} ? | What is the speech of {x} ?"),
)  # fmt: skip

FRAMES = ("What is {x} ?", "Name {x} .", "Can you tell me {x} ?", "I am looking for {x} .")
"""Whole questions around a phrase."""

Constraint = tuple[str, str, str, str]
"""Kind, two relations, and the question that both single out one entity; the first value is the anchor."""

CONSTRAINTS: tuple[Constraint, ...] = (
    ("film", "director", "release year", "Which film directed by {a} was released in {b} ?"),
    ("film", "star", "release year", "Which film starring {a} was released in {b} ?"),
    ("film", "director", "star", "Which film directed by {a} has {b} as the star ?"),
    ("book", "author", "print year", "Which book by {a} was printed in {b} ?"),
    ("book", "author", "setting", "Which book by {a} is set in {b} ?"),
    ("band", "vocalist", "founding year", "Which band of {a} was founded in {b} ?"),
    ("company", "founder", "seat", "Which company founded by {a} is based in {b} ?"),
    ("city", "mayor", "country", "Which city of {b} is governed by {a} ?"),
)
