"""The pages of the console, and what they answer."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rezone.console.access.guard import Guard, Session, cookie_name, same
from rezone.console.access.proxied import Proxied, ProxiedGuard
from rezone.console.actions import (
    WORDS,
    Action,
    ActionRefusedError,
    action_patch,
    plan_of,
    possible_actions,
    require_possible,
)
from rezone.console.events import EventSettings, EventStreams, Load
from rezone.console.pages import STATIC_FOLDER, Pages, as_markup
from rezone.console.reading import LISTED_MAX, Reader
from rezone.console.task_pages import TASK_PAGES, TaskPages
from rezone.console.views.jobs import job_rows
from rezone.console.views.zones import Shown, summary_of, zone_view
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ConflictWriteError,
    ForbiddenError,
    KubeError,
    MissingError,
    UnavailableError,
)
from rezone.kube.jobs.loads import NO_RATES, RateReader
from rezone.report.page import report_page

FORM_BYTES_MAX: Final = 4096
FORM_FIELDS_MAX: Final = 8
PAGE_DIGITS_MAX: Final = 6
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

ZONES_SECTIONS: Final = ("list",)
ZONE_SECTIONS: Final = ("head", "tasks", "jobs", "rates", "map", "nodes")

_STATUSES: Final = (
    (MissingError, HTTPStatus.NOT_FOUND),
    (ForbiddenError, HTTPStatus.FORBIDDEN),
    (ConflictWriteError, HTTPStatus.CONFLICT),
    (ActionRefusedError, HTTPStatus.CONFLICT),
    (UnavailableError, HTTPStatus.BAD_GATEWAY),
)

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """What the console shows, and to whom. `namespace` None: zones of all namespaces.

    `proxied`: to whom a proxy has signed in, each with rights of their own; else to the session.
    """

    port: int
    namespace: str | None
    proxied: Proxied | None = None
    session: Session = field(default_factory=Session.fresh)
    events: EventSettings = field(default_factory=EventSettings)


class Console:
    """The endpoints; `kube` is the connection to the API server, of the server's event loop."""

    def __init__(self, kube: Kube, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._pages = Pages()
        self.reader = Reader(kube)
        self.streams = EventStreams(settings.events)

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/", self.zones),
            Route("/events", self.zones_events),
            Route("/login", self.login),
            *self._pair("/zones", self.zone, self.zone_events),
            *(route for of in TASK_PAGES for route in self._task_routes(of)),
            Mount("/static", StaticFiles(directory=STATIC_FOLDER)),
        ]
        proxied = self._settings.proxied
        cookie = cookie_name(self._settings.port)
        guard = (
            Middleware(Guard, session=self._settings.session, cookie=cookie)
            if proxied is None
            else Middleware(ProxiedGuard, proxied=proxied)
        )
        handlers = {KubeError: self.failed, ActionRefusedError: self.failed}
        return Starlette(
            routes=routes,
            middleware=[guard],
            exception_handlers={**handlers, HTTPException: self.failed},
        )

    @staticmethod
    def _pair(prefix: str, page: Endpoint, events: Endpoint) -> tuple[Route, Route]:
        path = f"{prefix}/{{namespace}}/{{name}}"
        return Route(f"{path}/events", events), Route(path, page)

    def _task_routes(self, of: TaskPages) -> tuple[Route, ...]:
        path = f"{of.path}/{{namespace}}/{{name}}"
        return (
            *self._pair(of.path, partial(self.task, of), partial(self.task_events, of)),
            Route(f"{path}/report", partial(self.report, of)),
            Route(f"{path}/{{action}}", partial(self.ask, of), methods=["GET", "POST"]),
        )

    def _live(self, load: Load) -> Response:
        proxied = self._settings.proxied
        return self.streams.answer(load, "" if proxied is None else proxied.user())

    def close_streams(self) -> None:
        """End all event streams: the server waits for them when it ends."""
        self.streams.close()

    async def login(self, request: Request) -> Response:
        """Give the cookie to who has the key."""
        if self._settings.proxied is not None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such page.")
        if not same(request.query_params.get("key", ""), self._settings.session.key):
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "This link is of another run.")
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        name = cookie_name(self._settings.port)
        cookie = self._settings.session.cookie
        answer.set_cookie(name, cookie, httponly=True, samesite="strict", path="/")
        return answer

    async def zones(self, _request: Request) -> Response:
        """Show all zones."""
        sections = as_markup(await self._zones_sections())
        return self._page("page", sections=sections, events="/events", title="Zones")

    async def zones_events(self, _request: Request) -> Response:
        """Stream the list of zones."""
        return self._live(self._zones_sections)

    async def _zones_sections(self) -> dict[str, str]:
        zones = await self.reader.zones(self._settings.namespace)
        summaries = [summary_of(zone) for zone in zones]
        scope = self._settings.namespace or "all namespaces"
        return self._pages.sections("zones", ZONES_SECTIONS, zones=summaries, scope=scope)

    async def zone(self, request: Request) -> Response:
        """Show one zone."""
        sections = as_markup(await self._zone_sections(request))
        _, name = _place(request)
        return self._page("page", sections=sections, events=_events(request), title=f"Zone {name}")

    async def zone_events(self, request: Request) -> Response:
        """Stream one zone."""
        _place(request)
        rates = self.reader.rate_reader()
        return self._live(lambda: self._zone_sections(request, rates))

    async def _zone_sections(
        self, request: Request, rates: RateReader | None = None
    ) -> dict[str, str]:
        """Return the sections; rates come with the second look of a live page."""
        namespace, name = _place(request)
        seen = await self.reader.zone(namespace, name)
        found = NO_RATES if rates is None else await rates.rates(seen.zone, wait=False)
        shown = Shown(
            partitions=_page_number(request, "page"),
            nodes=_page_number(request, "nodes"),
            new_layout=request.query_params.get("layout") == "new",
        )
        view = zone_view(seen.zone, seen.routes, shown, seen.problem)
        return self._pages.sections(
            "zone",
            ZONE_SECTIONS,
            view=view,
            seen=seen,
            rates=found,
            jobs=job_rows(seen.applications, LISTED_MAX),
            address=f"/zones/{namespace}/{name}",
        )

    async def task(self, of: TaskPages, request: Request) -> Response:
        """Show one rebalance or leader transfer."""
        sections = as_markup(await self._task_sections(of, request))
        _, name = _place(request)
        return self._page(
            "page", sections=sections, events=_events(request), title=f"{of.title} {name}"
        )

    async def task_events(self, of: TaskPages, request: Request) -> Response:
        """Stream one rebalance or leader transfer."""
        _place(request)
        return self._live(lambda: self._task_sections(of, request))

    async def _task_sections(self, of: TaskPages, request: Request) -> dict[str, str]:
        task = await self.reader.task(of.model, *_place(request))
        return self._pages.sections(
            of.name,
            of.sections,
            actions=possible_actions(task),
            words=WORDS[of.model],
            address=of.address(*_place(request)),
            **await of.values(self.reader, task, _page_number(request, "page")),
        )

    async def report(self, of: TaskPages, request: Request) -> Response:
        """Show the report of a task: the same file that `rezone report -o html` writes."""
        found = await self.reader.report(of.read_report, *_place(request))
        return HTMLResponse(report_page(found, datetime.now(UTC)))

    async def ask(self, of: TaskPages, request: Request) -> Response:
        """Ask whether a task shall be changed, and change it once the answer is yes."""
        place, words = _place(request), WORDS[of.model]
        action = _action(request, words)
        task = await self.reader.task(of.model, *place)
        if request.method == "POST":
            form = await self._form(request)
            uid, plan = form.get("uid", ""), form.get("plan", "")
            await self.reader.patch(of.kind, *place, action_patch(task, action, uid=uid, plan=plan))
            return RedirectResponse(of.address(*place), HTTPStatus.SEE_OTHER)
        require_possible(task, action)
        return self._page(
            "confirm",
            title=words[action].button,
            words=words[action],
            uid=task.metadata.uid,
            back=of.address(*place),
            plan=plan_of(task),
            form_token=self._form_token(),
        )

    def _form_token(self) -> str:
        proxied = self._settings.proxied
        return self._settings.session.form_token if proxied is None else proxied.form_token()

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that one of our pages has sent. Raises HTTPException."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form is too large.")
        try:
            found = parse_qs(body.decode("ascii"), max_num_fields=FORM_FIELDS_MAX)
        except ValueError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "The form cannot be read.") from error
        form = {name: values[0] for name, values in found.items()}
        if not same(form.get("token", ""), self._form_token()):
            raise HTTPException(HTTPStatus.FORBIDDEN, "The form is of another run: reload it.")
        return form

    def _page(
        self, name: str, *, events: str = "", status: int = HTTPStatus.OK, **values: object
    ) -> Response:
        return HTMLResponse(self._pages.page(name, events=events, **values), status)

    async def failed(self, _request: Request, error: Exception) -> Response:
        """Say why there is no page."""
        if isinstance(error, HTTPException):
            status, why = error.status_code, error.detail
        else:
            found = [code for kind, code in _STATUSES if isinstance(error, kind)]
            status, why = [*found, HTTPStatus.BAD_GATEWAY][0], str(error)
        title = HTTPStatus(status).phrase
        return self._page("failed", status=status, title=title, why=why)


def _place(request: Request) -> tuple[str, str]:
    """Return the namespace and name in a request's path. Raises HTTPException for other texts.

    Both become parts of a path of the API server.
    """
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such page.")
    return namespace, name


def _action(request: Request, words: Mapping[Action, object]) -> Action:
    text = request.path_params["action"]
    found = [action for action in words if action.value == text]
    if not found:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such page.")
    return found[0]


def _page_number(request: Request, name: str) -> int:
    """Return the number of a page in the address; whatever is not one is the first page."""
    text = request.query_params.get(name, "")
    plain = text.isascii() and text.isdecimal() and len(text) <= PAGE_DIGITS_MAX
    return int(text) if plain else 0


def _events(request: Request) -> str:
    """Return the address of the event stream of the page that is asked for."""
    query = request.url.query
    return f"{request.url.path}/events" + (f"?{query}" if query else "")
