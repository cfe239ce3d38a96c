"""The files of the page: read once at start, served from memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from .errors import Refused
from .login import Login

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    type: str
    etag: str


def read_page_files(folder: Path) -> dict[str, _File]:
    """Return the files of a folder by name. Blocks: call in a thread."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            files[path.name] = _File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return files


class PageFiles:
    """The handlers for the page itself. The files are public; what they show needs the login."""

    def __init__(self, files: dict[str, _File], login: Login) -> None:
        self._files = files
        self._login = login

    def add_routes(self, app: web.Application) -> None:
        """Put the routes into an application."""
        app.router.add_get("/", self.chat)
        app.router.add_get("/login", self.login)
        app.router.add_get("/static/{name}", self.file)
        app.router.add_get("/favicon.ico", self.icon)

    async def chat(self, request: web.Request) -> web.Response:
        """Show the chat page, or the way to the login."""
        try:
            await self._login.principal(request)
        except Refused:
            return web.Response(status=303, headers={"Location": "/login"})
        return self._serve(request, "index.html")

    async def login(self, request: web.Request) -> web.Response:
        """Show the login page."""
        return self._serve(request, "login.html")

    async def icon(self, request: web.Request) -> web.Response:
        """Show the icon."""
        return self._serve(request, "icon.svg")

    async def file(self, request: web.Request) -> web.Response:
        """Serve one file."""
        return self._serve(request, request.match_info["name"])

    def _serve(self, request: web.Request, name: str) -> web.Response:
        file = self._files.get(name)
        if file is None:
            raise Refused("unknown_path", path=request.path[:200])
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.content, headers={**headers, "Content-Type": file.type})
