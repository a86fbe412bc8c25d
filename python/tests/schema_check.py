# SPDX-License-Identifier: Apache-2.0
"""As much of JSON Schema as Ductile's own schema needs; what it does not know it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "integer": int}
SAID = {"$schema", "title", "description", "$defs"}


class Schema:
    """Holds values against a schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root

    def faults(self, value: Any) -> list[str]:
        """One line for each place where the value is not what the schema says."""
        return list(self._check(value, self.root, "$"))

    def _check(self, value: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
        for keyword, wanted in schema.items():
            if keyword not in SAID:
                check = getattr(self, f"_check_{keyword.lstrip('$')}")
                yield from check(value, wanted, at, schema)

    def _check_ref(self, value: Any, wanted: str, at: str, _schema: Any) -> Iterator[str]:
        found = self.root
        for part in wanted.removeprefix("#/").split("/"):
            found = found[part]
        yield from self._check(value, found, at)

    def _check_type(self, value: Any, wanted: str, at: str, _schema: Any) -> Iterator[str]:
        if not isinstance(value, TYPES[wanted]) or isinstance(value, bool):
            yield f"{at} is no {wanted}: {value!r}"

    def _check_required(self, value: Any, wanted: Any, at: str, _schema: Any) -> Iterator[str]:
        yield from (f"{at} lacks {name}" for name in wanted if name not in value)

    def _check_properties(self, value: Any, wanted: Any, at: str, _schema: Any) -> Iterator[str]:
        """A key that the schema does not name is a fault here: it has to be published."""
        for name, inner in value.items():
            if name in wanted:
                yield from self._check(inner, wanted[name], f"{at}.{name}")
            else:
                yield f"{at} has {name}, which is not published"

    def _check_items(self, value: Any, wanted: Any, at: str, _schema: Any) -> Iterator[str]:
        for position, inner in enumerate(value):
            yield from self._check(inner, wanted, f"{at}[{position}]")

    def _check_enum(self, value: Any, wanted: Any, at: str, _schema: Any) -> Iterator[str]:
        if value not in wanted:
            yield f"{at} is none of {wanted}: {value!r}"

    def _check_const(self, value: Any, wanted: Any, at: str, _schema: Any) -> Iterator[str]:
        if value is not wanted:
            yield f"{at} is not {wanted}: {value!r}"

    def _check_pattern(self, value: Any, wanted: str, at: str, _schema: Any) -> Iterator[str]:
        if not re.search(wanted, value):
            yield f"{at} does not match {wanted}: {value!r}"

    def _check_minimum(self, value: Any, wanted: int, at: str, _schema: Any) -> Iterator[str]:
        if value < wanted:
            yield f"{at} is below {wanted}: {value}"

    def _check_maximum(self, value: Any, wanted: int, at: str, _schema: Any) -> Iterator[str]:
        if value > wanted:
            yield f"{at} is above {wanted}: {value}"

    def _check_minItems(self, value: Any, wanted: int, at: str, _schema: Any) -> Iterator[str]:
        if len(value) < wanted:
            yield f"{at} has fewer than {wanted}"

    def _check_maxItems(self, value: Any, wanted: int, at: str, _schema: Any) -> Iterator[str]:
        if len(value) > wanted:
            yield f"{at} has more than {wanted}"
