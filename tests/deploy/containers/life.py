"""Checks of a life in containers: talk, kill, restart, take down, bring up."""

from __future__ import annotations

from typing import Any

from tests.deploy.containers.client import Answer, Talker
from tests.deploy.containers.stack import SERVICES, Stack
from tests.home import wait_until

TALKERS = 2
REMEMBERED = "My bicycle lock opens with 4711 and stands in Überlingen, 在湖边."
_AFTER = 2
"""How many more answers each talker has to get once the victim is back."""


def someone_can_chat_through_the_published_port(stack: Stack) -> None:
    """In English and Chinese; the model is asked with the key that came as a file."""
    for text in ("hello from outside", "你好，你在容器里吗？"):
        answer = stack.client.say(text, "first")
        assert answer.status == 200 and text in answer.text, answer


def nobody_can_chat_without_a_key(stack: Stack) -> None:
    """A wrong key is no better."""
    answer = stack.client.say("let me in", "stranger", key="ha-" + "x" * 43)
    assert answer.status == 401, answer


def tools_of_plugins_work(stack: Stack) -> None:
    """The model calls one, and sees its result."""
    answer = stack.client.say('call tool echo {"text": "there and back"}', "tools")
    assert answer.status == 200 and "there and back" in answer.text, answer


def the_command_works_inside(stack: Stack) -> None:
    """As the operator in the kernel's container, as a person in that of the plugins."""
    assert "is ready" in stack.execute("kernel", "homeagent", "status")
    assert "from the terminal" in stack.execute("plugins", "homeagent", "chat", "-m", "from the terminal")
    assert "0 failed" in stack.execute("kernel", "homeagent", "doctor")


def every_service_may_be_killed_while_people_talk(stack: Stack) -> None:
    """kill -9 of its process; the engine starts the container again."""
    for service in SERVICES:
        _talk_through(stack, f"kill-{service}", service, stack.kill)


def every_service_may_be_restarted_while_people_talk(stack: Stack) -> None:
    """As an update does it."""
    for service in SERVICES:
        _talk_through(stack, f"restart-{service}", service, stack.restart)


def _talk_through(stack: Stack, name: str, victim: str, act: Any) -> None:
    """Let people talk while something happens to a service; the others must not be started again."""
    others = {service: stack.started_at(service) for service in SERVICES if service != victim}
    talkers = [Talker(stack.client, f"{name}-{number}") for number in range(TALKERS)]
    for talker in talkers:
        talker.start()
    try:
        wait_until(lambda: all(talker.answers for talker in talkers), 30, "the first answers")
        act(victim)
        stack.wait_ready()
        counts = [len(talker.answers) for talker in talkers]
        wait_until(
            lambda: all(len(talker.answers) >= n + _AFTER for talker, n in zip(talkers, counts, strict=True)),
            60,
            "answers after it came back",
        )
    finally:
        for talker in talkers:
            talker.finish()
    assert {service: stack.started_at(service) for service in others} == others, "another service was restarted too"
    for talker in talkers:
        _check_answers(stack, talker.name, talker.answers)


def _check_answers(stack: Stack, conversation: str, answers: dict[str, Answer]) -> None:
    """Every message has its own answer, and the journal has each message once."""
    wrong = {text: answer for text, answer in answers.items() if text not in answer.text}
    assert not wrong, f"wrong answers: {wrong}"
    body = {"channel": "api", "conversation": f"owner/{conversation}", "principal": "owner", "limit": 1000}
    turns = [(turn["text"], turn["outcome"]) for turn in stack.call("kernel.history", body)["turns"]]
    assert sorted(turns) == sorted((text, "answer") for text in answers), f"{len(turns)} turns, {len(answers)} answers"


def everything_comes_back_with_its_memory(stack: Stack) -> None:
    """Down removes the containers, up makes new ones of the same volumes."""
    assert stack.client.say(REMEMBERED, "before").status == 200
    _wait_remembered(stack)
    finished = stack.call("kernel.status")["turns"]["finished"]
    containers = {service: stack.container(service) for service in SERVICES}
    stack.down()
    stack.up()
    assert not set(containers.values()) & {stack.container(service) for service in SERVICES}, "the same containers"
    assert stack.call("kernel.status")["turns"]["finished"] == finished
    _wait_remembered(stack)
    answer = stack.client.say("What do you remember about the bicycle lock?", "after")
    assert answer.status == 200 and REMEMBERED in answer.text, answer


def _wait_remembered(stack: Stack) -> None:
    """Wait until the memory holds as many events as the journal holds finished turns."""

    def counts() -> tuple[int, int]:
        return stack.call("memory.stats")["events"], stack.call("kernel.status")["turns"]["finished"]

    try:
        wait_until(lambda: len(set(counts())) == 1, 30, "every turn in memory")
    except AssertionError as error:
        raise AssertionError(f"{error}: {counts()} (events, turns)") from None


TALK = (
    someone_can_chat_through_the_published_port,
    nobody_can_chat_without_a_key,
    tools_of_plugins_work,
    the_command_works_inside,
)
TROUBLE = (
    every_service_may_be_killed_while_people_talk,
    every_service_may_be_restarted_while_people_talk,
    everything_comes_back_with_its_memory,
)
