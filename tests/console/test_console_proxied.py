"""The console behind a proxy: the real process on a real API server, with users' own tokens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from console_objects import PLAN, planned_status

from console_process import ConsoleProcess
from rezone.cli.console import STREAMS_OF_MANY_MAX
from rezone.console.access.proxied import TOKEN_LENGTH_MAX, NobodyError, Proxied, caller_token
from rezone.console.events import EventSettings
from rezone.console.process.server import CONNECTIONS_MAX
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import Kind, TaskKind
from rezone.kube.stored.store import StatusStore
from rezone.local.controlplane import free_ports
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

NAMESPACE = "proxied"
ORIGIN = "https://rezone.example.com"
ServiceAccount = Kind("", "v1", "ServiceAccount", "serviceaccounts")
Role = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
RoleBinding = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
Namespace = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
RIGHTS = {"ann": ["get", "list", "patch"], "bob": ["get", "list"]}
Task = RebalanceTask


@pytest.fixture(scope="module")
def console(crds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """Run the console of a pod, with an identity that it must not use.

    The kubeconfig is the administrator's: whatever the console does by itself would succeed.
    """
    cluster = yaml.safe_load(crds.read_text())["clusters"][0]["cluster"]
    authority = tmp_path_factory.mktemp("authority") / "ca.crt"
    if "certificate-authority-data" in cluster:
        authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        authority.write_bytes(Path(cluster["certificate-authority"]).read_bytes())
    (port,) = free_ports(1)
    words = [
        *("--namespace", NAMESPACE, "--origin", ORIGIN, "--api-server", cluster["server"]),
        *("--api-ca", str(authority), "--health-address", f"127.0.0.1:{port}"),
    ]
    with ConsoleProcess(crds, *words, behind_proxy=True) as found:
        found.health = f"http://127.0.0.1:{port}"
        yield found


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@pytest.fixture
async def tokens(api: Kube) -> dict[str, str]:
    """Return the tokens of Ann, who may change rebalances, and of Bob, who may look at them."""
    if await api.find(Namespace, "", NAMESPACE) is None:
        await api.create(Namespace, {"metadata": {"name": NAMESPACE}})
    found = {}
    for name, verbs in RIGHTS.items():
        meta = {"metadata": {"name": name, "namespace": NAMESPACE}}
        if await api.find(ServiceAccount, NAMESPACE, name) is None:
            await api.create(ServiceAccount, meta)
            resources = ["distributionzones", "rebalancetasks", "regionmigrations"]
            rule = {"apiGroups": ["rezone.dev"], "resources": resources, "verbs": verbs}
            await api.create(Role, {**meta, "rules": [rule]})
            subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
            await api.create(RoleBinding, {**meta, "subjects": [subject], "roleRef": role})
        path = ServiceAccount.path(NAMESPACE, name, "token")
        made = await api.connection.request("POST", path, body={"spec": {}})
        found[name] = made["status"]["token"]
    return found


@pytest.fixture
async def task(api: Kube) -> AsyncIterator[str]:
    """Make a task that waits for approval; return its page."""
    store = StatusStore(api)
    meta = ObjectMeta(name="orders-7", namespace=NAMESPACE)
    made = await store.create(Task(metadata=meta, spec=RebalanceTaskSpec(zone_name="orders")))
    await store.write_status(made, planned_status())
    yield f"/tasks/{NAMESPACE}/orders-7"
    await api.delete(TaskKind, NAMESPACE, "orders-7")


def as_user(token: str | None, **headers: str) -> dict[str, str]:
    """Return the headers that the proxy sends for a user."""
    signed = {} if token is None else {"authorization": f"Bearer {token}"}
    return {"host": "rezone.example.com", **signed, **headers}


async def asked(
    console: ConsoleProcess, path: str, headers: dict[str, str], **fields: str
) -> tuple[int, str]:
    """Ask for a page, or send a form; return status and text."""
    method = "POST" if fields else "GET"
    async with (
        aiohttp.ClientSession(console.address) as session,
        session.request(
            method, path, data=fields or None, headers=headers, allow_redirects=False
        ) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.proves("OB-03")
async def test_who_has_no_token_of_the_cluster_gets_nothing(
    console: ConsoleProcess, tokens: dict[str, str]
) -> None:
    """Whoever reaches the port would act with rights of the console's, or of nobody."""
    assert tokens
    for given in (
        as_user(None),
        {**as_user(None), "authorization": "Basic YTpi"},
        {**as_user(None), "authorization": "Bearer"},
        {**as_user(None), "authorization": "Bearer a b"},
        {**as_user(None), "authorization": f"Bearer {'a' * (TOKEN_LENGTH_MAX + 1)}"},
        {**as_user(None), "x-forwarded-user": "system:admin", "impersonate-user": "system:admin"},
    ):
        for path in ("/", "/events", "/static/console.js", "/login?key="):
            status, text = await asked(console, path, given)
            assert (status, "distributionzones" in text) in {(401, False), (400, False)}, path
    status, text = await asked(console, "/", as_user("no-token-of-this-cluster"))
    assert status == 403
    assert "Unauthorized" in text


