"""A network of namespaces on this machine."""
import ipaddress
import os
import shutil
import socket
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Network:
    """A bridge, and a namespace a host: cut(i) drops every packet of host i without a FIN."""

    def __init__(self, hosts):
        self.hosts, self.tag = hosts, f"ek{os.getpid() % 10000}"

    def open(self):
        self.close()
        self.subnet = free_subnet()
        self.host = f"{self.subnet}.1"
        run("ip", "link", "add", self.tag, "type", "bridge")
        run("ip", "addr", "add", f"{self.host}/24", "dev", self.tag)
        run("ip", "link", "set", self.tag, "up")
        for i in range(self.hosts):
            run("ip", "netns", "add", self.space(i))
            run("ip", "link", "add", self.link(i), "type", "veth", "peer", "name", "eth0", "netns", self.space(i))
            run("ip", "link", "set", self.link(i), "master", self.tag, "up")
            run("ip", "-n", self.space(i), "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            for name in ("eth0", "lo"):
                run("ip", "-n", self.space(i), "link", "set", name, "up")
        self.expect_reachable()

    def expect_reachable(self):
        """A machine may let us build a network and drop what goes through it: its firewall sees bridges, too."""
        with socket.create_server((self.host, 0)) as server:
            dial = f"import socket; socket.create_connection({server.getsockname()[:2]}, 5)"
            for i in range(self.hosts):
                run("ip", "netns", "exec", self.space(i), sys.executable, "-c", dial)

    def space(self, i):
        return f"{self.tag}-{i}"

    def link(self, i):
        return f"{self.tag}v{i}"

    def limit(self, i, rate):
        """Both directions of host i's link, at a rate as tc has it: 1gbit."""
        bucket = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        run("tc", "qdisc", "replace", "dev", self.link(i), *bucket)
        run("tc", "-n", self.space(i), "qdisc", "replace", "dev", "eth0", *bucket)

    def address(self, i):
        return f"{self.subnet}.{10 + i}"

    def cut(self, i, off):
        run("ip", "link", "set", self.link(i), "nomaster" if off else "up")
        if not off:
            run("ip", "link", "set", self.link(i), "master", self.tag)

    def close(self):
        for i in range(self.hosts):
            subprocess.run(["ip", "netns", "del", self.space(i)], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", self.tag], stderr=subprocess.DEVNULL)


def free_subnet():
    """The first three numbers of a /24 that no address and no route of this machine touches: other runs have theirs."""
    taken = []
    for line in run("ip", "-o", "-4", "addr", "show").splitlines():
        taken.append(ipaddress.ip_interface(line.split()[3]).network)
    for line in run("ip", "-4", "route", "show").splitlines():
        destination = next(word for word in line.split() if word[0].isdigit() or word == "default")
        if destination != "default":
            taken.append(ipaddress.ip_network(destination))
    for i in range(256):
        subnet = f"10.213.{(os.getpid() + i) % 256}"
        if not any(ipaddress.ip_network(f"{subnet}.0/24").overlaps(other) for other in taken):
            return subnet
    raise OSError("no /24 of 10.213.0.0/16 is free")


def make_network(hosts):
    """None where this machine does not let us; says why."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("  without a network of our own: that needs root and iproute2", flush=True)
        return None
    network = Network(hosts)
    try:
        network.open()
        return network
    except (subprocess.CalledProcessError, OSError) as e:
        why = e.stderr.strip().splitlines()[-1:] if isinstance(e, subprocess.CalledProcessError) else e
        print(f"  without a network of our own, for this machine refuses it: {why}", flush=True)
        network.close()
        return None
