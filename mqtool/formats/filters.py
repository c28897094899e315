"""Filters of a subscription: tag expressions and SQL92 text <-> predicates.

SQL92 here is the dialect of RocketMQ 5.3.3, with its rough edges: a filter means to us what it means to the
Java broker. Every property is text; a literal decides how the text is read, and text that cannot be
read so makes the message not match, whatever the rest of the filter says.
"""

import enum
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.errors import FilterError
from mqtool.formats.hashing import java_hash

if TYPE_CHECKING:
    from lark import Lark, Token

MAX_LENGTH = 65_536  # characters of an SQL92 filter
MAX_DEPTH = 100  # conditions within conditions; Java has no bound but its stack
_MAX_PENDING = 10 * MAX_DEPTH  # symbols the parser may hold: open parentheses, signs, operators

# What Java's String.trim() takes away.
_JAVA_BLANKS = "".join(map(chr, range(0x21)))


class TagFilter(NamedTuple):
    """The tags that a subscription asks for, and their Java hash codes; ``*`` asks for every message."""

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    def matches_code(self, tags_code: int) -> bool:
        """Return whether a queue entry may match; two tags may share a code, so the tag decides."""
        return self.expression == "*" or _low_int(tags_code) in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message with this tag matches."""
        return self.expression == "*" or tag in self.tags


def parse_tags(expression: str) -> TagFilter:
    """Return the filter for ``TagA || TagB``; ``*`` or nothing asks for everything.

    >>> sorted(parse_tags("TagA || TagB").codes)
    [2598919, 2598920]

    Raises:
        FilterError: there is nothing but bars.
    """
    if expression in ("", "*"):
        return TagFilter("*", frozenset(), frozenset())
    pieces = expression.split("||")
    if not any(pieces):
        raise FilterError("there is no tag", position=1)
    # A star among other tags is a tag of that name, as it is in Java.
    tags = frozenset(filter(None, (piece.strip(_JAVA_BLANKS) for piece in pieces)))
    return TagFilter(expression, tags, frozenset(map(java_hash, tags)))


def _low_int(number: int) -> int:
    return (number + 0x80000000 & 0xFFFFFFFF) - 0x80000000


Properties = Mapping[str, str]
# True, False or None, the three values of SQL; or raises _UnreadableError.
Condition = Callable[[Properties], bool | None]


@dataclass(frozen=True, slots=True)
class Sql92Filter:
    """A compiled SQL92 filter: call it with the properties of a message.

    ``ignored`` is the rest of the expression that RocketMQ silently leaves unread: it stops at the first word
    that cannot continue a condition, so ``color LIKE 'r%'`` is just ``color``, which matches nothing.
    """

    expression: str
    ignored: str
    _condition: Condition

    def __call__(self, properties: Properties) -> bool:
        """Return whether a message with these properties matches."""
        try:
            return self._condition(properties) is True
        except _UncomparableTextError:
            return False


def compile_sql92(expression: str) -> Sql92Filter:
    """Compile an SQL92 filter, once a subscription.

    >>> is_wanted = compile_sql92("price BETWEEN 5 AND 10 AND color IN ('red', 'blue')")
    >>> is_wanted({"price": "7", "color": "red"}), is_wanted({"price": "7.5", "color": "red"})
    (True, False)

    Raises:
        FilterError: a broker would refuse it, or it is longer or deeper than this module reads.
    """
    from lark import Token
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if len(expression) > MAX_LENGTH:
        raise FilterError(f"it is longer than {MAX_LENGTH:,} characters", position=MAX_LENGTH + 1)
    parser = _parser().parse_interactive(expression)
    unread = end = Token("$END", "", start_pos=len(expression))
    try:
        for unread in parser.iter_parse():
            if len(parser.parser_state.value_stack) > _MAX_PENDING:
                raise _too_deep(_position(unread))
        unread = end
    except UnexpectedCharacters as error:
        raise FilterError(f"no token starts with {error.char!r}", 1 + (error.pos_in_stream or 0)) from None
    except UnexpectedToken:
        pass  # a whole condition may be before it
    try:
        condition = parser.feed_token(end)
    except UnexpectedToken:
        reason = "it ends too early" if unread is end else f"unexpected {unread[:20]!r}"
        raise FilterError(reason, _position(unread)) from None
    return Sql92Filter(expression, expression[_position(unread) - 1 :], condition)


# Words, numbers and comments as RocketMQ cuts them: no zero before a digit, a line comment needs its line end.
_GRAMMAR = r"""
start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: equality (_AND equality)*
?equality: comparison
    | equality EQUALITY comparison -> equal
    | equality _IS [NOT] NULL -> is_null
