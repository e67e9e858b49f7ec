"""The console's process on a real API server: what it shows, changes and refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from console_objects import (
    BEFORE,
    PLAN,
    planned_status,
    records_of,
    replicated,
    zone_of,
    zone_status,
)

from console_process import ConsoleProcess
from kubernetes_fixture import establish
from rezone.console.access.guard import HEADERS
from rezone.console.events import EventSettings
from rezone.domain.model.world import RouteChange
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import ConfigMap, Kind, SparkApplication, TaskKind, ZoneKind
from rezone.kube.api.names import TRANSFER, labels_of
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec, TaskState
from rezone.resources.zone import DistributionZone
from spark_crd import SPARK_CRD

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

NAMESPACE = "console"
Namespace = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
ServiceAccount = Kind("", "v1", "ServiceAccount", "serviceaccounts")
WAIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def console(crds: Path) -> Iterator[ConsoleProcess]:
    """Run the console for this module; its end has to be clean."""
    with ConsoleProcess(crds, "--namespace", NAMESPACE) as process:
        yield process


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@pytest.fixture
async def zone(api: Kube) -> AsyncIterator[DistributionZone]:
    """Make a zone with routes and a task that waits for approval."""
    if await api.find(Namespace, "", NAMESPACE) is None:
        await api.create(Namespace, {"metadata": {"name": NAMESPACE}})
    store = StatusStore(api)
    wanted = zone_of(BEFORE)
    body = {"metadata": {"name": "orders", "namespace": NAMESPACE}, "spec": wanted.spec.dump()}
    made = DistributionZone.parse(await api.create(ZoneKind, body))
    made = await store.write_status(made, zone_status(BEFORE))
    await RouteStore(api, made).create(records_of(BEFORE))
    task = RebalanceTask(
        metadata=ObjectMeta(name="orders-7", namespace=NAMESPACE),
        spec=RebalanceTaskSpec(zone_name="orders"),
    )
    await store.write_status(await store.create(task), planned_status())
    yield made
    await api.delete(TaskKind, NAMESPACE, "orders-7")
    await api.delete(ConfigMap, NAMESPACE, "orders-routes-0")
    await api.delete(ZoneKind, NAMESPACE, "orders")


@pytest.fixture
async def browser(console: ConsoleProcess) -> AsyncIterator[aiohttp.ClientSession]:
    """Open the link, and keep the cookie that it gives."""
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address without a name
    async with aiohttp.ClientSession(console.address, cookie_jar=jar) as session:
        async with session.get(console.link, allow_redirects=False) as answer:
            assert answer.status == 303
            cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        yield session


async def page(browser: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    """Return a page, which has to have a status."""
    async with browser.get(path) as answer:
        text = await answer.text()
        assert answer.status == status, text
        assert HEADERS.keys() <= {name.lower() for name in answer.headers}
        return text


async def sent(
    console: ConsoleProcess, browser: aiohttp.ClientSession, path: str, **fields: str
) -> int:
    """Send a form as a page of the console does, and return the status of the answer."""
    headers = {"origin": console.address}
    async with browser.post(path, data=fields, headers=headers, allow_redirects=False) as answer:
        return answer.status


def fields_of(text: str) -> dict[str, str]:
    """Return the hidden fields of a page's form."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))


async def stored_task(api: Kube) -> RebalanceTask:
    """Return the task as it is stored."""
    return await StatusStore(api).read(RebalanceTask, NAMESPACE, "orders-7")


async def test_pages_show_what_is_stored(
    browser: aiohttp.ClientSession, zone: DistributionZone
) -> None:
    """The console would show nothing, or something else than the objects say."""
    assert zone.metadata.name == "orders"
    listed = await page(browser, "/")
    assert 'href="/zones/console/orders"' in listed
    assert "4 of 4" in listed
    shown = await page(browser, "/zones/console/orders")
    assert "partition 3, node 0: leader" in shown
    assert "AwaitingApproval" in shown
    planned = await page(browser, "/tasks/console/orders-7")
    assert f"<code>{PLAN}</code>" in planned
    assert "+ 3" in planned
    assert 'href="/tasks/console/orders-7/approve"' in planned


@pytest.mark.proves("OB-03")
async def test_a_plan_is_approved_once_it_was_asked_for_and_confirmed(
    console: ConsoleProcess, browser: aiohttp.ClientSession, zone: DistributionZone, api: Kube
) -> None:
    """A plan would be approved that nobody has seen, or by a form that is not the console's."""
    assert zone.metadata.name == "orders"
    path = "/tasks/console/orders-7/approve"
    fields = fields_of(await page(browser, path))
    assert fields["plan"] == PLAN
    assert (await stored_task(api)).spec.approved_plan == ""
    refused = [
        await sent(console, browser, path, **{**fields, "token": "forged"}),
        await sent(console, browser, path, **{**fields, "plan": "another"}),
        await sent(console, browser, path, **{**fields, "uid": "another"}),
        await sent(console, browser, path, **fields, filling="x" * 5000),
        await sent(console, browser, "/tasks/console/orders-7/delete", **fields),
    ]
    assert refused == [403, 409, 409, 413, 404]
    assert (await stored_task(api)).spec.approved_plan == ""
    assert await sent(console, browser, path, **fields) == 303
    assert (await stored_task(api)).spec.approved_plan == PLAN
    managers = (await api.get(TaskKind, NAMESPACE, "orders-7"))["metadata"]["managedFields"]
    assert "rezone-console" in {each["manager"] for each in managers}
    assert await sent(console, browser, path, **fields) == 409


