"""Failed searches: recognises results of a search tool that report a failure or that nothing was found.

Other programs return both in place of passages: as an object with an error, an exception's text, a status line, an
error page, or a sentence. A text counts only if it begins like a program's message, word by word up to the end of a
clause, and is as short as one. So passages about errors stay passages, and so do objects with a passage's text.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus

from coseek.core.files import Json, JsonObject
from coseek.traces.shapes import letters

_MOST_CHARS = 800
"""Maximum length of a message, except for exceptions and error pages. A passage of 100 words has about 600 characters.
"""
_ERRORS = ("error", "errors", "err", "exception", "errormessage", "errormsg", "errorcode", "errortext", "fault")
_CODES = ("status", "code", "statuscode", "errorcode", "httpstatus")
"""Fields with a status, by their letters."""
_COUNTS = frozenset(("total", "count", "found", "num_results", "total_results", "numResults", "totalResults"))
_SUCCESSES = ("success", "ok", "succeeded")
_FAILURE_CODE = re.compile("error|fail(?:ed|ure)?|timeout|exception|[45][0-9]{2}", re.I)

# --- a failed search

_RAISED = re.compile(
    r"Traceback \(most recent call last\)|(?:[a-z_]\w*+\.)*+[A-Z]\w*(?:Error|Exception|Timeout)(?:[(:]|\s*\Z)"
)
"""Opens an exception of Python, Java or JavaScript."""
_PHRASES = [status.phrase for status in HTTPStatus if status >= 400] + [
    "Service Temporarily Unavailable",
    "Gateway Time-out",
]
_ANY_PHRASE = "|".join(map(re.escape, _PHRASES))
_LONG_PHRASE = "|".join(re.escape(phrase) for phrase in _PHRASES if " " in phrase and phrase != "Not Found")
"""Phrases of HTTP that are clear without their number."""
_SUBJECT = (
    "an?|the|your|this|there|was|is|has|been|have|you|i|we|sorry|oops|got|returned|web|search|tool|api|key|request|query"
    "|network|server|connection|access|https?|service|retrieval|retriever|fetch|function|execution|call|engine|gateway"
    "|read|connect|operation|rate|limit|quota|internal|unexpected|unknown|fatal|currently|temporarily|mcp|client|code"
    "|status|response|deadline|max|retries|page|permission|upstream|endpoint|task|index|daily|search\\(\\)|ssl"
    r"|\w+_\w+|['\"`][^\s'\"`]{1,64}['\"`]"
)
"""Words before the failure in a program's message."""
_FAILURE = (
    "errors?|failed|failure|exception|timed[ -]?out|time-?out|forbidden|unauthorized|something went wrong|no response"
    r"|(?:invalid|missing|wrong) (?:\w+ )?(?:api[ _-]?key|request|query|arguments?|parameters?|input|tool(?: call)?)"
    "|(?:unknown|no such) (?:tool|function)|overloaded|temporary failure|no connection|insufficient (?:credits|balance)"
)
_FAILURE_OF = (
    "unavailable|not available|unreachable|refused|reset|aborted|cancell?ed|closed|exceeded|exhausted|reached|limited"
    "|denied|expired|busy|not responding|not loaded|required|too long|cannot be empty"
)
"""Words that mean a failure only after a subject."""
_VERBS = (
    "connect|search|fetch|reach|access|process|retrieve|load|complete|perform|execute|parse|resolve|send|contact|query"
    "|(?:get|search|read|run|call|open) (?:the|your|search|results|tool|page|url)"
)
_CLAUSE_ENDS = (
    r"(?:\W*+\Z|\s*[:.;!\]\[{>*|\n-]|,? (?:please|try|retry)\b|\s+[45]\d\d\b(?!\s\()|\s+(?:after|while|during|with|for"
    "|because|due|by|on|when|your|right now|to the"
    "|occurr?ed|has occurr?ed|executing|calling|running|performing|fetching|retrieving"
    rf"|searching|invoking|connecting|processing (?:the|your|request|query)|to (?:{_VERBS})|from (?:the )?"
    rf"(?:{_SUBJECT}))\b|\s+(?:in|from) (?:tool |function )?\S{{1,64}}:)"
)


