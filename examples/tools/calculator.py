"""Calculator: a tool in one file. A protocol file names it: `tools: {calculator: {tool: calculator.py}}`.

The agent calls it as {"name": "calculator", "arguments": {"expression": "2 * (3 + 4)"}}.
"""

import ast
import math
import operator
from collections.abc import Callable, Sequence

from coseek.agents.tool import ParsedCall, ToolContext, ToolRequest, ToolSettings
from coseek.core.files import JsonObject

Numbers = Callable[..., float]
OPERATORS: dict[type, Numbers] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class CalculatorSettings(ToolSettings):
    max_characters: int = 200
    """Characters in one expression. The syntax tree is walked, so this also bounds the time."""


SETTINGS = CalculatorSettings


def schema(settings: CalculatorSettings) -> JsonObject:
    """Describe the tool, for agents with native tool calls."""
    expression: JsonObject = {"type": "string", "description": "numbers and + - * / % **"}
    return {
        "description": "Compute an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": expression}, "required": ["expression"]},
    }


def parse(arguments: JsonObject, settings: CalculatorSettings) -> ParsedCall:
    """Read the expression; the agent is told when it is none."""
    text = arguments.get("expression")
    if not isinstance(text, str) or not 0 < len(text) <= settings.max_characters:
        return ParsedCall(problem=f"'expression' must be a text of 1 to {settings.max_characters} characters")
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ParsedCall(problem=f"{text!r} is no arithmetic expression")
    return ParsedCall({"expression": text.strip()})


def run(requests: Sequence[ToolRequest], settings: CalculatorSettings, context: ToolContext) -> list[str]:
    """Compute a batch. What has no value is a result, too: the agent asked for it, and the tool works."""
    return [compute(str(request.arguments["expression"])) for request in requests]


def render(result: str, settings: CalculatorSettings, context: ToolContext) -> str:
    return result


def compute(expression: str) -> str:
    """The value to 12 digits, or why there is none."""
    try:
        value = value_of(ast.parse(expression, mode="eval").body)
    except (ArithmeticError, ValueError) as error:
        return f"undefined: {error}"
    return f"{value:.12g}"


def value_of(node: ast.expr) -> float:
    """Walk the tree in floating point, so that no power grows without bound. Raises `ValueError` for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.BinOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
        case ast.UnaryOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value_of(node.operand))
    raise ValueError("only numbers and + - * / % ** are known")