?comparison: unary
    | comparison ORDER unary -> order
    | comparison [NOT] _BETWEEN unary _AND unary -> between
    | comparison [NOT] _IN "(" STRING ("," STRING)* ")" -> one_of
    | comparison [NOT] _text_test STRING -> text_test
?unary: primary
    | "+" unary
    | MINUS unary -> negative
    | NOT unary -> negation
?primary: "(" disjunction ")"
    | STRING -> text
    | INTEGER -> integer
    | FLOAT -> double
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | NAME -> property
_text_test: CONTAINS | STARTSWITH | ENDSWITH

NOT: "NOT"i
_AND: "AND"i
_OR: "OR"i
_BETWEEN: "BETWEEN"i
_IN: "IN"i
TRUE: "TRUE"i
FALSE: "FALSE"i
NULL: "NULL"i
_IS: "IS"i
CONTAINS: "CONTAINS"i
STARTSWITH: "STARTSWITH"i
ENDSWITH: "ENDSWITH"i
NAME: /[a-z_$][a-z0-9_$]*/i
INTEGER: /0|[1-9][0-9]*l?/i
FLOAT.2: /([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
STRING: /'(''|[^'])*'/
EQUALITY.2: "=" | "<>"
ORDER: /[<>]=?/
MINUS: "-"
BLANKS: /[ \t\n\r\f]+/
LINE_COMMENT.2: /--[^\n\r]*+(\r\n|\n|\r)/
BLOCK_COMMENT.2: /\/\*[\s\S]*?\*\//
%ignore BLANKS
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""


@functools.cache
def _parser() -> "Lark":
    # Loading lark takes longer than most commands, and few of them get an SQL92 filter.
    from lark import Lark

    # ASCII: the Kelvin sign is no K to RocketMQ. With a transformer the parser builds closures, never a tree,
    # so a deep expression needs no deep stack.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", g_regex_flags=re.ASCII, transformer=_Compiler())


class _UncomparableTextError(Exception):
    """Text that is not what the filter compares it with."""


class _OperandKind(enum.IntEnum):
    """What an operand evaluates to; two kinds meet in the higher one."""

    NOTHING = 0  # a minus before anything but a number: always null
    TEXT = 1
    INT = 2
    LONG = 3
    DOUBLE = 4
    BOOLEAN = 5


_NUMBERS = (_OperandKind.INT, _OperandKind.LONG, _OperandKind.DOUBLE)


class _Form(enum.Enum):
    PROPERTY = enum.auto()
    LITERAL = enum.auto()
    EXPRESSION = enum.auto()


class _Operand(NamedTuple):
    kind: _OperandKind
    form: _Form
    position: int
    evaluate: Callable[[Properties], Any]
    depth: int = 0
    value: Any = None  # of a number, negated or not, and of other literals

    @property
    def is_literal(self) -> bool:
        return self.form is _Form.LITERAL


