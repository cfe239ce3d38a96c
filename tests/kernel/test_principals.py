"""Who may speak to the agent."""

import asyncio
import re

import pytest

from homeagent_sdk.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from kernel.principals import Principals


@pytest.fixture
async def principals(database):
    return await loaded(database)


async def loaded(database) -> Principals:
    principals = Principals(database, wall_clock=lambda: 1_000.0)
    await principals.load()
    return principals


async def test_the_owner_is_there_from_the_start(principals):
    (owner,) = principals.list()
    assert (owner.principal, owner.role, owner.keys) == ("owner", "owner", 0)
    assert owner.created > 1_700_000_000
    assert principals.exists("owner")
    assert not principals.exists("Owner")


async def test_a_key_is_known_after_a_restart_and_stored_as_a_hash_only(principals, database, tmp_path):
    key = await principals.key_new("owner")
    assert re.fullmatch(r"ha-[A-Za-z0-9_-]{43}", key)
    assert (await loaded(database)).authenticate(key).principal == "owner"
    await database.close()
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes()
        assert key.removeprefix("ha-").encode() not in file.read_bytes()


@pytest.mark.parametrize("key", ["", "ha-", "ha-" + "x" * 43, "ключ", "x" * 100_000, "\udcff"])
async def test_a_key_that_is_nobodys_is_denied(principals, key):
    await principals.key_new("owner")
    with pytest.raises(Denied, match="the key is not valid"):
        principals.authenticate(key)


async def test_a_member_has_an_id_and_a_key_of_its_own(principals, database):
    member, key = await principals.add("  小明  Ming ")
    assert (member.name, member.role, member.created, member.keys) == ("小明 Ming", "member", 1_000.0, 1)
    assert member.principal not in ("owner", member.name)
    assert principals.authenticate(key) == member
    second = await principals.key_new("小明 ming")
    again = await loaded(database)
    assert again.authenticate(second).keys == 2
    assert [each.name for each in again.list()] == ["owner", "小明 Ming"]


async def test_removing_a_member_revokes_its_keys_and_frees_its_name_but_not_its_id(principals, database):
    member, key = await principals.add("guest")
    second = await principals.key_new(member.principal)
    await principals.remove("guest")
    for each in (key, second):
        with pytest.raises(Denied):
            principals.authenticate(each)
        with pytest.raises(Denied):
            (await loaded(database)).authenticate(each)
    with pytest.raises(NotFound):
        await principals.remove("guest")
    other, _ = await principals.add("guest")
    assert other.principal != member.principal


async def test_the_owner_stays(principals):
    with pytest.raises(Invalid, match="owner cannot be removed"):
        await principals.remove("owner")


async def test_a_name_is_taken_once_whatever_its_case(principals):
    await principals.add("Ada")
    for taken in ("Ada", "ada", " ADA ", "Owner"):
        with pytest.raises(Conflict, match="is taken"):
            await principals.add(taken)
    results = await asyncio.gather(*(principals.add("Eve") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(each, tuple) for each in results) == 1


@pytest.mark.parametrize("name", ["", "   ", "-x", "x" * 41, "a/b", "a\x00b", "<b>", "a;b"])
async def test_a_name_that_cannot_be_is_refused(principals, name):
    with pytest.raises(Invalid) as refusal:
        await principals.add(name)
    assert refusal.value.field == "name"


async def test_a_key_can_replace_all_others(principals):
    first, second = await principals.key_new("owner"), await principals.key_new("owner")
    third = await principals.key_new("owner", replace=True)
    assert principals.authenticate(third).keys == 1
    for revoked in (first, second):
        with pytest.raises(Denied):
            principals.authenticate(revoked)


async def test_keys_are_bounded(principals):
    for _ in range(64):
        await principals.key_new("owner")
    with pytest.raises(Conflict, match="64 keys"):
        await principals.key_new("owner")
    await principals.key_new("owner", replace=True)


async def test_a_chosen_key_is_imported_and_replaces_the_one_imported_before(principals):
    made = await principals.key_new("owner")
    await principals.import_key("owner", "my-first-key-0123456789")
    await principals.import_key("owner", "my-first-key-0123456789")
    assert principals.authenticate("my-first-key-0123456789").keys == 2
    await principals.import_key("owner", "my-other-key-0123456789")
    assert principals.authenticate("my-other-key-0123456789").keys == 2
    assert principals.authenticate(made).principal == "owner"
    with pytest.raises(Denied):
        principals.authenticate("my-first-key-0123456789")


@pytest.mark.parametrize(
    "key", ["", "short", "x" * 15, "x" * 513, "has a space in it ok", "schlüssel-schlüssel", "x" * 20 + "\n"]
)
async def test_a_weak_key_is_not_imported_and_not_repeated(principals, key):
    with pytest.raises(Invalid) as refusal:
        await principals.import_key("owner", key)
    assert "16 to 512" in refusal.value.hint
    assert not key or key not in str(refusal.value)


async def test_nobody_gets_the_key_of_another(principals):
    _, key = await principals.add("guest")
    with pytest.raises(Conflict, match="another principal"):
        await principals.import_key("owner", key)


async def test_an_unknown_principal_is_named(principals):
    for attempt in (
        principals.key_new("nobody"),
        principals.remove("nobody"),
        principals.import_key("nobody", "x" * 20),
    ):
        with pytest.raises(NotFound, match="'nobody'"):
            await attempt


async def test_what_cannot_be_stored_is_not_in_force(principals, database):
    await database.close()
    with pytest.raises(Unavailable):
        await principals.add("guest")
    assert len(principals.list()) == 1