async def test_the_probe_needs_no_user_and_shows_nothing_else(console: ConsoleProcess) -> None:
    """The kubelet would restart a console that is well, or its port be a way around the proxy."""
    async with aiohttp.ClientSession(console.health) as session:
        for path, status in (("/healthz", 200), ("/", 404), ("/metrics", 404)):
            async with session.get(path) as answer:
                assert answer.status == status


async def test_each_request_has_its_users_own_rights(
    console: ConsoleProcess, tokens: dict[str, str], task: str, api: Kube
) -> None:
    """Bob would approve with Ann's rights, or what Ann did would be the console's deed."""
    form = as_user(tokens["bob"], origin=ORIGIN)
    fields = {"plan": PLAN, "uid": (await stored(api)).metadata.uid}
    page = f"{task}/approve"
    both = [asked(console, page, as_user(tokens[name])) for name in ("ann", "bob") * 8]
    shown = await asyncio.gather(*both)
    assert {status for status, _ in shown} == {200}
    found = [text.partition('name="token" value="')[2].partition('"')[0] for _, text in shown]
    assert len(set(found)) == 2
    anns, bobs = found[0], found[1]
    refused, text = await asked(console, page, form, **fields, token=bobs)
    assert (refused, "bob" in text) == (403, True)
    assert (await asked(console, page, form, **fields, token=anns))[0] == 403
    assert (await stored(api)).spec.approved_plan == ""
    form = as_user(tokens["ann"], origin=ORIGIN)
    assert (await asked(console, page, form, **fields, token=anns))[0] == 303
    assert (await stored(api)).spec.approved_plan == PLAN


async def stored(api: Kube) -> RebalanceTask:
    """Return the task as it is stored."""
    return await StatusStore(api).read(RebalanceTask, NAMESPACE, "orders-7")


async def test_other_sites_and_names_are_refused(
    console: ConsoleProcess, tokens: dict[str, str], task: str
) -> None:
    """The proxy's cookie goes with what other sites make a browser send."""
    ann = tokens["ann"]
    cross = {"sec-fetch-site": "cross-site"}
    assert (await asked(console, task, as_user(ann, **cross)))[0] == 403
    followed = {**cross, "sec-fetch-mode": "navigate"}
    assert (await asked(console, task, as_user(ann, **followed)))[0] == 200
    for headers in ({}, {"origin": "https://evil.example"}, {"origin": ORIGIN, **followed}):
        form = as_user(ann, **headers)
        status, text = await asked(console, f"{task}/cancel", form, uid="x")
        # Its token is missing as well, which is looked at later.
        assert (status, "from another site" in text) == (403, True)
    assert (await asked(console, task, {**as_user(ann), "host": "evil.example"}))[0] == 421
    assert (await asked(console, "/login?key=x", as_user(ann)))[0] == 404


async def test_a_live_page_keeps_its_users_rights(
    console: ConsoleProcess, tokens: dict[str, str], task: str
) -> None:
    """A stream goes on after its request's headers: with which rights, would be chance."""
    async with contextlib.AsyncExitStack() as stack:
        answers = {}
        for name, token in (*tokens.items(), ("eve", "no-token")):
            session = await stack.enter_async_context(aiohttp.ClientSession(console.address))
            answers[name] = await stack.enter_async_context(
                session.get(f"{task}/events", headers=as_user(token))
            )
        for name, answer in answers.items():
            async with asyncio.timeout(30):
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        break
            event = json.loads(line[len(b"data: ") :])
            assert ("problem" in event) == (name == "eve"), event
        # Nobody's stream ends: nothing else can be read with that token.
        async with asyncio.timeout(30):
            assert (await answers["eve"].read()).strip() == b""


async def test_one_user_s_live_pages_leave_room_for_others(
    console: ConsoleProcess, tokens: dict[str, str], task: str
) -> None:
    """One person could have all that may be live."""
    live = f"{task}/events"
    async with (
        contextlib.AsyncExitStack() as stack,
        aiohttp.ClientSession(console.address) as session,
    ):
        for _ in range(EventSettings().streams_each_max):
            asking = session.get(live, headers=as_user(tokens["ann"]))
            assert (await stack.enter_async_context(asking)).status == 200
        for name, status in (("ann", 503), ("bob", 200)):
            async with session.get(live, headers=as_user(tokens[name])) as answer:
                assert answer.status == status


@pytest.mark.parametrize(
    "origin",
    [
        "http://rezone.example.com",
        "https://",
        "https://a/path",
        "https://u@a",
        "https://a:0443",
        "rezone",
        "",
    ],
)
def test_an_origin_has_a_name_and_is_https(origin: str) -> None:
    """Forms would be refused for ever, or tokens go in the clear."""
    with pytest.raises(ValueError, match="is no origin"):
        Proxied(origin)
    assert Proxied("https://a.example:8443").host == "a.example:8443"


@pytest.mark.parametrize("origin", ["https://Rezone.Example.COM", "https://rezone.example.com:443"])
def test_an_origin_is_what_browsers_send(origin: str) -> None:
    """Each request and each form would be refused, of a console that looks well."""
    assert Proxied(origin).origin == "https://rezone.example.com"
    assert Proxied(origin).host == "rezone.example.com"


def test_nothing_is_asked_for_nobody() -> None:
    """A loop of the console's own would have the rights of the last user."""
    with pytest.raises(NobodyError):
        caller_token()
    assert STREAMS_OF_MANY_MAX < CONNECTIONS_MAX