class _Compiler:
    """The rules of the grammar, bottom up: operands in, an operand out."""

    def start(self, children: list[_Operand]) -> Condition:
        return _condition(children[0])

    def disjunction(self, children: list[_Operand]) -> _Operand:
        return _boolean(children[0].position, children, _any_of([_condition(child) for child in children]))

    def conjunction(self, children: list[_Operand]) -> _Operand:
        return _boolean(children[0].position, children, _all_of([_condition(child) for child in children]))

    def equal(self, children: "tuple[_Operand, Token, _Operand]") -> _Operand:
        left, symbol, right = children
        for side in (left, right):
            if side.is_literal and side.value is None:
                raise FilterError("NULL can only be compared with IS NULL", side.position)
        both_literal = left.is_literal and right.is_literal
        if both_literal and left.kind is _OperandKind.BOOLEAN and right.kind is not _OperandKind.BOOLEAN:
            raise FilterError("TRUE and FALSE are neither text nor numbers", left.position)
        equal = _equality(left, right)
        return _boolean(left.position, (left, right), equal if symbol == "=" else _not(equal))

    def is_null(self, children: "tuple[_Operand, Token | None, Token]") -> _Operand:
        operand, negated, _ = children
        evaluate = operand.evaluate
        if negated:
            return _boolean(operand.position, (operand,), lambda properties: evaluate(properties) is not None)
        return _boolean(operand.position, (operand,), lambda properties: evaluate(properties) is None)

    def order(self, children: "tuple[_Operand, Token, _Operand]") -> _Operand:
        left, symbol, right = children
        return _boolean(left.position, (left, right), _ordering(left, right, _ORDERS[symbol]))

    def between(self, children: "tuple[_Operand, Token | None, _Operand, _Operand]") -> _Operand:
        operand, negated, low, high = children
        if negated:
            outside = [_ordering(operand, low, operator.lt), _ordering(operand, high, operator.gt)]
            return _boolean(operand.position, (operand, low, high), _any_of(outside))
        inside = [_ordering(operand, low, operator.ge), _ordering(operand, high, operator.le)]
        if low.is_literal and high.is_literal and _ordering(low, high, operator.gt)({}):
            raise FilterError("the lower bound of BETWEEN must come first", low.position)
        return _boolean(operand.position, (operand, low, high), _all_of(inside))

    def one_of(self, children: "list[Any]") -> _Operand:
        operand, negated, *strings = children
        if operand.form is not _Form.PROPERTY:
            raise FilterError("IN needs the name of a property", operand.position)
        get, wanted, hit = operand.evaluate, frozenset(map(_unquote, strings)), not negated

        def evaluate(properties: Properties) -> bool | None:
            text = get(properties)
            return None if text is None else (text in wanted) is hit

        return _boolean(operand.position, (operand,), evaluate)

    def text_test(self, children: "tuple[_Operand, Token | None, Token, Token]") -> _Operand:
        operand, negated, symbol, string = children
        get, test, part, hit = operand.evaluate, _TEXT_TESTS[symbol.upper()], _unquote(string), not negated

        def evaluate(properties: Properties) -> bool:
            text = get(properties)
            return isinstance(text, str) and test(text, part) is hit

        # Nothing contains the empty text, nor does anything not contain it.
        return _boolean(operand.position, (operand,), evaluate if part else _constant(False))

    def negative(self, children: "tuple[Token, _Operand]") -> _Operand:
        sign, operand = children
        position = _position(sign)
        if operand.kind in _NUMBERS:
            return _number(operand.kind, _Form.EXPRESSION, position, -operand.value)
        evaluate = operand.evaluate

        def nothing(properties: Properties) -> None:
            evaluate(properties)  # it may be unreadable

        return _Operand(_OperandKind.NOTHING, _Form.EXPRESSION, position, nothing, _depth_above([operand], position))

    def negation(self, children: "tuple[Token, _Operand]") -> _Operand:
        word, operand = children
        return _boolean(_position(word), (operand,), _not(_condition(operand)))

    def text(self, children: "list[Token]") -> _Operand:
        return _literal(_OperandKind.TEXT, _position(children[0]), _unquote(children[0]))

    def integer(self, children: "list[Token]") -> _Operand:
        # Twenty digits are too large already, and int() refuses thousands.
        position, value = _position(children[0]), int(children[0].rstrip("lL")[:20])
        if value > _LONG_MAX:
            raise FilterError("the number does not fit in 64 bits", position)
        # RocketMQ takes no heed of the L behind a small number.
        return _number(_OperandKind.LONG if value > _INT_MAX else _OperandKind.INT, _Form.LITERAL, position, value)

    def double(self, children: "list[Token]") -> _Operand:
        position, value = _position(children[0]), float(children[0])
        if not 0 < value < math.inf:
            raise FilterError(
                "a number with a decimal point or an exponent must be greater than zero and fit in a double", position
            )
        return _number(_OperandKind.DOUBLE, _Form.LITERAL, position, value)

    def true(self, children: "list[Token]") -> _Operand:
        return _literal(_OperandKind.BOOLEAN, _position(children[0]), True)

    def false(self, children: "list[Token]") -> _Operand:
        return _literal(_OperandKind.BOOLEAN, _position(children[0]), False)

    def null(self, children: "list[Token]") -> _Operand:
        return _literal(_OperandKind.BOOLEAN, _position(children[0]), None)

    def property(self, children: "list[Token]") -> _Operand:
        name = str(children[0])
        return _Operand(_OperandKind.TEXT, _Form.PROPERTY, _position(children[0]), operator.methodcaller("get", name))


