"""The user's side: the published port, and people who talk and do not give up."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the HTTP status (0: nobody was there), and the text."""

    status: int
    text: str


class Client:
    """Talks to the OpenAI-compatible API.

    :param url: where it is published
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = ""

    def is_ready(self) -> bool:
        """Whether all services and plugins run."""
        return self._request("/readyz")[0] == 200

    def say(self, text: str, conversation: str, *, key: str | None = None) -> Answer:
        """Send a message once; the same message is the same delivery, however often it is sent."""
        body = {
            "model": "homeagent",
            "messages": [{"role": "user", "content": text}],
            "metadata": {"conversation": conversation},
        }
        delivery = hashlib.sha256(f"{conversation}/{text}".encode()).hexdigest()
        headers = {"Authorization": f"Bearer {key or self.key}", "Idempotency-Key": delivery}
        status, answer = self._request("/v1/chat/completions", body, headers)
        if status != 200:
            return Answer(status, str(answer)[:300])
        return Answer(status, answer["choices"][0]["message"]["content"])

    def say_until_answered(self, text: str, conversation: str) -> Answer:
        """Send a message until it has an answer.

        :raises AssertionError: it had none for :data:`PATIENCE_S`
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.say(text, conversation)
            if answer.status == 200:
                return answer
            assert time.monotonic() < deadline, f"{text!r} was never answered; last: {answer}"
            time.sleep(0.2)

    def _request(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None


class Talker(threading.Thread):
    """Sends one message after another, and repeats each until it is answered."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.answers: dict[str, Answer] = {}
        self.problem: AssertionError | None = None
        self._client = client
        self._is_told_to_stop = threading.Event()

    def run(self) -> None:
        """Talk until told to stop."""
        number = 0
        try:
            while not self._is_told_to_stop.is_set():
                number += 1
                text = f"message {number} of {self.name}"
                self.answers[text] = self._client.say_until_answered(text, self.name)
        except AssertionError as error:
            self.problem = error

    def finish(self) -> None:
        """Let it have its last answer.

        :raises AssertionError: a message was never answered
        """
        self._is_told_to_stop.set()
        self.join(PATIENCE_S + 30)
        if self.problem is not None:
            raise self.problem
        assert not self.is_alive(), f"{self.name} still waits for an answer"
