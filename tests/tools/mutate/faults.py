"""The faults that can be put into a source file: each is one edit of its text, after which it still compiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_NEGATED = {ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
_BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_REVERSED = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<"}
_COMPARISONS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.FloorDiv(), ast.BitOr: ast.BitAnd(), ast.BitAnd: ast.BitOr(), ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(), ast.Pow: ast.Mult(),
}  # fmt: skip
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "popleft": "pop", "appendleft": "append"}
_LOGS = {"log", "logger", "logging", "warnings"}
_TYPING = {"cast", "TypeVar", "NewType", "ParamSpec", "TypeVarTuple", "overload"}
_SUPPRESSED = "ZeroDivisionError"  # which none of the product's calls raises in place of another error


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One edit of a source file. `start`, `end`: of the replaced text, in characters.

    `line`, `last_line`: of the statement, or of the head of a compound one, so of what a covering test executes.
    """

    line: int
    start: int
    end: int
    mutation: str
    replacement: str
    last_line: int
    in_function: bool

    def applied(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.start] + self.replacement + source[self.end :]


def candidates_of(source: str) -> list[Fault]:
    """Every edit that the operators make of a source file, in the order of its text. Some may be no fault: `is_fault`.

    Excluded are docstrings, type annotations, decorators, `__all__`, `if TYPE_CHECKING`, and text that people read: log
    calls, f-strings, messages of errors, strings with spaces.
    """
    faults: dict[tuple[int, int, str], Fault] = {}
    for fault in _Walk(source).of_body(ast.parse(source).body, None):
        faults.setdefault((fault.start, fault.end, fault.replacement), fault)
    return sorted(faults.values())


def is_fault(source: str, fault: Fault) -> bool:
    """True if the source with the fault compiles and is another program."""
    try:
        changed = ast.parse(fault.applied(source))
        compile(changed, "fault", "exec")
    except (SyntaxError, ValueError):
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


@dataclass(frozen=True, slots=True)
class _Edit:
    node: ast.AST
    replacement: str
    mutation: str


