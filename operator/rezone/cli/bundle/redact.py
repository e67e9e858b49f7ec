"""Takes out of objects and logs what may be a secret, before it leaves the cluster.

Redacted is by place, not by guess, where Kubernetes has a place for such values: environments,
command lines, Spark's configuration, HTTP headers, annotations of others, options of volumes.
Texts lose what looks like a credential besides.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "REDACTED"

_DROPPED: Final = frozenset(
    {"managedFields", "kubectl.kubernetes.io/last-applied-configuration", "stringData"}
)
# Of each the names stay, where there are any, and the values go.
_REDACTED_KEYS: Final = frozenset(
    {
        "args",
        "arguments",
        "command",
        "envVars",
        "hadoopConf",
        "httpHeaders",
        "options",
        "sparkConf",
        "volumeAttributes",
    }
)
_OUR_ANNOTATIONS: Final = ("rezone.dev", "kubernetes.io", "k8s.io", "helm.sh")
_WORDS: Final = (
    r"(?:passw(?:or)?d|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key)"
)
_SECRET_KEY: Final = re.compile(_WORDS, re.IGNORECASE)
_NAMES_OF_OBJECTS: Final = frozenset({"secretName", "secretKey", "tokenKey"})

_IN_TEXTS: Final = (
    # The keys of PEM files, over lines; what is cut off at the end of a log, too.
    re.compile(
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"(://)[^/@\s]{1,512}(@)"),
    re.compile(r"(\b(?:Bearer|Basic) )[A-Za-z0-9._~+/=-]{8,}()", re.IGNORECASE),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*()"),
    re.compile(rf"({_WORDS}[\w.-]{{0,64}}[\"']?\s?[=:]\s?[\"']?)[^\s\"',;}}]+()", re.IGNORECASE),
)


def redact(value: Any) -> Any:
    """Return a copy of a Kubernetes object, or a part of one, without what may be secret."""
    if isinstance(value, Mapping):
        return {key: _of_key(key, each) for key, each in value.items() if key not in _DROPPED}
    if isinstance(value, list | tuple):
        return [redact(each) for each in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return a text without what looks like a credential."""
    for pattern in _IN_TEXTS:
        text = pattern.sub(rf"\g<1>{REDACTED}\g<2>", text)
    return text


def _of_key(key: str, value: Any) -> Any:
    if key == "annotations" and isinstance(value, Mapping):
        kept = {name: each for name, each in value.items() if name not in _DROPPED}
        return {name: redact(each) if _ours(name) else REDACTED for name, each in kept.items()}
    if key == "env" and isinstance(value, list):
        return [_variable(each) for each in value]
    if key in _REDACTED_KEYS:
        return _emptied(value)
    if isinstance(value, str) and _SECRET_KEY.search(key) and key not in _NAMES_OF_OBJECTS:
        return REDACTED
    return redact(value)


def _ours(annotation: str) -> bool:
    prefix = annotation.partition("/")[0]
    return any(prefix == each or prefix.endswith(f".{each}") for each in _OUR_ANNOTATIONS)


def _variable(value: Any) -> Any:
    """Return a variable of an environment: where its value comes from may be told."""
    if not isinstance(value, Mapping):
        return REDACTED
    return {key: REDACTED if key == "value" else redact(each) for key, each in value.items()}


def _emptied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict.fromkeys(value, REDACTED)
    return [REDACTED] * len(value) if isinstance(value, list) else REDACTED