def _constant(value: Any) -> Callable[[Properties], Any]:
    return lambda _properties: value


def _literal(kind: _OperandKind, position: int, value: str | bool | None) -> _Operand:
    return _Operand(kind, _Form.LITERAL, position, _constant(value), value=value)


def _number(kind: _OperandKind, form: _Form, position: int, value: float) -> _Operand:
    comparable = _double_key(value) if kind is _OperandKind.DOUBLE else value
    return _Operand(kind, form, position, _constant(comparable), value=value)


def _boolean(position: int, operands: Sequence[_Operand], evaluate: Condition) -> _Operand:
    return _Operand(_OperandKind.BOOLEAN, _Form.EXPRESSION, position, evaluate, _depth_above(operands, position))


def _depth_above(operands: Sequence[_Operand], position: int) -> int:
    depth = 1 + max(operand.depth for operand in operands)
    if depth > MAX_DEPTH:
        raise _too_deep(position)
    return depth


def _too_deep(position: int) -> FilterError:
    return FilterError(f"it is nested deeper than {MAX_DEPTH} conditions or {_MAX_PENDING:,} pending symbols", position)


def _position(token: "Token") -> int:
    return 1 + (token.start_pos or 0)


def _unquote(string: "Token") -> str:
    return string[1:-1].replace("''", "'")


def _condition(operand: _Operand) -> Condition:
    evaluate = operand.evaluate
    if operand.kind is _OperandKind.BOOLEAN:
        return evaluate
    if operand.form is not _Form.PROPERTY:
        raise FilterError("a condition is expected here", operand.position)
    # A property alone is false whatever its text, "true" included.
    return lambda properties: None if evaluate(properties) is None else False


def _not(condition: Condition) -> Condition:
    def evaluate(properties: Properties) -> bool | None:
        answer = condition(properties)
        return None if answer is None else not answer

    return evaluate


def _any_of(conditions: Sequence[Condition]) -> Condition:
    def evaluate(properties: Properties) -> bool | None:
        answer: bool | None = False
        for condition in conditions:
            result = condition(properties)
            if result:
                return True
            if result is None:
                answer = None
        return answer

    return evaluate


def _all_of(conditions: Sequence[Condition]) -> Condition:
    def evaluate(properties: Properties) -> bool | None:
        answer: bool | None = True
        for condition in conditions:
            result = condition(properties)
            if result is None:
                answer = None
            elif not result:
                return False
        return answer

    return evaluate


def _equality(left: _Operand, right: _Operand) -> Condition:
    kind = max(left.kind, right.kind)
    get_left, get_right = _reader(left, kind), _reader(right, kind)
    equal = operator.eq
    if left.kind is _OperandKind.BOOLEAN and right.kind is _OperandKind.TEXT:
        equal = _refuse
    elif kind is _OperandKind.BOOLEAN and (left.kind in _NUMBERS or right.kind in _NUMBERS):
        equal = _never

    def evaluate(properties: Properties) -> bool | None:
        left_value, right_value = get_left(properties), get_right(properties)
        if left_value is None:
            return True if right_value is None else None
        # Not symmetric: a null on the right is merely unequal.
        return False if right_value is None else equal(left_value, right_value)

    return evaluate