def _compile(*spellings: str) -> re.Pattern[str]:
    return re.compile("|".join(spellings), re.I)


_FAILED = _compile(
    # "Search request timed out", "[ERROR] quota"
    rf"[<\[(]?(?:(?:{_SUBJECT})(?!\w)[\s:,!'\"]*+){{0,8}}(?:{_FAILURE}|(?<=\s)(?:{_FAILURE_OF}))\b{_CLAUSE_ENDS}",
    r"<\w+_error>",
    # "I was unable to reach the server"
    rf"(?:\w+ ){{0,2}}(?:unable to|could not|couldn't|cannot|can't) (?:{_VERBS})\b",
    # "Error code: 429 - …", "HTTP/1.1 502 Bad Gateway"
    r"(?:(?:error|https?|status|code|search|tool|server|api|request|got|returned|response|with|failed|client)\b"
    rf"[\s:=_('/\d.]*?){{1,6}}\b[45]\d\d\b(?:{_CLAUSE_ENDS}|\)|\s+(?:{_ANY_PHRASE})\b)",
    # "502 Bad Gateway", "429 Client Error", "Too Many Requests"
    rf"[45]\d\d\W{{1,3}}(?:{_ANY_PHRASE}|(?:client|server) error)\b",
    rf"(?:{_LONG_PHRASE}){_CLAUSE_ENDS}",
    # operating systems, browsers, libraries, Cloudflare, Chinese
    r"(?:connect )?E(?:CONN|TIMEDOUT|NOTFOUND|AI_AGAIN)|net::ERR_|HTTPS?ConnectionPool\(",
    r"\[Errno -?\d+\]|curl: \(\d+\)|dial tcp|name or service not known|upstream connect error|no healthy upstream",
    r"expecting value: line|'\w+' object has no attribute|list index out of range",
    r"tool \S+ (?:not found|does not exist)",
    r"\(error\)|just a moment|attention required|access to this page has been denied|captcha required",
    r"错误\s*[:：]|(?:搜索|检索|请求)(?:失败|超时|出错)",
)
"""Opens a message about a failure: a program's words, the failure, then the end of a clause."""
_DEFINES = _compile(r"[^:]{0,200}?\b(?:is|was|are|were|refers?|means) (?:an?(?! (?:\w+ )?error)|the|to|one|any)\b")
"""A sentence of an encyclopedia. A program writes a colon before one."""
_HEADING = _compile(r"<(?:title|h1)\b[^<>]*+>([^<]*+)<")
_ERROR_PAGE = _compile("error.{0,40}", ".{0,40}not found.{0,10}")

# --- a search without hits

