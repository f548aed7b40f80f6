"""Griffe extension: what the API reference shows of docstrings and fields.

The fields of a dataclass or a NamedTuple are described by the help of their `option(...)` or by
the comment beside them; this makes a table of them. Nothing is imported.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
COMMENT = re.compile(r"[^#'\"]*(?:(?:'[^']*'|\"[^\"]*\")[^#'\"]*)*#\s*(.*)")


class SiteFields(griffe.Extension):
    """Adds a table of fields to the docstrings of classes; examples become code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename `Example:` to the title under which griffe expects doctests."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub("Examples:", obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the fields of a class to its docstring, unless it lists them itself."""
        if cls.docstring and "Attributes:" not in cls.docstring.value:
            lines = [f"    {field.name}: {_description(field)}" for field in _fields(cls)]
            if lines:
                cls.docstring.value += "\n\nAttributes:\n" + "\n".join(lines)
        init = cls.members.get("__init__")
        if isinstance(init, griffe.Function):  # of a dataclass
            for parameter in init.parameters:
                parameter.default = _shown_default(parameter.default)


def _fields(cls: griffe.Class) -> Iterator[griffe.Attribute]:
    for name, member in cls.members.items():
        is_field = isinstance(member, griffe.Attribute) and "property" not in member.labels
        if is_field and member.annotation is not None and not name.startswith("_"):
            yield member


def _option(value: Any) -> tuple[Any, str] | None:
    """Return the default and the help of a call of `option`, if the value is one."""
    if not isinstance(value, griffe.ExprCall) or str(value.function) != "option":
        return None
    default, text, *_ = value.arguments
    return default, ast.literal_eval(str(text))


def _shown_default(value: Any) -> Any:
    """Return a default without `option`, and what a default factory returns."""
    if option := _option(value):
        return option[0]
    if isinstance(value, griffe.ExprCall) and isinstance(value.function, griffe.ExprLambda):
        return value.function.body
    return value


def _description(field: griffe.Attribute) -> str:
    if option := _option(field.value):
        return f"{option[1]}. Default: `{option[0]}`."
    text = _comment(field)
    value = "" if field.value is None else str(field.value)
    if value and len(value) < 20:
        text = f"{text}. Default: `{value}`." if text else f"Default: `{value}`."
    return text or "&nbsp;"


def _comment(field: griffe.Attribute) -> str:
    """Return the comment beside a field, or above it."""
    lines = field.parent.lines if field.parent else []
    first, last = field.lineno, field.endlineno
    if not first or not last or not isinstance(field.parent, griffe.Class):
        return ""
    start = first - (field.parent.lineno or 1)
    if beside := COMMENT.match(lines[start]):
        return beside[1].strip().rstrip(".")
    above = list[str]()
    while start and lines[start - 1].strip().startswith("#"):
        start -= 1
        above.insert(0, lines[start].strip(" #"))
    return " ".join(above).rstrip(".")
