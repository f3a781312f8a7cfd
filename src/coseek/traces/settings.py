"""Trace settings: which tools of a log search, and where its records hold what."""

from pydantic import Field

from coseek.core.settings import Settings


class TraceSettings(Settings):
    """How to read logs. A path names the keys on the way to a value, with dots: `output.trace`, `calls.0.name`."""

    map: str = ""
    """A YAML file with these settings; those that are typed win."""
    search_tools: list[str] = Field(default=[])
    """Names of the tools that search; by default those whose name contains `search` or `retriev`."""
    query_argument: str = ""
    """Argument of a search tool that holds its queries; by default `query`, `q`, … or the only one."""
    id: str = ""
    """Path of the question's id; by default `id`, else a digest of the question."""
    question: str = ""
    """Path of the question; by default `question`, else the first message of a user."""
    answers: str = ""
    """Path of the gold answers, a text or a list; by default `answers` or `golden_answers`."""
    gold_ids: str = ""
    """Path of the ids of the gold passages; by default `gold_ids`."""
    answer: str = ""
    """Path of the agent's final answer; by default the text of the last message."""
    fault: str = ""
    """Path of an error that ended the run; where it holds something, the run is counted and not scored."""
    messages: str = ""
    """Path of the list of messages; by default `messages`."""
    steps: str = ""
    """Path of a list of search steps, for logs that hold no messages. The next three paths begin at a step."""
    reasoning: str = "reasoning"
    """Path, in a step, of what the agent wrote in front of its query."""
    query: str = "query"
    """Path, in a step, of the query or a list of queries; a step without one is a turn without a search."""
    results: str = "results"
    """Path, in a step, of what was found: a list of passages, or text."""
