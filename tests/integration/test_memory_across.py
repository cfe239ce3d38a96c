"""What one conversation was told, another one knows: of the same principal, and of nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai

from tests.fakes.openai_server import FakeOpenAI
from tests.home import API_KEY, Home, wait_until

FACT = "My cat is called Schrödinger and the vet is 张伟诊所 on Kastanienallee 7"


def client_of(home: Home, key: str = API_KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{home.url}/v1", api_key=key, max_retries=0, timeout=30)


def say(client: openai.OpenAI, text: str, conversation: str) -> str:
    answer = client.chat.completions.create(
        model="homeagent",
        messages=[{"role": "user", "content": text}],
        extra_body={"metadata": {"conversation": conversation}},
    )
    return answer.choices[0].message.content or ""


def test_a_fact_is_recalled_elsewhere_200_turns_later_after_a_restart(home: Home, far_end: FakeOpenAI) -> None:
    with home:
        added = home.command("principal", "add", "anna", "--json")
        assert added.returncode == 0, added.stderr
        import json

        annas_key = json.loads(added.stdout)["key"]
        with client_of(home) as owner:
            say(owner, FACT, "kitchen")

            def chatter(number: int) -> None:
                say(owner, f"small talk number {number} about the weather in spring", f"other-{number % 20}")

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(chatter, range(200)))
    home.process = None
    with home, client_of(home) as owner, client_of(home, annas_key) as anna:
        answer = say(owner, "recall: what is my cat called?", "a new one")
        assert "Schrödinger" in answer
        assert "张伟" in say(owner, "recall: 张伟诊所 在哪里?", "another new one")
        assert "Schrödinger" not in say(anna, "recall: what is my cat called?", "kitchen")
        status = home.command("status", "--json")
        assert status.returncode == 0, status.stderr


def test_no_memory_is_not_remembered(home: Home) -> None:
    with home, client_of(home) as owner:
        owner.chat.completions.create(
            model="homeagent",
            messages=[{"role": "user", "content": "the safe code is zebra-4711"}],
            extra_body={"metadata": {"conversation": "secret", "no_memory": True}},
        )
        assert "zebra-4711" not in say(owner, "recall: what is the safe code?", "elsewhere").replace(
            "recall: what is the safe code?", ""
        )
        assert wait_until(lambda: home.get("/healthz")[0] == 200)
