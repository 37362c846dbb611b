"""A Slurm of several nodes on this one host: munged, slurmctld and a slurmd for each node, in a folder, on loopback, on ports that
were free.

Each node has a host name, a boot id and a folder for temporary files of its own (by namespaces of its slurmd), so that the program
and Open MPI take the nodes for different machines. They share the file system, as the nodes of a cluster share one, and the network.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess

from harness import environment, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "setpriv", "unshare")
# Where Debian puts daemons; not every user looks there.
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
START_S = 60

# cred_expire: a job that went back into the queue waits so long; 5 is the least. KillWait: between SIGTERM and SIGKILL.
SETTINGS = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
"""
NODE = """hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && mount --bind "$3" /etc/hosts &&
exec slurmd -D -N "$1" -f "$4"
"""


def why_not():
    """What a cluster lacks here; "" when nothing."""
    lacking = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if lacking:
        return f"there is no {', '.join(lacking)}: tools/setup.sh soak installs what is needed"
    if os.geteuid() != 0:
        return "only root can give nodes host names of their own"
    tried = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"nodes need namespaces of their own: {tried.stderr.strip()}" if tried.returncode != 0 else ""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class SlurmCluster:
    def __init__(self, folder, nodes):
        self.folder = folder
        self.settings = folder / "slurm.conf"
        self.names = [f"n{k + 1}" for k in range(nodes)]
        self.daemons = {}
        # Open MPI leaves out loopback, the only network that these nodes share. Equal numbers of threads make equal bits.
        self.environment = environment(SLURM_CONF=str(self.settings), PATH=PATH, OMPI_MCA_btl_tcp_if_include="lo",
                                       OMP_NUM_THREADS="1")

    def start(self):
        ports = dict(zip(["slurmctld", *self.names], free_ports(1 + len(self.names))))
        text = SETTINGS.format(host=socket.gethostname(), port=ports["slurmctld"], folder=self.folder)
        for name in self.names:
            text += f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={ports[name]} CPUs=4 State=UNKNOWN\n"
        text += f"PartitionName=all Nodes={','.join(self.names)} Default=YES State=UP\n"
        self.settings.write_text(text)
        for name in ("state", *(f"{use}.{node}" for use in ("spool", "tmp") for node in self.names)):
            (self.folder / name).mkdir()
        key, munge, hosts = (self.folder / name for name in ("munge.key", "munge.socket", "hosts"))
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self.start_daemon("munged", "munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}",
                          *(f"--{use}-file={self.folder}/munged.{use}" for use in ("pid", "log", "seed")))
        wait_until(lambda: self.all_run() and munge.exists(), "munged's socket", START_S)
        self.start_daemon("slurmctld", "slurmctld", "-D", "-f", self.settings)
        hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(self.names)}\n")
        for k, name in enumerate(self.names):
            boot_id = self.folder / f"boot_id.{name}"
            boot_id.write_text(f"{k:08x}-0000-4000-8000-000000000000\n")
            self.start_daemon(name, "unshare", "--uts", "--mount", "sh", "-c", NODE, "sh", name, boot_id, hosts, self.settings)
        idle = [f"{name} idle" for name in self.names]
        wait_until(lambda: self.all_run() and self.call("sinfo", "-h", "-N", "-o", "%N %t").splitlines() == idle,
                   "nodes that are ready", START_S, 0.2)

    def start_daemon(self, name, *command):
        """It ends with this process, however that ends."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self.daemons[name] = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *map(str, command)], env=self.environment,
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)

    def all_run(self):
        for name, daemon in self.daemons.items():
            if daemon.poll() is not None:
                raise AssertionError(f"{name} ended with {daemon.returncode}:\n{(self.folder / f'{name}.log').read_text()}")
        return True

    def call(self, *command, folder=None):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=60,
                              env=self.environment, cwd=folder or self.folder)
        if done.returncode != 0 and command[0] != "sinfo":  # sinfo fails until slurmctld listens
            raise AssertionError(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, script):
        """The job's number. What the job prints comes to lie beside the script."""
        return int(self.call("sbatch", "--parsable", script, folder=script.parent))

    def job(self, number):
        """What Slurm says of it: {"JobState": "RUNNING", "Restarts": "0", ...}."""
        words = self.call("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def processes(self):
        """{pid: name} of the daemons and of what jobs started. They all have the file's name in their environment."""
        mine = f"SLURM_CONF={self.settings}".encode()
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended since
                if mine in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
        return found

    def stop(self):
        """Jobs, daemons, and what should be left of them: nothing."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            for number in self.call("squeue", "-h", "-o", "%i").split():
                self.call("scancel", number)
            wait_until(lambda: self.call("squeue", "-h") == "", "the end of the jobs", 60, 0.2)
            # The job's own processes are told of its end last.
            wait_until(lambda: "slurmstepd" not in self.processes().values(), "the end of the jobs' processes", 20, 0.2)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in self.daemons.values():
            daemon.wait(20)
        if left:
            raise AssertionError(f"these processes of the cluster did not end by themselves, and were killed: {left}")
