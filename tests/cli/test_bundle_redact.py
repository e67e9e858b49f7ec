"""What a support bundle must not hold: credentials, wherever Kubernetes lets people put them."""

from __future__ import annotations

import json
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.cli.bundle.archive import Archive
from rezone.cli.bundle.redact import REDACTED, redact, redact_text

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HIDDEN = "hunter2hunter2"
KEY = f"-----BEGIN EC PRIVATE KEY-----\n{HIDDEN}\n-----END EC PRIVATE KEY-----"
PLACES = [
    {"metadata": {"managedFields": [{"manager": HIDDEN}]}},
    {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": HIDDEN}}},
    {"metadata": {"annotations": {"vault.example.com/login": HIDDEN}}},
    {"spec": {"containers": [{"env": [{"name": "PLAIN", "value": HIDDEN}]}]}},
    {"spec": {"containers": [{"command": ["run", HIDDEN], "args": [f"--pin={HIDDEN}"]}]}},
    {"spec": {"podTemplate": {"spec": {"initContainers": [{"env": [{"value": HIDDEN}]}]}}}},
    {"livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X-Login", "value": HIDDEN}]}}},
    {"livenessProbe": {"exec": {"command": [HIDDEN]}}},
    {"spec": {"sparkConf": {"spark.hadoop.fs.s3a.login": HIDDEN}, "hadoopConf": {"a": HIDDEN}}},
    {"driver": {"envVars": {"A": HIDDEN}}, "arguments": [HIDDEN]},
    {"volumes": [{"csi": {"volumeAttributes": {"a": HIDDEN}}}]},
    {"volumes": [{"flexVolume": {"options": {"a": HIDDEN}}}]},
    {"stringData": {"a": HIDDEN}, "dbPassword": HIDDEN, "apiKey": HIDDEN},
    {"status": {"message": f"GET https://ann:{HIDDEN}@example.com/ failed"}},
    {"status": {"message": f"Authorization: Bearer {HIDDEN}"}},
    {"status": {"message": f"client_secret={HIDDEN}, try again"}},
    {"status": {"message": f'{{"password": "{HIDDEN}"}}'}},
    {"status": {"message": KEY}},
]


@pytest.mark.proves("OB-07")
@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_no_secret_of_an_object_is_in_a_bundle(place: dict[str, object]) -> None:
    """A bundle would give a stranger a way into the cluster, or into what it talks to."""
    assert HIDDEN not in json.dumps(redact(place))


def test_what_helps_stays() -> None:
    """A bundle without names, numbers and references would help nobody."""
    kept = {
        "metadata": {"name": "z", "annotations": {"rezone.dev/template-hash": "1f"}},
        "spec": {
            "partitions": 8,
            "containers": [
                {
                    "env": [
                        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
                    ],
                    "resources": {"limits": {"memory": "1Gi"}},
                }
            ],
            "volumes": [{"secret": {"secretName": "tls"}}],
            "automountServiceAccountToken": False,
        },
        "status": {"message": "partition 3: from node 1, 12:30:00Z, epoch=4"},
    }
    assert redact(kept) == kept
    variable = redact({"env": [{"name": "A", "value": "x"}]})
    assert variable == {"env": [{"name": "A", "value": REDACTED}]}


def test_a_key_that_a_log_cuts_off_is_redacted() -> None:
    """The end of a log may come in the middle of what is not to be told."""
    assert HIDDEN not in redact_text(f"before\n-----BEGIN PRIVATE KEY-----\n{HIDDEN}\n{HIDDEN}")


@given(st.text(alphabet="ab:/@. =-\n\"'Bearertokn", max_size=200))
def test_redacting_again_changes_nothing(text: str) -> None:
    """Texts that pass twice would grow, or one pass would leave what the next one takes."""
    once = redact_text(text)
    assert redact_text(once) == once


@pytest.mark.proves("OB-07")
def test_an_archive_has_a_limit_and_takes_over_no_file(tmp_path: Path) -> None:
    """A bundle would fill a disk, be read by others, or replace something by an error."""
    path = tmp_path / "bundle.tar.gz"
    with Archive(path, root="r", bytes_max=10, now=NOW) as archive:
        assert archive.add("a", b"12345678")
        assert not archive.add("b", b"123")
        assert archive.add("c", b"12")
        assert archive.sizes == {"a": 8, "c": 2}
    with tarfile.open(path) as found:
        assert found.getnames() == ["r/a", "r/c"]
    assert path.stat().st_mode & 0o777 == 0o600
    with (
        pytest.raises(FileExistsError),
        Archive(path, root="r", bytes_max=10, now=NOW),
    ):
        pass
    other = tmp_path / "other.tar.gz"
    with pytest.raises(OSError, match="full"), Archive(other, root="r", bytes_max=9, now=NOW):
        raise OSError("the disk is full")
    assert not os.path.lexists(other)
