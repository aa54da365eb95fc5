"""What whoever runs the service may set: in a TOML file, or in the environment, which wins."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hubbub.primitives.envelope import read_file
from hubbub.primitives.errors import Refused, explain

#: As a browser names the origin of a page.
_ORIGIN = r"^https?://[a-z0-9.\-]+(:[0-9]{1,5})?$|^https?://\[[0-9a-f:]+\](:[0-9]{1,5})?$"


class Settings(BaseModel):
    """Limits that keep one process well, whatever is sent to it. They hold from one start to the next."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    largest_body: int = Field(8 << 20, gt=0, description="bytes of an upload's body at most")
    most_reports: int = Field(200_000, gt=0, description="reports in one batch at most")
    unfinished: int = Field(
        4 << 30, gt=0, description="bytes of shuffled crowds that wait for their last parts, then 503"
    )
    queue: int = Field(2000, gt=0, description="batches that may wait for the store, then 429")
    memory: int = Field(256 << 20, gt=0, description="bytes of uploads held in memory at a time, then 429")
    memory_per_token: int = Field(128 << 20, gt=0, description="the same, of uploads with one token")
    uploads_per_token: int = Field(
        512, gt=0, description="batches of one token that wait, or bodies of it on their way"
    )
    reports_per_token: int = Field(
        0,
        ge=0,
        description="reports of a task that one token may send in a period (or seeds it may ask for); 0: any number",
    )
    patience: float = Field(30.0, gt=0, description="seconds that the store may take for a batch, then 503")
    body_grace: float = Field(15.0, gt=0, description="seconds before a body has to keep its pace, then 408")
    slowest_body: int = Field(32 << 10, gt=0, description="bytes that must come in each second after that")
    header_seconds: float = Field(10.0, gt=0, description="seconds for the head of a request, then closed")
    idle_seconds: float = Field(75.0, gt=0, description="seconds of silence between requests, then closed")
    stall_seconds: float = Field(60.0, gt=0, description="seconds that an answer may be left unread")
    connections: int = Field(4096, gt=0, description="connections at a time; fewer if files are few")
    fold_every: float = Field(1.0, gt=0, description="seconds between folds in the background")
    retention: int = Field(
        0,
        ge=0,
        description="days for which periods are kept apart, then merged into longer ones; 0: for ever",
    )
    check_every: float = Field(3600.0, gt=0, description="seconds between looks at every page of the store")
    open_metrics: bool = Field(
        False, description="name tasks to everybody in /metrics and /readyz, not only to analysts' tokens"
    )
    origins: tuple[str, ...] = Field(
        (),
        description="addresses like https://stats.example whose login form is taken, besides the one asked for",
    )

    report_origins: tuple[Annotated[str, Field(pattern=_ORIGIN)], ...] = Field(
        (),
        description="addresses like https://app.example whose pages may send reports and fetch tasks and keys",
    )
    public_reports: int = Field(
        0, ge=0, description="reports a minute that one address may send without a token; 0: none may"
    )

    @field_validator("origins", "report_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """In the environment they are separated by spaces."""
        return value.split() if isinstance(value, str) else value


def load_settings(path: Path | None) -> tuple[Settings, dict[str, str]]:
    """The settings of a file and of the environment (HUBBUB_QUEUE for `queue`), and where each comes from."""
    given: dict[str, object] = {}
    sources = dict.fromkeys(Settings.model_fields, "default")
    if path is not None:
        try:
            given.update(tomllib.loads(read_file(path).decode()))
        except (ValueError, RecursionError) as problem:
            if isinstance(problem, Refused):
                raise
            raise Refused(f"{path} is not a settings file: {problem}.") from None
        sources.update(dict.fromkeys(given, str(path)))
    for name in Settings.model_fields:
        variable = f"HUBBUB_{name.upper()}"
        if variable in os.environ:
            given[name], sources[name] = os.environ[variable], variable
    try:
        return Settings(**given), sources
    except ValidationError as problem:
        where = sources.get(str(problem.errors()[0]["loc"][0]), "the settings")
        raise Refused(f"A setting in {where} cannot be used: {explain(problem)}") from None
