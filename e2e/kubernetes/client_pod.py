"""Runs in a pod beside the zone, on the operator's image: a user's traffic, and its proof.

`client_archive` brings it there.

It is told what to do over HTTP (through the API server's proxy), each answer being JSON:
`/load?rows=N`, `/start`, `/stop` (ends the traffic, proves, and tells what it was like), and
`/operations` (some of the histories of rows that were not told yet, none when all were).
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rezone.cli.demo.gaps import WriteAck
from rezone.cli.demo.ledger import Ledger
from rezone.cli.demo.operations import Operations, RowOperation
from rezone.cli.demo.proof import Proof, known_routes, prove
from rezone.cli.demo.table import generated_table
from rezone.cli.demo.traffic import Traffic
from rezone.client import TableClient
from rezone.transfer.generated import generated_batch
from rezone.wire.errors import RezoneError

BOOTSTRAP = os.environ["BOOTSTRAP"]
PARTITIONS = int(os.environ["PARTITIONS"])
PAUSE_SECONDS = 0.2
ROWS_PER_BATCH = 5000
PROBLEMS_TOLD_MAX = 10
PROOF_SECONDS_MAX = 180.0
OPERATIONS_AT_ONCE = 50_000


class Client:
    """One user of the zone: what was loaded, what was promised, and the traffic under way."""

    def __init__(self) -> None:
        self._rows = 0
        self._ledger = Ledger()
        self._operations = Operations()
        self._untold: list[RowOperation] = []
        self._traffic: Traffic | None = None
        self._started = 0.0

    def load(self, rows: int) -> dict[str, Any]:
        """Write the rows 0 to `rows`, all of them or none that is counted."""
        started = time.monotonic()
        with TableClient([BOOTSTRAP]) as table:
            for first in range(0, rows, ROWS_PER_BATCH):
                table.write(generated_batch(range(first, min(rows, first + ROWS_PER_BATCH))))
        self._rows = rows
        return {"rows": rows, "seconds": time.monotonic() - started}

    def start(self) -> dict[str, Any]:
        """Begin to write to every partition and to read."""
        self._traffic = Traffic(
            [BOOTSTRAP],
            generated_table(self._rows),
            PARTITIONS,
            ledger=self._ledger,
            pause_seconds=PAUSE_SECONDS,
            operations=self._operations,
        )
        self._started = time.monotonic()
        self._traffic.start()
        return {}

    def stop(self) -> dict[str, Any]:
        """End the traffic and prove the zone; tell both."""
        traffic = self._traffic
        if traffic is None:
            raise ValueError("no traffic is under way")
        self._traffic = None
        traffic.stop()
        self._untold += self._operations.take()
        ended = time.monotonic()
        gaps = {p: _longest_gap(self._started, acks, ended) for p, acks in traffic.acks.items()}
        proof = self._proof(ended + PROOF_SECONDS_MAX)
        return {
            "seconds": ended - self._started,
            "writes": sum(len(acks) for acks in traffic.acks.values()),
            "reads": traffic.read_count,
            "partitions_written": len(gaps),
            "gap_seconds_max": max(gaps.values(), default=ended - self._started),
            "partitions_with_gap": sum(gap > 1.0 for gap in gaps.values()),
            "write_failures": len(traffic.write_failures),
            "read_failures": len(traffic.read_failures),
            "failures": (traffic.write_failures + traffic.read_failures)[:PROBLEMS_TOLD_MAX],
            "stale_reads": traffic.stale_reads[:PROBLEMS_TOLD_MAX],
            "problems": list(proof.problems[:PROBLEMS_TOLD_MAX]),
            "rows_checked": proof.rows_checked,
            "replicas_compared": proof.replicas_compared,
        }

    def operations(self) -> dict[str, Any]:
        """Return some operations of ended traffic that were not returned yet."""
        told = self._untold[:OPERATIONS_AT_ONCE]
        del self._untold[:OPERATIONS_AT_ONCE]
        return {"operations": told}

    def _proof(self, deadline: float) -> Proof:
        """Prove the zone, again while a data node is too slow: nothing is written meanwhile."""
        table = generated_table(self._rows)
        while True:
            try:
                routes, addresses = known_routes(BOOTSTRAP)
                return prove([BOOTSTRAP], table, self._ledger.book(), routes, addresses)
            except RezoneError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                time.sleep(1.0)


def _longest_gap(started: float, acks: list[WriteAck], ended: float) -> float:
    """Return the longest time without an answer, from the first write to the end of the traffic.

    A partition that begins late or ends early has a gap there: no answer comes after it to show it.
    """
    times = [started, *(ack.at for ack in acks), ended]
    return max(after - before for before, after in itertools.pairwise(times))


class Handler(BaseHTTPRequestHandler):
    """One request, one call of the client; calls come one after the other."""

    client = Client()
    lock = threading.Lock()

    def do_GET(self) -> None:
        """Answer with what the call returned, or with its error."""
        asked = urlsplit(self.path)
        given = {name: int(values[0]) for name, values in parse_qs(asked.query).items()}
        calls: dict[str, Callable[..., dict[str, Any]]] = {
            "/load": self.client.load,
            "/start": self.client.start,
            "/stop": self.client.stop,
            "/operations": self.client.operations,
        }
        call = calls.get(asked.path, dict)
        try:
            with self.lock:
                answer = call(**given)
        except (RezoneError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve() -> None:
    """Serve until the pod ends."""
    ThreadingHTTPServer(("", 8080), Handler).serve_forever()
