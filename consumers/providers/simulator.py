"""The provider simulator: a real HTTP server that makes jobs, charges for them, serves their files, fails as
it is told to, and knows the truth. It must never be asked for the truth by the code under test.

    POST /v1/jobs                 make a job; with an Idempotency-Key that it knows, none
    GET  /v1/jobs?limit=&cursor=  the list of jobs, oldest first
    GET  /v1/jobs/{id}            its state; each call brings it nearer to its end
    DELETE /v1/jobs/{id}          cancel it, while it hasn't ended; it costs nothing then
    GET  /files/{id}/{n}/{name}   its files
    GET  /_truth                  every POST, job, charge, file and fault
    POST /_faults                 a new plan (see simulator_world.Plan)
"""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Self
from urllib.parse import parse_qs

import msgspec

from consumers.providers.simulator_http import Call, Reply, serve_connection
from consumers.providers.simulator_world import (
    OF_FILES,
    OF_SUBMISSIONS,
    WITHOUT_JOB,
    Fault,
    Job,
    Plan,
    World,
    file_name,
)
from relay.errors import Unavailable, UsageError

_REFERENCE: Final = "x-client-reference"
_START_S: Final = 30.0
"""A server that isn't listening by then has failed in a way that asyncio didn't say."""


class Simulator:
    """The server. `with Simulator(seed=1) as simulator:` runs it in a thread; `serve` in the caller's
    loop."""

    def __init__(
        self,
        *,
        seed: int = 0,
        plan: Plan | None = None,
        secret: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.world = World(seed=seed, plan=plan or Plan())
        self.url = ""
        self._secret = secret
        self._host = host
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    async def serve(self, ready: Callable[[str], None]) -> None:
        """Serve until `stop`. `ready` is called with the URL once it listens. Raises Unavailable when it
        can't."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(
                serve_connection(reader, writer, handler=self._answer, refuse_to_read=self._refuse_to_read)
            )
            connections.add(task)
            task.add_done_callback(connections.discard)

        try:
            server = await asyncio.start_server(accept, self._host, self._port)
        except OSError as error:
            raise Unavailable(
                f"The simulator can't listen on {self._host}:{self._port}: {error.strerror}."
            ) from None
        async with server:
            address = server.sockets[0].getsockname()
            self.url = f"http://{address[0]}:{address[1]}"
            ready(self.url)
            await self._stop.wait()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    def stop(self) -> None:
        """Stop serving; from any thread. A simulator that doesn't run is fine."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(_START_S)
            self._thread = None

    def truth(self) -> dict[str, Any]:
        """What `GET /_truth` answers, for a test in the same process."""
        loop = self._loop
        if loop is None or loop.is_closed() or self._thread is None:
            return self.world.truth()

        async def ask() -> dict[str, Any]:
            return self.world.truth()

        return asyncio.run_coroutine_threadsafe(ask(), loop).result(_START_S)

    def __enter__(self) -> Self:
        listening = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self.serve(lambda _url: listening.set()))
            except BaseException as error:
                failed.append(error)
                raise
            finally:
                listening.set()

        self._thread = threading.Thread(target=run, name="provider-simulator", daemon=True)
        self._thread.start()
        listening.wait(_START_S)
        if failed or not self.url:
            raise Unavailable(f"The simulator didn't start: {failed[0] if failed else 'it says nothing'}.")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _refuse_to_read(self, call: Call) -> bool:
        reference = call.headers.get(_REFERENCE)
        if (call.method, call.path) != ("POST", ("v1", "jobs")) or not self.world.refuses_to_read(reference):
            return False
        self.world.posted(reference, None, Fault.CUT_BEFORE_READING)
        return True

    async def _answer(self, call: Call, body: bytes) -> Reply:
        match (call.method, *call.path):
            case ("GET", "_truth"):
                return _json(200, self.world.truth())
            case ("POST", "_faults"):
                return self._replan(body)
        if self._secret is not None and call.headers.get("authorization") != f"Bearer {self._secret}":
            return _json(401, {"error": {"message": "the credential is missing or wrong"}})
        match (call.method, *call.path):
            case ("POST", "v1", "jobs"):
                return await self._submit(call, body)
            case ("GET", "v1", "jobs"):
                return self._list(call)
            case ("GET", "v1", "jobs", job_id):
                return self._observe(call, job_id)
            case ("DELETE", "v1", "jobs", job_id):
                return self._cancel(job_id)
            case ("GET", "files", job_id, number, name):
                return self._file(call, job_id, number, name)
        return _json(404, {"error": {"message": "no such route"}})

    def _replan(self, body: bytes) -> Reply:
        try:
            self.world.plan = Plan.parse(body, source="of this request")
        except UsageError as error:
            return _json(422, {"error": {"message": str(error)}})
        return _json(200, {"plan": msgspec.to_builtins(self.world.plan)})

    async def _submit(self, call: Call, body: bytes) -> Reply:
        reference = call.headers.get(_REFERENCE)
        key = call.headers.get("idempotency-key")
        if key is not None and (repeated := self.world.repeated(key, reference, body)) is not None:
            status, job_id = repeated
            if job_id is None:
                return _json(status, {"error": {"message": "the key was sent with another body"}})
            return _json(status, {"job_id": job_id, "status": self.world.jobs[job_id].state})
        try:
            faults = self.world.drawn(reference, body)
        except ValueError as error:
            self.world.posted(reference, body, None)["status"] = 422
            return _json(422, {"error": {"message": str(error)}})
        fault = next(iter(faults & OF_SUBMISSIONS), None)
        post = self.world.posted(reference, body, fault)
        if fault is Fault.LATE_ACCEPTANCE:
            await asyncio.sleep(self.world.plan.late_s)
        job = self.world.same(post) if fault is Fault.SAME_JOB else None
        if job is None and fault not in WITHOUT_JOB:
            job = self.world.create(post, faults - OF_SUBMISSIONS)
            if key is not None:
                self.world.keys[key] = (str(post["body_sha256"]), job.job_id)
        reply = self._without_job(call, fault) if job is None else self._with_job(job, fault)
        post["status"] = None if reply.silent else reply.status
        return reply

    def _without_job(self, call: Call, fault: Fault | None) -> Reply:
        match fault:
            case Fault.BAD_GATEWAY:
                return _json(502, {"error": {"message": "upstream failed"}})
            case Fault.RATE_LIMITED:
                wait = (("Retry-After", str(self.world.plan.retry_after_s)),)
                return _json(429, {"error": {"message": "too many requests"}}, headers=wait)
            case Fault.UNPROCESSABLE:
                return _json(422, {"error": {"message": "the payload can't be used"}})
            case Fault.REDIRECT:
                return Reply(status=307, headers=(("Location", f"http://{call.host}/v1/jobs"),))
            case _:
                return Reply(silent=True)

    def _with_job(self, job: Job, fault: Fault | None) -> Reply:
        accepted = _json(201, {"job_id": job.job_id, "status": job.state})
        match fault:
            case Fault.CUT_BEFORE_ANSWER:
                return Reply(silent=True)
            case Fault.BAD_GATEWAY_WITH_JOB:
                return _json(502, {"error": {"message": "upstream failed", "job_id": job.job_id}})
            case Fault.ID_ELSEWHERE:
                return _json(201, {"data": {"job_id": job.job_id, "status": job.state}})
            case Fault.ERROR_AFTER_CREATION:
                return _json(500, {"error": {"message": "internal error"}})
            case Fault.TRUNCATED_ANSWER:
                return replace(accepted, cut_after=len(accepted.body) // 2)
            case Fault.SLOW_DRIP:
                return replace(accepted, drip_s=self.world.plan.drip_s)
            case _:
                return accepted

    def _list(self, call: Call) -> Reply:
        asked = parse_qs(call.query)
        limit, start = (
            int(asked.get(name, [default])[0]) for name, default in (("limit", "50"), ("cursor", "0"))
        )
        jobs = [job for job in self.world.jobs.values() if job.reference not in self.world.plan.unlisted]
        page = [
            {"job_id": job.job_id, "client_reference": job.reference or "", "status": job.state}
            for job in jobs[start : start + limit]
        ]
        following = start + limit if start + limit < len(jobs) else None
        return _json(200, {"jobs": page, "next": None if following is None else str(following)})

    def _observe(self, call: Call, job_id: str) -> Reply:
        self.world.gets[job_id] += 1
        job = self.world.jobs.get(job_id)
        if job is None:
            return _json(404, {"error": {"message": "no such job"}})
        job.polls += 1
        seen: dict[str, Any] = {"job_id": job.job_id, "status": job.state}
        if job.state in {"succeeded", "failed", "cancelled"}:
            # As a number: a client that reads money through a float would show it.
            seen["cost"] = msgspec.Raw(job.charged.encode())
        if job.state == "succeeded":
            # The number of the observation makes each URL a new one, as a signature would.
            files = f"http://{call.host}/files/{job.job_id}"
            seen["outputs"] = [
                {
                    "url": f"{files}/{number}/{file_name(number)}?seen={job.polls}",
                    "name": file_name(number),
                    "content_type": "application/octet-stream",
                    "size": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
                for number, content in enumerate(job.files, start=1)
            ]
        return _json(200, seen)

    def _cancel(self, job_id: str) -> Reply:
        self.world.cancels[job_id] += 1
        job = self.world.jobs.get(job_id)
        if job is None:
            return _json(404, {"error": {"message": "no such job"}})
        if self.world.plan.cancels == "refused" or not self.world.cancel(job):
            return _json(409, {"error": {"message": f"the job is {job.state}"}})
        if self.world.plan.cancels == "cut":
            return Reply(silent=True)
        return _json(202, {"job_id": job.job_id, "status": job.state})

    def _file(self, call: Call, job_id: str, number: str, name: str) -> Reply:
        job = self.world.jobs.get(job_id)
        index = int(number) - 1 if number.isascii() and number.isdigit() else -1
        if job is None or not 0 <= index < len(job.files) or name != file_name(index + 1):
            return self._served(job_id, name, Reply(status=404))
        job.downloads[index] += 1
        content = Reply(
            headers=(("Content-Type", "application/octet-stream"),),
            body=job.files[index],
        )
        match next(iter(job.faults & OF_FILES), None):
            case Fault.OUTPUT_EXPIRED as fault:
                self.world.fired[fault] += 1
                return self._served(job_id, name, Reply(status=410))
            case Fault.OUTPUT_EXPIRED_ONCE as fault if call.query == f"seen={job.polls_needed}":
                self.world.fired[fault] += 1
                return self._served(job_id, name, Reply(status=410))
            case Fault.OUTPUT_SHORT_LIVED as fault if (
                call.query == f"seen={job.polls_needed}"
                or job.given_out.setdefault(call.query, index) != index
            ):
                self.world.fired[fault] += 1
                return self._served(job_id, name, Reply(status=410))
            case Fault.OUTPUT_CUT as fault if job.downloads[index] == 1:
                self.world.fired[fault] += 1
                return self._served(job_id, name, replace(content, cut_after=len(content.body) // 2))
        return self._served(job_id, name, content)

    def _served(self, job_id: str, name: str, reply: Reply) -> Reply:
        self.world.downloads.append(
            {"job_id": job_id, "name": name, "status": reply.status, "whole": reply.cut_after is None}
        )
        return reply


def _json(status: int, content: dict[str, Any], *, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    return Reply(
        status=status,
        headers=(("Content-Type", "application/json"), *headers),
        body=msgspec.json.encode(content),
    )