_THINGS = (
    "results?|documents?|docs|passages?|match(?:es)?|hits?|records?|pages?|articles?|entry|entries|sources?|items?"
    "|content|context|information|info|data|snippets?|answers?"
)
_SEEKER = r"(?:i|we|it|there|none of|(?:the |your |this |my )?(?:\w+ )?(?:search|query|tool|retriever|index))\b"
_FOUND = (
    "(?:were |was |are |is |have been |could be )?(?:found|available|returned|match\\w*|retrieved|for|about|regarding)"
)
_BEFORE = (
    r"(?:(?:sorry|unfortunately)\W+(?:but )?|(?:search|query|results?|\w*error|\w*exception)\b[^\n]{0,200}?[\n.:]\s*)?"
)
"""Possible text before the sentence: "Search completed.", "Query: Ada"."""
_NOTHING = _compile(
    # "The search returned no results", "No good results were found", "Found 0 results."
    rf"{_BEFORE}(?:{_SEEKER}.{{0,200}}?\b(?:is|are|were|was|found|got|returned|yielded|produced|has|have|gave) |found "
    rf"|returned )?(?:(?:no|0|zero)(?: [\w-]+){{0,4}}? (?:{_THINGS})\b(?: (?:in|on|from) (?:\w+ ){{0,2}}\w+)?"
    rf"(?:\W*+\Z|\s*[.!;(\n]|(?<=results)[:,]|\s+{_FOUND}\b)|nothing\W*+\Z)",
    # "Your search did not match any documents"
    rf"{_BEFORE}(?:{_SEEKER}.{{0,200}}?\b)?(?:could not|couldn't|did not|didn't|cannot|can't|unable to|not able to) "
    "(?:find|match|return|locate) ",
    rf"{_BEFORE}(?:(?:page|article|document|entity|results?) )?not found\W*+\Z",
    rf"{_BEFORE}nothing (?:\w+ ){{0,2}}(?:found|matche[sd])",
    rf"{_BEFORE}(?:none|null|nil|n/?a|undefined|empty(?: (?:results?(?: set)?|list|response))?)\W*+\Z",
    rf"{_BEFORE}(?:抱歉\W*)?(?:未|没有?)能?(?:找到|搜索到|检索到|查到)",
    r"keine (?:ergebnisse|treffer)|aucun résultat|sin resultados|没有\w{0,4}结果",
    r"(?:total |number of |search )*(?:results?|hits|documents)(?: found| count)?\W*(?:0|none)?\W*\Z",
)
"""Opens a message that nothing was found."""
_TAG = re.compile(r"</?\w{1,40}/?>")
_MARKS = " \t\r\n*#_`❌⚠️🔴🚫"
"""Marks around a message."""


def is_failure(value: Json, texts: Sequence[str]) -> bool:
    """Whether a result reports a failed search. `texts` are the fields of an object with a passage's text."""
    if isinstance(value, list):
        return bool(value) and all(is_failure(item, texts) for item in value)
    if isinstance(value, dict):
        return _failed_object(value, texts)
    return isinstance(value, str) and _failed_text(value.lstrip(_MARKS)) and not is_nothing(value, ())


def is_nothing(value: Json, lists: Sequence[str]) -> bool:
    """Whether a result reports that nothing was found. `lists` are the fields of an object with the passages."""
    if isinstance(value, list):
        return all(is_nothing(item, lists) for item in value)
    if isinstance(value, dict):
        passages = [value[name] for name in lists if name in value]
        counts = [value[name] for name in value.keys() & _COUNTS]
        return (
            not any(value.values())
            or (bool(passages) and is_nothing(passages, lists))
            or (value.keys() <= _COUNTS | {"query", "status"} and bool(counts) and not any(counts))
        )
    if isinstance(value, str):
        text = _TAG.sub("", value) if len(value) <= _MOST_CHARS else value
        text = text.strip(_MARKS + "\"'.[](){}<>")
        return not text or (len(text) <= _MOST_CHARS // 2 and bool(_NOTHING.match(text)) and not _DEFINES.match(text))
    return value is None


def _failed_object(row: JsonObject, texts: Sequence[str]) -> bool:
    fields = {letters(name): value for name, value in row.items()}
    if fields.get("iserror") is True or any(fields.get(name) is False for name in _SUCCESSES):
        return True
    has_text = any(isinstance(text := row.get(name), str) and text.strip() for name in texts)
    if has_text and row.get("title"):  # a passage may have any status
        return False
    codes = (fields.get(name) for name in _CODES)
    if any(isinstance(code, str | int) and _FAILURE_CODE.fullmatch(str(code)) for code in codes):
        return True
    is_invalid = isinstance(row.get("detail"), list)  # FastAPI
    return not has_text and (is_invalid or any(item and not is_nothing(item, ()) for item in map(fields.get, _ERRORS)))


def _failed_text(text: str) -> bool:
    if text[:1] == "<" and (heading := _HEADING.search(text[:4000])):
        title = heading[1].strip()
        return bool(_ERROR_PAGE.fullmatch(title)) or _failed_text(title)
    is_message = len(text) <= _MOST_CHARS and _FAILED.match(text) and not _DEFINES.match(text)
    return bool(_RAISED.match(text) or is_message)
