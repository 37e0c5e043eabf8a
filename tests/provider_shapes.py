"""Small providers of the vendors' shapes, written from the vendors' documentation and published clients and
from no profile: routes, headers, words and bodies as they are told there. Each knows what it really made.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Self

from consumers.providers.simulator_http import Call, Reply, serve_connection

KEY = "sk-shape-2f8c1d7b9e40"
Routes = Callable[["Shape", Call, bytes], Reply | None]


def reply(status: int, content: Any = None, **headers: str) -> Reply:
    body = b"" if content is None else json.dumps(content).encode()
    return Reply(status=status, headers=(("Content-Type", "application/json"), *headers.items()), body=body)


class Shape:
    """A running provider. `polls`: observations until a job has ended. `refuse`: a POST is answered with it
    and makes nothing. `lose_answers`: POSTs that do their work in silence. `fails`: jobs end badly."""

    def __init__(self, routes: Routes, *, prefix: str = "") -> None:
        self.routes = routes
        self.prefix = prefix
        self.posts: list[tuple[Call, bytes]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, tuple[bytes, str]] = {}
        self.refuse: Reply | None = None
        self.fails = False
        self.lose_answers = 0
        self.polls = 2
        self.url = ""

    def make(self, **more: Any) -> str:
        job_id = f"{len(self.jobs) + 1:08d}-7a1c-4f6e-9b2d-0123456789ab"
        self.jobs[job_id] = {"id": job_id, "seen": 0, "cancelled": False, **more}
        return job_id

    def seen(self, job_id: str) -> dict[str, Any] | None:
        """The job, observed once more; `state` is waiting, running, done, failed or cancelled."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        job["seen"] += 1
        ended = "failed" if self.fails else "done"
        job["state"] = "cancelled" if job["cancelled"] else ended if job["seen"] >= self.polls else "running"
        return job

    async def _answer(self, call: Call, body: bytes) -> Reply:
        if call.method == "POST" and call.path[-1] != "cancel":
            self.posts.append((call, body))
        made = self.routes(self, call, body) or reply(404, {"detail": "no such route"})
        if call.method == "POST" and self.lose_answers:
            self.lose_answers -= 1
            return Reply(silent=True)
        return made

    def __enter__(self) -> Self:
        listening = threading.Event()

        async def serve() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await serve_connection(reader, writer, handler=self._answer, refuse_to_read=lambda _: False)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            async with server:
                self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{self.prefix}"
                listening.set()
                await self._stop.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        assert listening.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


def _bearer(call: Call, scheme: str = "Bearer") -> bool:
    return call.headers.get("authorization") == f"{scheme} {KEY}"