async def test_a_task_is_suspended_resumed_and_cancelled(
    console: ConsoleProcess, browser: aiohttp.ClientSession, zone: DistributionZone, api: Kube
) -> None:
    """A person would have to know the fields of the spec to stop a rebalance."""
    assert zone.metadata.name == "orders"
    seen = []
    for action in ("suspend", "resume", "cancel"):
        path = f"/tasks/console/orders-7/{action}"
        assert await sent(console, browser, path, **fields_of(await page(browser, path))) == 303
        spec = (await stored_task(api)).spec
        seen.append((spec.suspend, spec.cancel))
    assert seen == [(True, False), (False, False), (False, True)]
    assert "any more" in await page(browser, "/tasks/console/orders-7/suspend", 409)


async def test_spark_jobs_of_the_zone_are_shown(
    browser: aiohttp.ClientSession, zone: DistributionZone, api: Kube, crds: Path
) -> None:
    """Who waits for a copy would not find its job, or see those of other zones."""
    assert "Spark" not in await page(browser, "/zones/console/orders")
    await asyncio.to_thread(establish, crds, [SPARK_CRD])
    for name, of in (("orders-7-1", zone.metadata.name), ("bills-1-1", "bills")):
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels_of(of, TRANSFER)}
        }
        made = await api.create(SparkApplication, body)
        told = {"applicationState": {"state": "RUNNING"}, "executorState": {"1": "RUNNING"}}
        await api.replace_status(SparkApplication, {**made, "status": told})
    shown = await page(browser, "/zones/console/orders")
    assert "orders-7-1" in shown
    assert "1 running" in shown
    assert "bills-1-1" not in shown


async def test_what_is_not_there_is_said(browser: aiohttp.ClientSession) -> None:
    """A name could reach another object of the API server, or an error would be a traceback."""
    assert "not found" in await page(browser, "/zones/console/missing", 404)
    for path in ("/zones/console/a%2Fb", "/zones/..%2Fx/orders", "/zones/console/A", "/x"):
        await page(browser, path, 404)


async def test_a_link_of_another_run_opens_nothing(console: ConsoleProcess) -> None:
    """Who guesses or keeps an old link would act with the user's rights."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{console.address}/login?key=old") as answer:
            assert (answer.status, answer.cookies) == (401, {})
        async with session.get(f"{console.address}/") as answer:
            assert answer.status == 401
        async with session.get(f"{console.address}/static/console.js") as answer:
            assert answer.status == 200
        async with session.get(f"{console.address}/static/..%2Fapp.py") as answer:
            assert answer.status == 404


async def next_section(stream: aiohttp.StreamReader, wanted: str, text: str) -> None:
    """Read events until a section has a text."""
    async with asyncio.timeout(WAIT_SECONDS):
        async for line in stream:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[len(b"data: ") :])
            if event.get("id") == wanted and text in event["html"]:
                return
    raise AssertionError(f"the stream ended without {text!r} in {wanted!r}")


async def test_streams_tell_what_has_changed(
    browser: aiohttp.ClientSession, zone: DistributionZone, api: Kube
) -> None:
    """A page would go on showing what was."""
    async with browser.get("/zones/console/orders/events") as answer:
        assert answer.content_type == "text/event-stream"
        await next_section(answer.content, "map", "partition 0, node 1: follower<")
        record = records_of(BEFORE)[0]
        changed = replicated(record, replicas=(0, 1, 3))
        change = RouteChange(partition=0, expected_epoch=record.partition_epoch, state=changed)
        assert await RouteStore(api, zone).change([change]) == {0}
        await next_section(answer.content, "map", "partition 0, node 3: learner")
    async with browser.get("/tasks/console/orders-7/events") as answer:
        task = await stored_task(api)
        status = planned_status().model_copy(update={"state": TaskState.TRANSFERRING})
        await StatusStore(api).write_status(task, status)
        await next_section(answer.content, "head", "Transferring")


def limited_config(kubeconfig: Path, directory: Path, token: str) -> Path:
    """Write a kubeconfig with a token instead of the administrator's certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    limited = directory / "kubeconfig"
    limited.write_text(yaml.safe_dump(config))
    limited.chmod(0o600)
    return limited


async def test_streams_end_when_the_browser_leaves(
    browser: aiohttp.ClientSession, zone: DistributionZone
) -> None:
    """Pages that are closed would keep their streams, until no page is live any more."""
    assert zone.metadata.name == "orders"
    most = EventSettings().streams_max
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(most):
            answer = await stack.enter_async_context(browser.get("/events"))
            await next_section(answer.content, "list", "orders")
        async with browser.get("/events") as refused:
            assert refused.status == 503
    async with asyncio.timeout(WAIT_SECONDS):
        while await _status(browser, "/events") != 200:
            pass  # each look waits for an answer


async def _status(browser: aiohttp.ClientSession, path: str) -> int:
    async with browser.get(path) as answer:
        return answer.status


async def test_a_user_without_rights_is_told_so(
    api: Kube, crds: Path, tmp_path: Path, zone: DistributionZone
) -> None:
    """The console would act with other rights than those of its user's kubeconfig."""
    assert zone.metadata.name == "orders"
    await api.create(ServiceAccount, {"metadata": {"name": "nobody", "namespace": NAMESPACE}})
    made = await api._connection.request(
        "POST", ServiceAccount.path(NAMESPACE, "nobody", "token"), body={"spec": {}}
    )
    limited = limited_config(crds, tmp_path, made["status"]["token"])
    jar = aiohttp.CookieJar(unsafe=True)
    with ConsoleProcess(limited, "--namespace", NAMESPACE) as process:
        async with (
            aiohttp.ClientSession(process.address, cookie_jar=jar) as session,
            session.get(process.link) as answer,
        ):
            assert answer.status == 403
            assert "nobody" in await answer.text()
