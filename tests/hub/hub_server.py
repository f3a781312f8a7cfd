"""A small server with the part of the hub's protocol that push and pull use, for the hub's client."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Repo:
    """One repository."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])


@dataclass
class HubState:
    """All repositories: (`models` or `datasets`, OWNER/NAME) → repository."""

    url: str = ""
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    refuses: int = 0
    """Answer every request with this status."""


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if self.state.refuses:
            return self._answer(self.state.refuses, {"error": "no"})
        if path == "/api/repos/create":
            fields = json.loads(body)
            name = f"{fields['organization']}/{fields['name']}" if fields.get("organization") else fields["name"]
            key = fields.get("type", "model") + "s", name
            if key in self.state.repos:
                return self._answer(409, {"error": "You already created this repo", "url": f"{self.state.url}/{name}"})
            self.state.repos[key] = Repo(private=fields.get("visibility") == "private")
            return self._answer(200, {"url": f"http://{self.headers['Host']}/{name}", "name": name})
        if path == "/api/validate-yaml":
            invented = "license: nonsense" in json.loads(body)["content"]
            return self._answer(400 if invented else 200, {"errors": [{"message": '"license" must be one of …'}]})
        if match := re.fullmatch(
            r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(preupload|commit|revision|tree)/([^/]+))?", path
        ):
            return self._api(match[1], match[2], match[3] or "", body)
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file("datasets" if match[1] else "models", match[2], match[4])
        return self._answer(404, {"error": path})

    do_GET = do_POST = do_HEAD = _handle

    def _api(self, kind: str, name: str, what: str, body: bytes) -> None:
        repo = self.state.repos.get((kind, name))
        if repo is None:
            return self._answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if what == "preupload":
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self._answer(200, {"files": [{k: v for k, v in file.items() if k != "sample"} for file in files]})
        if what == "commit":
            rows = [json.loads(line) for line in body.splitlines()]
            for row in rows[1:]:
                if row["key"] == "file":
                    repo.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
                else:
                    del repo.files[row["value"]["path"]]
            repo.commits.append(hashlib.sha1(body, usedforsecurity=False).hexdigest())
            url = f"http://{self.headers['Host']}/{'' if kind == 'models' else 'datasets/'}{name}"
            return self._answer(200, {"commitUrl": f"{url}/commit/{repo.commits[-1]}", "commitOid": repo.commits[-1]})
        files = [
            {"path": path, "rfilename": path, "size": len(content), "oid": _blob_id(content), "type": "file"}
            for path, content in repo.files.items()
        ]
        about = {"id": name, "_id": "1", "sha": repo.commits[-1], "private": repo.private, "siblings": files}
        return self._answer(200, files if what == "tree" else about)

    def _file(self, kind: str, name: str, path: str) -> None:
        repo = self.state.repos[kind, name]
        content = repo.files[path]
        headers = {"ETag": f'"{_blob_id(content)}"', "X-Repo-Commit": repo.commits[-1], "Accept-Ranges": "bytes"}
        return self._answer(200, content, headers)


@contextmanager
def hub_server() -> Iterator[HubState]:
    """Run the server."""
    state = HubState()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
