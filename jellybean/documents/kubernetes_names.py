"""Field types of kubernetes.yaml: names of objects, labels, variables and cores, by Kubernetes' rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from jellybean.quantities import InvalidValueError, quoted
from jellybean_k8s import (
    ENV_NAME_PATTERN,
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    MAX_OBJECT_NAME_LENGTH,
    OBJECT_NAME_PATTERN,
    OWN_ENV,
    is_own_annotation,
    is_own_label,
)


def _matched(pattern: str, what: str, hint: str, most: int | None = None) -> Any:
    """A text of this pattern; `most`: characters."""
    known = re.compile(pattern)

    def check(text: str) -> str:
        if known.fullmatch(text) is None or (most is not None and len(text) > most):
            raise InvalidValueError(f"{quoted(text)} is not {what}", hint)
        return text

    return AfterValidator(check), WithJsonSchema({"type": "string", "pattern": pattern})


def _not_ours(is_ours: Callable[[str], bool]) -> AfterValidator:
    def check(key: str) -> str:
        if is_ours(key):
            raise InvalidValueError(f"{key} is set by JellyBean", "remove it, or choose another key")
        return key

    return AfterValidator(check)


_KEY = _matched(LABEL_KEY_PATTERN, "a Kubernetes label", "for example jellybean.dev/tier")
LabelKey = Annotated[str, *_KEY]
OtherLabelKey = Annotated[str, *_KEY, _not_ours(is_own_label)]  # of pods, beside our labels
AnnotationKey = Annotated[str, *_KEY, _not_ours(is_own_annotation)]
LabelValue = Annotated[
    str,
    *_matched(
        LABEL_VALUE_PATTERN,
        "a value of a Kubernetes label",
        "use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    ),
]
ObjectName = Annotated[
    str,
    *_matched(
        OBJECT_NAME_PATTERN,
        "a name of a Kubernetes object",
        "use small letters, digits, '-' and '.', beginning and ending with a letter or digit",
        MAX_OBJECT_NAME_LENGTH,
    ),
]
EnvName = Annotated[
    str,
    *_matched(ENV_NAME_PATTERN, "a name of an environment variable", "for example HTTPS_PROXY"),
    _not_ours(lambda name: name in OWN_ENV),
]
LongText = Annotated[str, Field(max_length=4096)]  # values of annotations and variables, such as NO_PROXY
Cores = Annotated[float, Field(strict=False, gt=0, le=1024)]