def replicate(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """Predictions: 201 with id, status and urls; cancel is a POST; throttled with 429 and a detail."""
    if not _bearer(call):
        return reply(
            401, {"title": "Unauthenticated", "detail": "You did not pass a valid token", "status": 401}
        )
    words = {"running": "processing", "done": "succeeded", "failed": "failed", "cancelled": "canceled"}

    def told(job: dict[str, Any], word: str) -> dict[str, Any]:
        done = word == "succeeded"
        url = f"https://replicate.delivery/pbxt/{job['id']}/out.mp4"
        return {
            "id": job["id"],
            "version": job["version"],
            "status": word,
            "input": {},
            "output": (url if job["single"] else [url]) if done else None,
            "error": "CUDA out of memory" if word == "failed" else None,
            "metrics": {"predict_time": 4.2} if done else None,
        }

    match (call.method, *call.path):
        case ("POST", "v1", "predictions"):
            if shape.refuse:
                return shape.refuse
            sent = json.loads(body)
            if "version" not in sent or "input" not in sent:
                return reply(422, {"title": "Input validation failed", "detail": "version is required"})
            job_id = shape.make(version=sent["version"], single=sent["input"].get("single", False))
            return reply(201, told(shape.jobs[job_id], "starting"))
        case ("GET", "v1", "predictions", job_id):
            job = shape.seen(job_id)
            return (
                reply(404, {"detail": "Not found."})
                if job is None
                else reply(200, told(job, words[job["state"]]))
            )
        case ("POST", "v1", "predictions", job_id, "cancel") if job_id in shape.jobs:
            shape.jobs[job_id]["cancelled"] = True
            return reply(200, told(shape.jobs[job_id], "canceled"))
    return None


def fal(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """The queue: submitted under the model's whole path, asked for under its first two parts; the result is
    another GET, and what failed is COMPLETED with an error."""
    if not _bearer(call, "Key"):
        return reply(401, {"detail": "Cannot access application"})
    match (call.method, *call.path):
        case ("POST", "fal-ai", "flux", "dev"):
            if shape.refuse:
                return shape.refuse
            job_id = shape.make()
            at = f"{shape.url}/fal-ai/flux/requests/{job_id}"
            return reply(
                200,
                {
                    "status": "IN_QUEUE",
                    "request_id": job_id,
                    "response_url": at,
                    "status_url": f"{at}/status",
                    "cancel_url": f"{at}/cancel",
                    "queue_position": 0,
                },
            )
        case ("GET", "fal-ai", "flux", "requests", job_id, "status"):
            job = shape.seen(job_id)
            if job is None:
                return reply(404, {"detail": "Request not found"})
            state = job["state"]
            if state == "running":
                return reply(202, {"status": "IN_PROGRESS", "request_id": job_id, "logs": None})
            told = {
                "status": "COMPLETED",
                "request_id": job_id,
                "logs": None,
                "metrics": {"inference_time": 1.0},
            }
            if state != "done":
                told |= {"error": f"the request was {state}", "error_type": "request_failed"}
            return reply(200, told)
        case ("GET", "fal-ai", "flux", "requests", job_id) if job_id in shape.jobs:
            if shape.jobs[job_id].get("state") != "done":
                return reply(400, {"detail": "Request is still in progress"})
            image = {
                "url": f"https://v3.fal.media/files/{job_id}.jpeg",
                "content_type": "image/jpeg",
                "file_name": None,
                "file_size": 91_234,
                "width": 1024,
                "height": 768,
            }
            return reply(200, {"images": [image], "seed": 42, "has_nsfw_concepts": [False]})
        case ("PUT", "fal-ai", "flux", "requests", job_id, "cancel") if job_id in shape.jobs:
            shape.jobs[job_id]["cancelled"] = True
            return reply(202, {"status": "CANCELLATION_REQUESTED"})
    return None


def runway(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """Tasks: the version header is required; DELETE answers 204, and the task is gone then."""
    if not _bearer(call):
        return reply(401, {"error": "The API key you provided is not valid."})
    if call.headers.get("x-runway-version") != "2024-11-06":
        return reply(400, {"error": "X-Runway-Version is missing or unknown"})
    words = {"running": "RUNNING", "done": "SUCCEEDED", "failed": "FAILED"}
    match (call.method, *call.path):
        case ("POST", "v1", "text_to_video"):
            if shape.refuse:
                return shape.refuse
            if "promptText" not in json.loads(body):
                return reply(400, {"error": "Validation of body failed", "issues": []})
            return reply(200, {"id": shape.make(), "estimatedCost": {"credits": 60}})
        case ("GET", "v1", "tasks", task_id):
            task = shape.seen(task_id)
            if task is None or task["cancelled"]:
                return reply(404, {"error": "Task not found"})
            word = words[task["state"]]
            told: dict[str, Any] = {"id": task_id, "status": word, "createdAt": "2026-12-01T00:00:00.000Z"}
            if word == "SUCCEEDED":
                told |= {
                    "cost": {"credits": 50},
                    "output": [f"https://dnznrvs05pmza.cloudfront.net/{task_id}.mp4?_jwt=x"],
                }
            elif word == "FAILED":
                told |= {
                    "cost": {"credits": 0},
                    "failure": "An error",
                    "failureCode": "INTERNAL.BAD_OUTPUT.CODE01",
                }
            else:
                told |= {"estimatedCost": {"credits": 60}, "progress": 0.4}
            return reply(200, told)
        case ("DELETE", "v1", "tasks", task_id) if task_id in shape.jobs:
            shape.jobs[task_id]["cancelled"] = True
            return reply(204)
    return None


def luma(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """Generations under /dream-machine/v1: a state, and the assets by kind with the others null."""
    if not _bearer(call):
        return reply(403, {"detail": "Not authenticated"})
    words = {"running": "dreaming", "done": "completed", "failed": "failed"}
    match (call.method, *call.path[2:]):
        case ("POST", "generations", "video"):
            if shape.refuse:
                return shape.refuse
            job_id = shape.make()
            return reply(201, {"id": job_id, "state": "queued", "assets": None, "failure_reason": None})
        case ("GET", "generations", job_id):
            job = shape.seen(job_id)
            if job is None or job["cancelled"]:
                return reply(404, {"detail": "Generation not found"})
            word = words[job["state"]]
            video = (
                f"https://storage.cdn-luma.com/dream_machine/{job_id}/video.mp4"
                if word == "completed"
                else None
            )
            assets = {"video": video, "image": None, "progress_video": None}
            return reply(200, {"id": job_id, "state": word, "assets": assets, "failure_reason": None})
        case ("DELETE", "generations", job_id) if job_id in shape.jobs:
            shape.jobs[job_id]["cancelled"] = True
            return reply(204)
    return None


def sync_so(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """Generations: x-api-key, and an Idempotency-Key that makes no second one with the same inputs."""
    if call.headers.get("x-api-key") != KEY:
        return reply(401, {"statusCode": 401, "message": "Unauthorized"})
    words = {"running": "PROCESSING", "done": "COMPLETED", "failed": "FAILED"}
    match (call.method, *call.path):
        case ("POST", "v2", "generate"):
            if shape.refuse:
                return shape.refuse
            key = call.headers.get("idempotency-key")
            if key is not None and key in shape.keys:
                sent, job_id = shape.keys[key]
                if sent != body:
                    return reply(409, {"statusCode": 409, "errorCode": "IDEMPOTENCY_KEY_CONFLICT"})
                return reply(201, {"id": job_id, "status": "PENDING", "outputUrl": None})
            job_id = shape.make()
            if key is not None:
                shape.keys[key] = (body, job_id)
            return reply(201, {"id": job_id, "status": "PENDING", "outputUrl": None})
        case ("GET", "v2", "generate", job_id):
            job = shape.seen(job_id)
            if job is None:
                return reply(404, {"statusCode": 404, "message": "Generation not found"})
            word = words[job["state"]]
            url = (
                f"https://api.sync.so/v2/generations/{job_id}/result?token=t" if word == "COMPLETED" else None
            )
            return reply(200, {"id": job_id, "status": word, "outputUrl": url, "error": None})
    return None


def kling(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """Tasks in an envelope of code, message, request_id and data; found by their external_task_id too."""

    def wrapped(status: int, code: int, message: str, data: Any = None) -> Reply:
        told = {"code": code, "message": message, "request_id": "9984d27b-a408-4073-ae28-17ca6a13622d"}
        return reply(status, told if data is None else {**told, "data": data})

    if not _bearer(call):
        return wrapped(401, 1002, "Authorization is invalid")
    words = {"running": "processing", "done": "succeed", "failed": "failed"}

    def told(job: dict[str, Any], word: str) -> dict[str, Any]:
        data = {
            "task_id": job["id"],
            "task_status": word,
            "task_info": {"external_task_id": job["external"]},
            "created_at": 1774805076166,
            "updated_at": 1774805076166,
        }
        if word == "succeed":
            video = {"id": "v1", "url": f"https://cdn.klingai.com/{job['id']}.mp4", "duration": "5"}
            data["task_result"] = {"videos": [video]}
        return data

    match (call.method, *call.path):
        case ("POST", "v1", "videos", "text2video"):
            if shape.refuse:
                return shape.refuse
            external = json.loads(body).get("external_task_id", "")
            if external and any(job["external"] == external for job in shape.jobs.values()):
                return wrapped(400, 1201, "external_task_id is not unique")
            job_id = shape.make(external=external)
            return wrapped(200, 0, "SUCCEED", told(shape.jobs[job_id], "submitted"))
        case ("GET", "v1", "videos", "text2video"):
            return wrapped(200, 0, "SUCCEED", [told(job, "processing") for job in shape.jobs.values()])
        case ("GET", "v1", "videos", "text2video", job_id):
            job = shape.seen(job_id)
            if job is None:
                return wrapped(404, 1203, "task not found")
            return wrapped(200, 0, "SUCCEED", told(job, words[job["state"]]))
    return None


SHAPES: dict[str, tuple[Routes, str, dict[str, Any]]] = {
    "replicate": (replicate, "", {"version": "5c7d5dc6", "input": {"prompt": "a heron"}}),
    "fal-queue": (fal, "", {"prompt": "a heron"}),
    "runway": (runway, "", {"model": "veo3.1", "promptText": "a heron", "ratio": "1280:720"}),
    "luma": (luma, "/dream-machine/v1", {"model": "ray-2", "prompt": "a heron"}),
    "sync-so": (sync_so, "", {"model": "lipsync-2", "input": []}),
    "kling": (kling, "", {"model_name": "kling-v3", "prompt": "a heron", "duration": "5"}),
}
"""By profile: its shape, the prefix of the URL that it is set to, and a payload."""
