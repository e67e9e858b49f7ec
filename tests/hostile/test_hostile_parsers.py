"""Bytes that come from outside are refused by what reads them: no other exception, no crash.

`tests/hostile_bytes.py` says how. A data node that dies of a message, or an operator whose passes
all fail for one object, would take everybody's rows away.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest
import yaml
from job_parsers import PARSERS as OF_JOBS
from node_parsers import PARSERS as OF_NODES
from operator_parsers import PARSERS as OF_OPERATORS

from hostile_bytes import Parser, entered

pytestmark = pytest.mark.proves("TR-03", "TR-02")

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "operator"
UNREAD = Path(__file__).with_name("own_bytes.yaml")
PARSERS: dict[str, Parser] = {**OF_NODES, **OF_OPERATORS, **OF_JOBS}

READING = {
    *("b64decode", "decompress", "from_buffer", "fromhex", "frombuffer", "loads"),
    *("fromisoformat", "iter_unpack", "load_der_x509_certificate", "load_pem_private_key"),
    *("load_pem_x509_certificate", "load_pem_x509_certificates", "load_pem_x509_csr"),
    *("open_csv", "open_file", "open_stream", "parse_qs", "read_message", "read_record_batch"),
    *("read_schema", "read_table", "safe_load", "unhexlify", "unpack", "unpack_from"),
    *("urlsafe_b64decode", "ParquetFile"),
    *("from_builtins", "from_json", "from_msgpack", "msgpack_decoder"),
}
"""What reads bytes: functions of libraries and of `rezone.wire.typed`, whatever they are called at.
"""

DECODERS = ("_decoder.decode", "_numbered.decode")
ELSEWHERE = ("rezone.local", "rezone.cli.demo")
"""The one-machine cluster and the demo: in no package that is installed."""


@pytest.mark.parametrize("name", PARSERS)
def test_parsers_refuse(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Asserts that each parser takes bytes, or refuses them by the exceptions that it names.

    And that none reads without end, which nobody would see if what is written were captured.
    """
    with capfd.disabled():
        PARSERS[name].fuzz()


@pytest.mark.parametrize("name", PARSERS)
def test_parsers_read_what_is_good(name: str) -> None:
    """Asserts that samples are read: changes of what is refused anyway would show nothing."""
    for sample in PARSERS[name].samples:
        PARSERS[name].read(sample)


def readers_of(path: Path) -> Iterator[str]:
    """Yield "module:function" of each function of a file that reads bytes by a library."""
    module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)

    def below(node: ast.AST, names: tuple[str, ...], *, local: bool) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = ("<locals>",) if local else ()
                function = not isinstance(child, ast.ClassDef)
                yield from below(child, (*names, *inside, child.name), local=function)
                continue
            if isinstance(child, ast.Call):
                called = ast.unparse(child.func)
                if called.rpartition(".")[2] in READING or called.endswith(DECODERS):
                    yield f"{module}:{'.'.join(names) or '<module>'}"
            yield from below(child, names, local=local)

    yield from below(ast.parse(path.read_text()), (), local=False)


def name_of(code: CodeType) -> str:
    """Return "module:function" of a function of the product; of others anything."""
    path = Path(code.co_filename)
    inside = path.relative_to(SOURCES) if path.is_relative_to(SOURCES) else path
    return f"{'.'.join(inside.with_suffix('').parts)}:{code.co_qualname}"


def test_every_parser_of_outside_bytes_is_fuzzed() -> None:
    """Asserts that each function that reads bytes by a library is entered by a parser's samples.

    Or `own_bytes.yaml` says why what it reads is not from outside, and it is there. A new parser
    would be fuzzed by nobody until something hostile meets it.
    """
    found = {
        name
        for path in sorted((SOURCES / "rezone").rglob("*.py"))
        for name in readers_of(path)
        if not name.startswith(ELSEWHERE)
    }
    own: dict[str, str] = yaml.safe_load(UNREAD.read_text())
    assert set(own) - found == set(), "these read nothing any more"
    fuzzed = {name_of(code) for code in entered(PARSERS.values())}
    assert found - fuzzed - set(own) == set(), "these are fuzzed by nobody"
    assert set(own) & fuzzed == set(), "these are fuzzed, and need no excuse"
    assert all(own.values())