class _Walk:
    """Yields the faults of statements. `function`: the one that a statement is in, None in a module or class body."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of_body(self, body: list[ast.stmt], function: ast.AST | None) -> Iterator[Fault]:
        for position, statement in enumerate(body):
            if (position == 0 and _is_text(statement)) or _is_excluded(statement):
                continue
            yield from self._of_statement(statement, function)

    def _of_statement(self, statement: ast.stmt, function: ast.AST | None) -> Iterator[Fault]:
        last = _last_line_of_head(statement)
        for edit in (*_statement_edits(statement, function), *_edits_in(statement, function)):
            yield self._fault(edit, statement.lineno, last, function is not None)
        inner = statement if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(statement, ast.ClassDef):
            inner = None
        for name in ("body", "orelse", "finalbody"):
            yield from self.of_body(getattr(statement, name, []), inner)
        for handler in getattr(statement, "handlers", []):
            for edit in _handler_edits(handler):
                yield self._fault(edit, handler.lineno, handler.lineno, function is not None)
            yield from self.of_body(handler.body, inner)
        for case in getattr(statement, "cases", []):
            yield from self.of_body(case.body, inner)

    def _fault(self, edit: _Edit, line: int, last_line: int, in_function: bool) -> Fault:
        node = edit.node
        start = self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        end = self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return Fault(line, start, end, edit.mutation, edit.replacement, last_line, in_function)

    def _offset(self, line: int, column_bytes: int) -> int:
        text = self._lines[line - 1].encode()[:column_bytes].decode()
        return self._starts[line - 1] + len(text)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_excluded(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Global() | ast.Nonlocal():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__" | "LOG")]) | ast.AnnAssign(value=None):
            return True
        case ast.If(test=test):
            text = ast.unparse(test)
            return "TYPE_CHECKING" in text or "__name__ == '__main__'" in text
        case ast.Expr(value=value):
            return _is_text(statement) or _is_log_call(value)
        case ast.Assign(value=ast.Call(func=function)):
            return _last_name(function) in _TYPING
    return False


def _is_log_call(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=owner)):
            return _last_name(owner).lower() in _LOGS
    return False


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _last_line_of_head(statement: ast.stmt) -> int:
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return statement.end_lineno or statement.lineno
    first = body[0]
    return max(statement.lineno, (first.lineno if hasattr(first, "lineno") else first.pattern.lineno) - 1)


def _statement_edits(statement: ast.stmt, function: ast.AST | None) -> Iterator[_Edit]:
    match statement:
        case ast.Expr(value=ast.Await(value=ast.Call() as call)):
            yield _Edit(statement, "pass", f"drop `await {_name(call)}(...)`")
            yield _Edit(statement, ast.unparse(call), f"drop the `await` of `{_name(call)}(...)`")
        case ast.Expr(value=ast.Call() as call):
            yield _Edit(statement, "pass", f"drop the call `{_name(call)}(...)`")
        case ast.Assign(targets=targets) if any(not isinstance(target, ast.Name) for target in targets):
            if not any(isinstance(target, ast.Tuple | ast.List) for target in targets):
                yield _Edit(statement, "pass", f"drop the assignment to `{ast.unparse(targets[0])}`")
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if function is not None and not _is_none(value):
            yield _Edit(value, "None", f"assign None to `{name}`")
        case ast.AugAssign(target=target, op=operator, value=value):
            yield _Edit(statement, "pass", f"drop the update of `{ast.unparse(target)}`")
            if type(operator) in _ARITHMETIC and not _is_string(value):
                changed = ast.AugAssign(target, _ARITHMETIC[type(operator)], value)
                yield _Edit(statement, ast.unparse(changed), f"update `{ast.unparse(target)}` the other way")
        case _:
            yield from _control_edits(statement)


def _control_edits(statement: ast.stmt) -> Iterator[_Edit]:
    """Edits of what decides which statements run."""
    match statement:
        case ast.Delete():
            yield _Edit(statement, "pass", f"drop `{ast.unparse(statement)}`")
        case ast.Raise():
            yield _Edit(statement, "pass", "drop the `raise`")
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield _Edit(statement, "return None", "return None")
            if isinstance(value, ast.Compare | ast.BoolOp):
                yield _Edit(value, f"not ({ast.unparse(value)})", "return the opposite")
        case ast.Return():
            yield _Edit(statement, "pass", "drop the `return`")
        case ast.Break():
            yield _Edit(statement, "continue", "continue for break")
        case ast.Continue():
            yield _Edit(statement, "break", "break for continue")
            yield _Edit(statement, "pass", "drop the `continue`")
        case _:
            yield from _block_edits(statement)


def _block_edits(statement: ast.stmt) -> Iterator[_Edit]:
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            yield from _condition_edits(test)
        case ast.For(iter=items):
            yield _Edit(items, "()", "loop over nothing")
            yield _Edit(items, f"list({ast.unparse(items)})[1:]", "leave out the first item of the loop")
        case ast.Try(finalbody=body) if body:
            yield _Edit(_span(body), "pass", "drop the clean-up of `finally`")
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            rest = body[1:] if _is_text(body[0]) else body
            if rest and not (len(rest) == 1 and isinstance(rest[0], ast.Return | ast.Pass | ast.Expr)):
                yield _Edit(
                    _point(rest[0]), f"return None\n{' ' * rest[0].col_offset}", f"`{statement.name}` returns at once"
                )


def _condition_edits(test: ast.expr) -> Iterator[_Edit]:
    if isinstance(test, ast.Constant):
        return
    yield _Edit(test, f"not ({ast.unparse(test)})", f"negate `{_short(test)}`")
    yield _Edit(test, f"False and ({ast.unparse(test)})", f"never `{_short(test)}`")
    yield _Edit(test, f"True or ({ast.unparse(test)})", f"always `{_short(test)}`")


def _handler_edits(handler: ast.ExceptHandler) -> Iterator[_Edit]:
    if handler.type is not None:
        yield _Edit(handler.type, _SUPPRESSED, f"do not handle `{ast.unparse(handler.type)}`")
        if isinstance(handler.type, ast.Tuple) and len(handler.type.elts) > 1:
            for error in handler.type.elts:
                kept = [other for other in handler.type.elts if other is not error]
                text = ast.unparse(ast.Tuple(kept, ast.Load()))
                yield _Edit(handler.type, text, f"do not handle `{ast.unparse(error)}`")
    if not all(isinstance(statement, ast.Pass) for statement in handler.body):
        yield _Edit(_span(handler.body), "pass", "do nothing in the handler")
    if not isinstance(handler.body[-1], ast.Raise):
        yield _Edit(_span(handler.body), "raise", "raise again in the handler")


def _edits_in(statement: ast.stmt, function: ast.AST | None) -> Iterator[_Edit]:
    """Edits of the expressions of a statement, or of the head of a compound one."""
    for name, value in ast.iter_fields(statement):
        if name in {"body", "orelse", "finalbody", "handlers", "decorator_list", "annotation", "returns", "bases"}:
            continue
        if name == "cases":
            for case in value:
                if case.guard is not None:
                    yield from _condition_edits(case.guard)
                    yield from _expression_edits(case.guard, is_message=False)
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                for edit in _expression_edits(node, is_message=isinstance(statement, ast.Raise)):
                    yield _of_module(edit) if function is None else edit


def _of_module(edit: _Edit) -> _Edit:
    """A tuned constant of a module or class becomes ten times as large: one more of it would be no fault."""
    match edit.node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and value:
            return _Edit(edit.node, repr(value * 10), f"{value * 10!r} for {value!r}")
    return edit


def _expression_edits(node: ast.AST, *, is_message: bool) -> Iterator[_Edit]:
    if isinstance(node, ast.JoinedStr) or _is_log_call(node):
        return
    yield from _edits_of(node, is_message)
    if isinstance(node, ast.Call) and _last_name(node.func) in _TYPING:
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "format_spec"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expression_edits(child, is_message=is_message)


def _edits_of(node: ast.AST, is_message: bool) -> Iterator[_Edit]:
    match node:
        case ast.Compare():
            yield from _comparison_edits(node)
        case ast.BoolOp(op=operator, values=values):
            other = ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
            yield _Edit(
                node,
                f"({ast.unparse(other)})",
                f"`{'or' if isinstance(operator, ast.And) else 'and'}` in `{_short(node)}`",
            )
            for value in values:
                kept = [other for other in values if other is not value]
                text = ast.unparse(kept[0] if len(kept) == 1 else ast.BoolOp(operator, kept))
                yield _Edit(node, f"({text})", f"leave out `{_short(value)}`")
        case ast.UnaryOp(op=ast.Not() | ast.USub() as operator, operand=operand):
            sign = "not" if isinstance(operator, ast.Not) else "minus"
            yield _Edit(node, f"({ast.unparse(operand)})", f"drop the `{sign}` of `{_short(operand)}`")
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            if not (_is_string(left) or _is_string(right)):
                other = ast.BinOp(left, _ARITHMETIC[type(operator)], right)
                yield _Edit(node, f"({ast.unparse(other)})", f"another operator in `{_short(node)}`")
        case ast.Await(value=ast.Call() as call):
            yield _Edit(node, f"({ast.unparse(call)})", f"drop the `await` of `{_name(call)}(...)`")
        case ast.Call():
            yield from _call_edits(node)
        case _:
            yield from _part_edits(node, is_message)


def _part_edits(node: ast.AST, is_message: bool) -> Iterator[_Edit]:
    """Edits of constants, slices and conditions of comprehensions."""
    match node:
        case ast.Constant(value=bool() as value):
            yield _Edit(node, str(not value), f"{not value} for {value}")
        case ast.Constant(value=int() | float() as value):
            yield _Edit(node, repr(value + 1), f"{value + 1!r} for {value!r}")
        case ast.Constant(value=str() as value) if value and not is_message and value.isidentifier():
            yield _Edit(node, repr(f"{value}_"), f"{f'{value}_'!r} for {value!r}")
        case ast.IfExp(test=test):
            yield _Edit(test, f"not ({ast.unparse(test)})", f"negate `{_short(test)}`")
        case ast.comprehension(ifs=conditions):
            for condition in conditions:
                yield from _condition_edits(condition)
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield _Edit(bound, f"({ast.unparse(bound)}) + 1", f"a slice by one more than `{_short(bound)}`")


def _comparison_edits(node: ast.Compare) -> Iterator[_Edit]:
    operands = [node.left, *node.comparators]
    for position, operator in enumerate(node.ops):
        for table in (_NEGATED, _BOUNDARY, _REVERSED):
            if (changed := table.get(type(operator))) is None:
                continue
            texts = [f"({ast.unparse(operand)})" for operand in operands]
            symbols = [_COMPARISONS[type(each)] for each in node.ops]
            sides = f"{_short(operands[position])} {symbols[position]} {_short(operands[position + 1])}"
            mutation = f"`{changed}` for `{symbols[position]}` in `{sides}`"
            symbols[position] = changed
            text = texts[0] + "".join(f" {symbol} {text}" for symbol, text in zip(symbols, texts[1:], strict=True))
            yield _Edit(node, f"({text})", mutation)


def _call_edits(node: ast.Call) -> Iterator[_Edit]:
    name = _last_name(node.func)
    if name in _OPPOSITES:
        other = _OPPOSITES[name]
        function = ast.Name(other) if isinstance(node.func, ast.Name) else ast.Attribute(node.func.value, other)  # type: ignore[attr-defined]
        yield _Edit(node.func, ast.unparse(function), f"`{other}` for `{name}`")
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    for position in range(len(node.args) - 1):
        first, second = node.args[position], node.args[position + 1]
        if ast.dump(first) != ast.dump(second) and name not in {"isinstance", "issubclass", "getattr", "setattr"}:
            swapped = [*node.args[:position], second, first, *node.args[position + 2 :]]
            call = ast.Call(node.func, swapped, node.keywords)
            yield _Edit(node, ast.unparse(call), f"swap `{_short(first)}` and `{_short(second)}`")
    for keyword in node.keywords:
        if keyword.arg is not None:
            kept = [other for other in node.keywords if other is not keyword]
            yield _Edit(node, ast.unparse(ast.Call(node.func, node.args, kept)), f"leave out `{keyword.arg}=`")


def _span(body: list[ast.stmt]) -> ast.stmt:
    """A node at the place of several statements."""
    span = ast.Pass()
    span.lineno, span.col_offset = body[0].lineno, body[0].col_offset
    span.end_lineno, span.end_col_offset = body[-1].end_lineno, body[-1].end_col_offset
    return span


def _point(statement: ast.stmt) -> ast.stmt:
    """An empty node where a statement begins, with its decorators."""
    first = min((statement, *getattr(statement, "decorator_list", ())), key=lambda node: node.lineno)
    point = ast.Pass()
    column = statement.col_offset
    point.lineno, point.col_offset, point.end_lineno, point.end_col_offset = first.lineno, column, first.lineno, column
    return point


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
