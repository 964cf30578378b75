"""Nodes that have no IPv4, on an engine whose networks give each container an address of both."""

import secrets
import shlex

from containers import Containers
from nodes import Nodes
from scene import Scene

# Run by root in a container: its interface gives its address of IPv4 back (man 7 netdevice).
DROP_IPV4 = """
import fcntl, socket, struct, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    fcntl.ioctl(probe, 0x8916, struct.pack("16sH22x", b"eth0", socket.AF_INET))  # SIOCSIFADDR 0.0.0.0
print("IPv6 alone", flush=True)
time.sleep(600)
"""


class Ipv6Nodes(Nodes):
    """Nodes that have IPv6 alone, and one name for node 0. The engine gives IPv4, too, so a container takes each node's
    place before it and drops that.
    """

    def __init__(self, scene: Scene) -> None:
        self.prefix = f"fd{secrets.token_hex(1)}:{secrets.token_hex(2)}:{secrets.token_hex(2)}"
        self.network_options = ("--ipv6", "--subnet", f"{self.prefix}::/64")
        super().__init__(scene)

    def place(self, rank: int) -> str:
        address, node_0 = f"{self.prefix}::1{rank}", f"{self.prefix}::10"
        right = "--user 0 --cap-add NET_ADMIN --entrypoint python"
        line = f"--network {self.network} --ip6 {address} --add-host node-0:{node_0} {right} IMG -c {shlex.quote(DROP_IPV4)}"
        holder = Containers(self.scene.stack).start(line)
        holder.wait_for("IPv6 alone")
        return f"--network container:{holder.name}"
