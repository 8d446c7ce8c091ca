"""One process of all-reduces in which a peer stops itself, for tests.

Its settings come as JSON on stdin. For each of `phases` it adds up three times. The
first time the victim sends itself SIGSTOP when a certain message has come, until the
watchdogs of all others have barked; what they said is in files. Not a test itself.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from tf_goyal import cluster
from tf_goyal.allreduce import AllReduce
from tf_goyal.arrivals import Arrivals
from tf_goyal.reduction_plan import Bucket
from tf_goyal.watchdog import Watchdog

LENGTH = 10_000
SUMS = 3
_WAIT = """
until grep -q "^State:.*T" /proc/$4/status || [ ! -e /proc/$4 ]; do sleep 0.05; done
for i in $(seq 600); do
  [ $(ls "$1" | grep -c "^$2-") = "$3" ] && break
  sleep 0.1
done
kill -CONT $4
"""


class Trap(Arrivals):
    """Stops this process once, when a message of this name has come."""

    def __init__(self, message: str, until: list[str]):
        super().__init__()
        self._message, self._until = message, until
        self.sprung = False

    def count(self, tensor: tf.Tensor, name: str) -> None:
        super().count(tensor, name)
        if self._message in name:
            with tf.control_dependencies([tensor]):
                tf.numpy_function(self._spring, [], [], stateful=True)

    def _spring(self) -> None:
        if not self.sprung:
            self.sprung = True
            subprocess.Popen(["sh", "-c", _WAIT, "wait", *self._until])
            os.kill(os.getpid(), signal.SIGSTOP)


def main(layout: dict) -> None:
    """Goes through the phases; says how many sums were right, how often it stopped."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rank, ports, folder = layout["rank"], layout["ports"], Path(layout["folder"])
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    strategy = cluster.strategy(cluster.Cluster(addresses, rank))
    right = sprung = 0
    for number, phase in enumerate(layout["phases"]):
        victim = rank == phase["victim"]
        others = [str(folder), f"phase-{number}", str(len(ports) - 1)]
        arrivals = (
            Trap(phase["message"], [*others, str(os.getpid())])
            if victim
            else Arrivals()
        )
        reduce = AllReduce(
            lambda sizes, a=phase["algorithm"]: [Bucket([0], sizes[0], a)],
            rank=rank,
            hosts=layout["hosts"],
            arrivals=arrivals,
        )

        @tf.function(autograph=False)
        def add_up(tensor, reduce=reduce):
            return strategy.run(lambda mine: reduce([mine])[0], args=(tensor,))

        said = folder / f"phase-{number}-{rank}"

        def bark(why, said=said, victim=victim):
            if not victim:
                said.with_name(f".{said.name}").write_text(why)
                said.with_name(f".{said.name}").rename(said)

        # A trace takes longer than a watchdog waits.
        add_up.get_concrete_function(tf.TensorSpec([LENGTH], tf.float32))
        (folder / f"traced-{number}-{rank}").touch()
        while len(list(folder.glob(f"traced-{number}-*"))) < len(ports):
            time.sleep(0.01)
        with Watchdog(1.0, arrivals.counts, bark) as watchdog:
            for step in range(SUMS):
                watchdog.begins(step)
                total = add_up(tf.fill([LENGTH], float(rank + step))).numpy()
                watchdog.ends()
                expected = sum(range(len(ports))) + len(ports) * step
                right += int((total == expected).all())
        sprung += victim and arrivals.sprung
    print(f"right {right}, stopped {sprung}")


if __name__ == "__main__":
    main(json.load(sys.stdin))
