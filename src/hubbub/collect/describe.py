"""The upload routes in the OpenAPI description; they are bare routes that FastAPI knows nothing of."""

from __future__ import annotations

from typing import Any

_TASK = {
    "name": "task",
    "in": "path",
    "required": True,
    "description": "Digest of the task, 32 hexadecimal digits.",
    "schema": {"type": "string"},
}
_BATCH = {
    "name": "Hubbub-Batch",
    "in": "header",
    "required": True,
    "description": "An id of the sender's choice, new for every batch and the same when it is sent again.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
}
_PART = {
    "name": "Hubbub-Part",
    "in": "header",
    "required": True,
    "description": "Number of the part, the first being 1, how many parts there are, and items in all of them.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,6}/[0-9]{1,6}/[0-9]{1,12}$"},
}
_LABELS = {
    "name": "Hubbub-Labels",
    "in": "header",
    "description": "The labels of all reports in the batch, as country=de,version=2, if the task has some.",
    "schema": {"type": "string", "maxLength": 1000},
}
_PERIOD = {
    "name": "Hubbub-Period",
    "in": "header",
    "description": "The period that the reports were made in, as 2026-W46; left out: the one of today.",
    "schema": {"type": "string", "maxLength": 20},
}
_REPORTS = {
    "name": "Hubbub-Reports",
    "in": "header",
    "description": "How many reports the nonce is for; left out: one.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1000},
}
_COUNT = {"type": "integer", "minimum": 0}
_ANSWER = {
    "type": "object",
    "required": ["batch", "accepted", "rejected", "repeated"],
    "properties": {
        "batch": {"type": "string"},
        "accepted": _COUNT,
        "rejected": _COUNT,
        "repeated": {"type": "boolean"},
        "problems": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "properties": {"index": _COUNT, "reason": {"type": "string"}},
            },
        },
    },
}
_HANDED_OUT = {
    "type": "object",
    "required": ["batch", "nonce", "reports"],
    "properties": {"batch": {"type": "string"}, "nonce": {"type": "string"}, "reports": _COUNT},
}
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "batch": {"type": "string", "description": "The batch that an upload's problem is about."},
    },
}
_STATUSES = {
    "400": "The batch id is missing or malformed.",
    "401": "No valid token.",
    "403": "The token's role does not allow this, or estimates are withheld.",
    "404": "No such task.",
    "408": "The body did not arrive in time.",
    "409": "Another task's reports, or a batch id that was used before.",
    "411": "No Content-Length.",
    "413": "Too large.",
    "422": "Not a batch, or not understood.",
    "429": "Busy: send the same batch again after Retry-After seconds.",
    "503": "The store does not answer: try again after Retry-After seconds.",
}
_READING = ("401", "403", "404", "409", "422", "503")


def add_uploads(schema: dict[str, Any]) -> dict[str, Any]:
    """The description with upload routes, bearer tokens and problems."""
    parts = schema.setdefault("components", {})
    parts["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    parts.setdefault("schemas", {})["Problem"] = _PROBLEM
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/tasks") and "requestBody" not in operation:
                operation["security"] = [{"bearer": []}]
                operation["responses"].update(_problems(_READING))
            elif path == "/readyz":
                operation["responses"].update(_problems(("503",)))
    for version, name, words, *headers in (
        ("v1", "reports", "A batch of reports.", _LABELS, _PERIOD),
        ("v1", "shuffled", "A shuffled crowd of sealed reports from the time before they named their key."),
        ("v2", "shuffled", "A shuffled crowd of sealed reports."),
        (
            "v3",
            "shuffled",
            "A part of a shuffled crowd of sealed reports; it counts when all parts are there.",
            _PART,
        ),
    ):
        sent = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        made = _operation(f"upload_{name}_{version}", words, headers, "The batch is on disk.", _ANSWER)
        made["requestBody"] = {"required": True, "content": sent}
        schema["paths"][f"/{version}/tasks/{{task}}/{name}"] = {"post": made}
    words = "A nonce, for tasks whose seeds come from here: the id of the next batch."
    asked = _operation("ask_nonce", words, [_REPORTS], "The nonce.", _HANDED_OUT)
    schema["paths"]["/v1/tasks/{task}/nonces"] = {"post": asked}
    return schema


def _operation(
    name: str, words: str, headers: list[Any], done: str, answer: dict[str, Any]
) -> dict[str, Any]:
    return {
        "summary": words,
        "operationId": name,
        "security": [{"bearer": []}],
        "parameters": [_TASK, _BATCH, *headers],
        "responses": {
            "200": {"description": done, "content": {"application/json": {"schema": answer}}},
            **_problems(tuple(_STATUSES)),
        },
    }


def _problems(statuses: tuple[str, ...]) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _STATUSES[status], "content": content} for status in statuses}
