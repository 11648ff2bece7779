"""Nodes of this machine as if they were machines, each with a link that the kernel counts and a share of processors.

Needs root, and the commands `ip` and `tc` of iproute2. A namespace holds one node; its cable (a veth pair) ends on this
side, where the SuperLink is. `tc tbf` on either end limits what that end sends, or `tc htb` where the rate changes. A
control group gives each node a fixed share of the processors, so that a task takes the same time whichever other nodes
are at work.
"""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MIB = 2**20
_FRAME, _CARRIED = 1514, 1448  # bytes of a full Ethernet frame, and of these TCP's payload
_HEADERS = _FRAME - _CARRIED  # Ethernet 14, IPv4 20, TCP with timestamps 32
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")  # the folders of control groups, old and new
_CPU_PERIOD = 100_000  # microseconds
_FIRST = 50  # times the weight of any other program: a node's share is its own, whatever else the machine does


@dataclass(frozen=True, kw_only=True)
class Count:
    """Bytes and packets that crossed a link, both ways."""

    down: int
    down_packets: int
    up: int
    up_packets: int

    def since(self, before: "Count") -> "Count":
        """The difference."""
        return Count(**{name: value - getattr(before, name) for name, value in vars(self).items()})

    @property
    def payload_down(self) -> int:
        """Bytes without headers; a packet that the kernel hands over in one piece has them once, however long it is."""
        return self.down - _HEADERS * self.down_packets

    @property
    def payload_up(self) -> int:
        """Bytes without headers."""
        return self.up - _HEADERS * self.up_packets


class Cables:
    """Namespaces with a link each; they disappear with the block."""

    def __init__(self, nodes: int, *, prefix: str = "fedgmr", net: str = "10.77") -> None:
        self.nodes, self._prefix, self._net = nodes, prefix, net

    def __enter__(self) -> "Cables":
        self._remove()
        for node in range(self.nodes):
            space, here, there = self._names(node)
            _call("ip", "netns", "add", space)
            _call("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
            _call("ip", "address", "add", f"{self.address(node)}/24", "dev", here)
            _call("ip", "link", "set", here, "up")
            inside = ("ip", "-n", space)
            _call(*inside, "address", "add", f"{self._net}.{node}.2/24", "dev", there)
            _call(*inside, "link", "set", there, "up")
            _call(*inside, "link", "set", "lo", "up")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def address(self, node: int) -> str:
        """This machine, as the node sees it."""
        return f"{self._net}.{node}.1"

    def inside(self, node: int, command: list[str]) -> list[str]:
        """A command that runs in the node's namespace."""
        return ["ip", "netns", "exec", self._names(node)[0], *command]

    def limit(self, node: int, *, down: float, up: float) -> None:
        """Limit the link to this many MiB/s of TCP payload; headers come on top."""
        space, here, there = self._names(node)
        for rate, end in (
            (down, ["tc", "qdisc", "replace", "dev", here]),
            (up, ["tc", "-n", space, "qdisc", "replace", "dev", there]),
        ):
            bits = round(8 * rate * MIB * _FRAME / _CARRIED)
            # A burst of ten milliseconds, and a queue that never drops: a lost packet would be counted twice.
            _call(*end, "root", "tbf", "rate", f"{bits}bit", "burst", str(max(20_000, bits // 800)), "latency", "10s")

    def vary(self, node: int, *, down: float, up: float, first: bool = False) -> None:
        """Set the rates of a link, MiB/s of TCP payload, that change on the way; `first`: they replace a limit.

        `tbf` would fill its bucket at every change, `htb` goes on with what is in it. A shaper cannot carry nothing, so
        a silent link carries a frame per second.
        """
        space, here, there = self._names(node)
        for rate, device, tc in ((down, here, ["tc"]), (up, there, ["tc", "-n", space])):
            if first:
                # Packets of one frame: a larger one would empty the bucket for many seconds of a slow link.
                _call(*(["ip", *tc[1:]]), "link", "set", "dev", device, "gso_max_segs", "1")
                _call(*tc, "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb", "default", "1")
            bits = max(8 * _FRAME, round(8 * rate * MIB * _FRAME / _CARRIED))
            burst = str(max(2 * _FRAME, bits // 800))
            limits = ("rate", f"{bits}bit", "burst", burst, "cburst", burst, "quantum", str(_FRAME))
            what = "add" if first else "change"
            _call(*tc, "class", what, "dev", device, "parent", "1:", "classid", "1:1", "htb", *limits)
            if first:
                _call(*tc, "qdisc", "replace", "dev", device, "parent", "1:1", "pfifo", "limit", "100000")

    def count(self, node: int) -> Count:
        """Bytes and packets that have crossed the link so far."""
        folder = Path("/sys/class/net") / self._names(node)[1] / "statistics"
        sent, packets, received, answers = (
            int((folder / name).read_text()) for name in ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")
        )
        return Count(down=sent, down_packets=packets, up=received, up_packets=answers)

    def _names(self, node: int) -> tuple[str, str, str]:
        return f"{self._prefix}-{node}", f"{self._prefix}h{node}", f"{self._prefix}n{node}"

    def _remove(self) -> None:
        for node in range(self.nodes):
            space, here, _ = self._names(node)
            for command in (["ip", "link", "delete", here], ["ip", "netns", "delete", space]):
                subprocess.run(command, capture_output=True, check=False)


class Shares:
    """A limit on each node's use of the processors; the control groups disappear with the block."""

    def __init__(self, nodes: int, *, cores: float, prefix: str = "fedgmr") -> None:
        """`cores`: the number of cores that each node may use, or a part of one."""
        self.nodes, self.cores = nodes, cores
        self._own = _V1 if _V1.is_dir() else _V2
        self._prefix = prefix

    def __enter__(self) -> "Shares":
        quota = round(self.cores * _CPU_PERIOD)
        for node in range(self.nodes):
            group = self._group(node)
            try:
                group.mkdir(exist_ok=True)
                if self._own == _V1:
                    (group / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD))
                    (group / "cpu.cfs_quota_us").write_text(str(quota))
                    (group / "cpu.shares").write_text(str(_FIRST * 1024))
                else:
                    (self._own / "cgroup.subtree_control").write_text("+cpu")
                    (group / "cpu.max").write_text(f"{quota} {_CPU_PERIOD}")
                    (group / "cpu.weight").write_text(str(_FIRST * 100))
            except OSError as error:
                raise OSError(f"{group}: {error.strerror}; this needs root and the cpu controller.") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for node in range(self.nodes):
            for _ in range(50):  # its last processes may still be ending
                try:
                    self._group(node).rmdir()
                    break
                except OSError:
                    time.sleep(0.1)

    def inside(self, node: int, command: list[str]) -> list[str]:
        """A command that runs within the node's share, with all its children."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._group(node) / "cgroup.procs"), *command]

    def _group(self, node: int) -> Path:
        return self._own / f"{self._prefix}-{node}"


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}; this needs root, ip and tc.")