def _ordering(left: _Operand, right: _Operand, test: Callable[[Any, Any], bool]) -> Condition:
    for side in (left, right):
        if side.kind is _OperandKind.BOOLEAN or (side.kind is _OperandKind.TEXT and side.is_literal):
            raise FilterError("only numbers and properties can be ordered", side.position)
    kind = max(left.kind, right.kind)
    get_left, get_right = _reader(left, kind), _reader(right, kind)
    ordered = test if kind in _NUMBERS else lambda first, second: test(_read_double(first), _read_double(second))

    def evaluate(properties: Properties) -> bool | None:
        left_value = get_left(properties)
        if left_value is None:
            return None
        right_value = get_right(properties)
        return None if right_value is None else ordered(left_value, right_value)

    return evaluate


def _refuse(_left: object, _right: object) -> bool:
    raise _UncomparableTextError


def _never(_one: object, _other: object) -> bool:
    return False


def _reader(operand: _Operand, kind: _OperandKind) -> Callable[[Properties], Any]:
    """Return what evaluates ``operand`` and turns it into ``kind``."""
    evaluate, turn = operand.evaluate, _TURN.get((operand.kind, kind))
    if turn is None:
        return evaluate

    def read(properties: Properties) -> Any:
        value = evaluate(properties)
        return None if value is None else turn(value)

    return read


# A number, then its last nineteen digits: more do not fit anyway. Java takes the digits of any script.
_INTEGER_TEXT = re.compile(r"([+-]?)0*(\d{1,19})")
_DOUBLE_TEXT = re.compile(
    r"""[\x00-\x20]*(?P<number>[+-]?(?:
        NaN | Infinity
        | (?:\d+(?:\.\d*)? | \.\d+) (?:[eE][+-]?\d+)?
        | (?P<hex>0[xX] (?:[0-9a-fA-F]+\.? | [0-9a-fA-F]*\.[0-9a-fA-F]+) [pP][+-]?\d+)
    ))(?:(?<=[\d.])[fFdD])?[\x00-\x20]*""",
    re.ASCII | re.VERBOSE,
)
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


def _read_integer(text: str, most: int) -> int:
    if len(text) < 10 and text.isascii() and text.isdigit():
        return int(text)  # as most are
    match = _INTEGER_TEXT.fullmatch(text)
    # Java looks for digits in UTF-16 units, so not beyond the first plane.
    if match is None or max(text) > "\uffff":
        raise _UncomparableTextError
    number = int(match[1] + match[2])
    if not -most - 1 <= number <= most:
        raise _UncomparableTextError
    return number


def _read_double(text: str) -> tuple[int, float, float]:
    match = _DOUBLE_TEXT.fullmatch(text)
    if match is None:
        raise _UncomparableTextError
    number = match["number"]
    if match["hex"] is None:
        return _double_key(float(number))
    try:
        return _double_key(float.fromhex(number))
    except OverflowError:
        return _double_key(-math.inf if number[0] == "-" else math.inf)


def _double_key(number: float) -> tuple[int, float, float]:
    """Return a key that orders doubles as Java does: -0.0 below 0.0, NaN equal to itself and above all else."""
    return (1, 0.0, 0.0) if math.isnan(number) else (0, number, math.copysign(1.0, number))


_TURN: dict[tuple[_OperandKind, _OperandKind], Callable[[Any], Any]] = {
    (_OperandKind.TEXT, _OperandKind.INT): functools.partial(_read_integer, most=_INT_MAX),
    (_OperandKind.TEXT, _OperandKind.LONG): functools.partial(_read_integer, most=_LONG_MAX),
    (_OperandKind.TEXT, _OperandKind.DOUBLE): _read_double,
    (_OperandKind.TEXT, _OperandKind.BOOLEAN): lambda text: text.lower() == "true",
    (_OperandKind.INT, _OperandKind.DOUBLE): lambda number: _double_key(float(number)),
    (_OperandKind.LONG, _OperandKind.DOUBLE): lambda number: _double_key(float(number)),
}
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
