"""Checks of what the engine was told, and of what holds inside each container."""

from __future__ import annotations

from tests.deploy.containers.stack import GROUP, LLM_KEY, SERVICES, USERS, Stack
from tests.home import wait_until

_WITHOUT_NETWORK = ("kernel", "memory")
_CHAT_PORT = "8080/tcp"
_SECRETS = {
    "kernel": {"kernel.key", "memory.key", "provider.key", "host.key", "operator.key", "api_key"},
    "memory": {"memory.key"},
    "provider": {"provider.key", "llm_api_key"},
    "plugins": {"host.key"},
}

_RIGHTS = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
writable = []
for folder, _, _ in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/dev/pts", "/dev/mqueue")):
        continue
    try:
        os.close(os.open(folder + "/.probe", os.O_CREAT | os.O_WRONLY))
        os.unlink(folder + "/.probe")
        writable.append(folder)
    except OSError:
        pass
print(json.dumps({
    "capabilities": {name: status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
    "no_new_privileges": status["NoNewPrivs"].strip(), "user": os.getuid(), "group": os.getgid(),
    "others": sorted(set(os.getgroups()) - {os.getgid()}),
    "writable": writable,
    "interfaces": os.listdir("/sys/class/net"),
    "environments": [open(f"/proc/{pid}/environ").read() for pid in os.listdir("/proc") if pid.isdigit()],
}))
"""

_GO_OUT = """
import errno, json, socket
def tried(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(3)
        try:
            probe.connect(address)
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error))
    return "connected"
print(json.dumps([tried(socket.AF_INET, ("1.1.1.1", 80)), tried(socket.AF_INET, ("172.17.0.1", 80))]))
"""

_TOOLS = "for tool in gcc cc c++ ld make pip apt-get-source; do command -v $tool; done; true"


def each_container_has_no_right_it_could_do_without(stack: Stack) -> None:
    """As Docker was told."""
    for service in SERVICES:
        host = stack.inspect(service)["HostConfig"]
        assert host["ReadonlyRootfs"] is True, service
        assert host["CapDrop"] == ["ALL"] and not host["CapAdd"], service
        assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"]), service
        assert not any("unconfined" in option for option in host["SecurityOpt"]), service
        assert host["Privileged"] is False and not host["Devices"], service
        assert host["Init"] is True and host["PidsLimit"] > 0, service
        assert host["PidMode"] == "" and host["IpcMode"] == "private" and host["UTSMode"] == "", service
        assert host["RestartPolicy"]["Name"] == "unless-stopped", service


def nothing_inside_a_container_can_gain_rights(stack: Stack) -> None:
    """As its processes see it."""
    for service in SERVICES:
        seen = stack.python(service, _RIGHTS)
        assert set(seen["capabilities"].values()) == {"0000000000000000"}, f"{service}: {seen['capabilities']}"
        assert seen["no_new_privileges"] == "1", service


def each_service_has_a_user_of_its_own_and_the_one_group(stack: Stack) -> None:
    """A uid each."""
    assert len(set(USERS.values())) == len(SERVICES)
    for service in SERVICES:
        seen = stack.python(service, _RIGHTS)
        assert (seen["user"], seen["group"], seen["others"]) == (USERS[service], GROUP, []), service
        assert stack.inspect(service)["Config"]["User"] == f"{USERS[service]}:{GROUP}", service


def a_service_can_write_to_its_own_places_alone(stack: Stack) -> None:
    """The root file system is read-only, and of the shared folders the kernel alone writes that of the sockets."""
    for service in SERVICES:
        allowed = (f"/data/{service}", "/tmp", "/dev/shm", *(["/run/homeagent"] if service == "kernel" else []))
        folders = stack.python(service, _RIGHTS)["writable"]
        assert f"/data/{service}" in folders, service
        wrong = [each for each in folders if not f"{each}/".startswith(tuple(f"{place}/" for place in allowed))]
        assert wrong == [], f"{service} can write to {wrong}"


def kernel_and_memory_have_no_network(stack: Stack) -> None:
    """Not even an interface."""
    for service in _WITHOUT_NETWORK:
        assert stack.inspect(service)["HostConfig"]["NetworkMode"] == "none", service
        assert stack.python(service, _RIGHTS)["interfaces"] == ["lo"], service
        assert stack.python(service, _GO_OUT) == ["ENETUNREACH", "ENETUNREACH"], service


def the_chat_is_the_only_port_and_only_on_loopback(stack: Stack) -> None:
    """127.0.0.1, and nothing else."""
    for service in SERVICES:
        published = {port: each for port, each in stack.inspect(service)["NetworkSettings"]["Ports"].items() if each}
        expected = {_CHAT_PORT: [{"HostIp": "127.0.0.1", "HostPort": str(stack.port)}]} if service == "plugins" else {}
        assert published == expected, f"{service}: {published}"


def each_container_mounts_its_own_data_and_keys_alone(stack: Stack) -> None:
    """Data by owner, secrets only where they belong."""
    for service in SERVICES:
        mounts = {each["Destination"]: each for each in stack.inspect(service)["Mounts"]}
        data = {place for place in mounts if place.startswith("/data")}
        assert data == {f"/data/{service}"}, f"{service}: {data}"
        assert mounts["/run/homeagent"]["RW"] is (service == "kernel"), service
        names = {place.rpartition("/")[2] for place in mounts if place.startswith("/run/secrets/")}
        assert names == _SECRETS[service], f"{service}: {names}"
        rest = set(mounts) - data - {f"/run/secrets/{name}" for name in names}
        assert rest == {"/run/homeagent", "/dev/shm"}, f"{service}: {rest}"


def no_secret_is_in_an_environment(stack: Stack) -> None:
    """Neither as Docker was told nor as any process of a container shows it."""
    secrets = {LLM_KEY, stack.client.key} | {path.read_text().strip() for path in stack.secrets.rglob("*.key")}
    for service in SERVICES:
        shown = [*stack.inspect(service)["Config"]["Env"], *stack.python(service, _RIGHTS)["environments"]]
        assert not any(secret in text for secret in secrets for text in shown), service


def the_image_has_no_compiler_and_no_installer(stack: Stack) -> None:
    """Nor a file that runs with the rights of its owner."""
    assert stack.execute("plugins", "sh", "-c", _TOOLS) == ""
    assert stack.execute("plugins", "sh", "-c", "find / -xdev -perm /6000 -type f 2>/dev/null; true") == ""


def health_follows_the_event_loop(stack: Stack) -> None:
    """The check is cheap, fails when the loop has not turned for long, and Docker runs it."""
    late = "touch -d '-30 seconds' /tmp/alive; homeagent-healthy || echo late"
    assert stack.execute("memory", "sh", "-c", late) == "late\n"
    wait_until(lambda: set(_health(stack).values()) == {"healthy"}, 90, "health as Docker sees it")


def _health(stack: Stack) -> dict[str, str]:
    return {service: stack.inspect(service)["State"]["Health"]["Status"] for service in SERVICES}


CHECKS = (
    each_container_has_no_right_it_could_do_without,
    nothing_inside_a_container_can_gain_rights,
    each_service_has_a_user_of_its_own_and_the_one_group,
    a_service_can_write_to_its_own_places_alone,
    kernel_and_memory_have_no_network,
    the_chat_is_the_only_port_and_only_on_loopback,
    each_container_mounts_its_own_data_and_keys_alone,
    no_secret_is_in_an_environment,
    the_image_has_no_compiler_and_no_installer,
    health_follows_the_event_loop,
)
