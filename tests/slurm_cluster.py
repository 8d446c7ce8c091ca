"""A real Slurm of one node, this machine, by its own daemons and without root."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from tf_goyal.launch import free_ports

COMMANDS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")
START_SECONDS = 180
NODE = "localhost"  # a name that resolves everywhere
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def missing():
    """The commands of Slurm and MUNGE that are not installed."""
    return [name for name in COMMANDS if shutil.which(name, path=_PATH) is None]


def _configuration(folder, controller_port, daemon_port):
    host = socket.gethostname().partition(".")[0]
    user = psutil.Process().username()
    return f"""\
ClusterName=one_node
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
# A job that is put back waits for its old credential to expire.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SchedulerParameters=sched_interval=2,bf_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
MailProg=/bin/true
# Room for two jobs of two tasks, whatever this machine has.
SlurmdParameters=config_overrides
NodeName={NODE} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes={NODE} Default=YES
"""


class Slurm:
    """The running cluster.

    Attributes:
      environment: for commands that are to find it.
    """

    def __init__(self, configuration):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        for name in ("TF_CONFIG", "TF_GOYAL_RUN_TOKEN"):
            inherited.pop(name, None)
        self.environment = {
            **inherited,
            "PATH": _PATH,
            "SLURM_CONF": str(configuration),
        }

    def run(self, *command, seconds=120, cwd=None, **variables):
        """A command of Slurm, killed with its children at the deadline."""
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**self.environment, **variables},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"{command} took over {seconds} s\n{output}") from None
        return subprocess.CompletedProcess(command, process.returncode, output)

    def job(self, number):
        """What Slurm says of a job: JobState, Restarts, ExitCode and so on."""
        said = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(part.split("=", 1) for part in said.split() if "=" in part)


@contextlib.contextmanager
def one_node():
    """Starts MUNGE and Slurm on free ports; ends all that belongs to them."""
    # Not pytest's folder: the paths of Unix sockets are short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        configuration = folder / "slurm.conf"
        configuration.write_text(_configuration(folder, *free_ports(2)))
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        folder.chmod(0o755)  # as MUNGE asks of the socket's folder
        slurm = Slurm(configuration)
        munged = ["munged", "--foreground", f"--key-file={key}"]
        munged += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
        munged += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
        with contextlib.ExitStack() as stack:
            stack.callback(_end_the_rest, str(configuration))
            daemons = []
            for command in (
                munged,
                ["slurmctld", "-D", "-c"],
                ["slurmd", "-D", "-N", NODE],
            ):
                log = stack.enter_context((folder / f"{command[0]}.out").open("wb"))
                daemons.append(_start(stack, slurm, command, log))
                if command is munged:
                    _wait_for((folder / "munge.socket").exists, daemons, folder)
            _wait_for(
                lambda: "idle" in slurm.run("sinfo", "--noheader").stdout,
                daemons,
                folder,
            )
            yield slurm


def _start(stack, slurm, command, log):
    program = shutil.which(command[0], path=_PATH)
    daemon = subprocess.Popen(
        [program, *command[1:]],
        env=slurm.environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    stack.callback(daemon.wait)
    stack.callback(daemon.kill)
    return daemon


def _wait_for(ready, daemons, folder):
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline or any(d.poll() is not None for d in daemons):
            said = "\n".join(path.read_text() for path in folder.glob("*.out"))
            raise AssertionError(f"Slurm did not start:\n{said}")
        time.sleep(0.2)


def _end_the_rest(configuration):
    """Kills what the daemons left: shepherds of steps, and their tasks."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == configuration:
                process.kill()
