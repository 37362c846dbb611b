"""Trainers that run side by side in short turns.

What a shared machine gives changes by half from one second to the next, so that runs one after the other compare the seconds
rather than the programs. Here all contenders are started, warmed up and stopped (SIGSTOP); then each goes on for a few seconds in
turn, again and again. A round of turns meets about the same machine, and the ratios of a round are compared over many rounds.

A contender appends a line of JSON to a file after each step. The first two steps that a turn reports do not count: one of them
was interrupted by the stop, and the caches are cold.
"""

import ctypes
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import time

DROPPED = 2
PR_SET_PDEATHSIG = 1


def die_with_parent():
    """A bench that is killed must not leave trainers behind, running or stopped."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclasses.dataclass
class Contender:
    """Processes that train together, and the file that tells their steps. `seconds_of` reads a line of it; None: no step."""

    name: str
    commands: list  # of (arguments, environment)
    steps: pathlib.Path
    log: pathlib.Path
    seconds_of: callable
    processes: list = dataclasses.field(default_factory=list)
    records: list = dataclasses.field(default_factory=list)  # every line that was a step, in order
    turns: list = dataclasses.field(default_factory=list)  # seconds of the steps that count, a list a turn
    read_to: int = 0
    peak_bytes: int = 0  # the most that it held at the end of a turn

    def start(self):
        with open(self.log, "w", encoding="utf-8") as log:
            for arguments, environment in self.commands:
                # A session of its own: a stop has to reach what the processes start as well.
                self.processes.append(subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                                       stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent))

    def members(self):
        sessions = {process.pid for process in self.processes}
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if os.getsid(int(entry)) in sessions:
                        found.append(int(entry))
                except ProcessLookupError:
                    pass
        return found

    def resident_bytes(self):
        """Proportional set size of all its processes: what they share counts once."""
        total = 0
        for pid in self.members():
            try:
                with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
                    total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
            except (OSError, StopIteration):
                pass
        return total

    def send(self, number):
        for pid in self.members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def new_steps(self):
        if not self.steps.exists():
            return []
        with open(self.steps, "rb") as file:
            file.seek(self.read_to)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        lines = [json.loads(line) for line in whole.splitlines()]
        lines = [line for line in lines if self.seconds_of(line) is not None]
        self.records += lines
        return [self.seconds_of(line) for line in lines]

    def check(self):
        """Raises what the log ends with when a process has ended."""
        if any(process.poll() is not None for process in self.processes):
            text = self.log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{self.name} ended early:\n" + "\n".join(text.splitlines()[-15:]))

    def run_until(self, steps, patience_s):
        """Goes on until it has done so many steps since its start."""
        deadline = time.monotonic() + patience_s
        self.send(signal.SIGCONT)
        while len(self.records) < steps:
            self.new_steps()
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did {len(self.records)} of {steps} steps in {patience_s:.0f} s")
            time.sleep(0.05)
        self.send(signal.SIGSTOP)
        self.new_steps()

    def take_turn(self, seconds, patience_s):
        """Goes on for so long, and until a step counts."""
        found, begin = [], time.monotonic()
        self.send(signal.SIGCONT)
        while True:
            time.sleep(max(0.05, begin + seconds - time.monotonic()))
            found += self.new_steps()
            if len(found) > DROPPED:
                break
            self.check()
            if time.monotonic() > begin + patience_s:
                raise RuntimeError(f"{self.name} did no step in {patience_s:.0f} s")
        self.send(signal.SIGSTOP)
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes())
        self.turns.append(found[DROPPED:])

    def end(self):
        self.send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def run_alone(self, warmup, steps, patience_s=900):
        """Starts, does so many steps after the warm-up, ends; returns the seconds of its fastest quarter of them."""
        try:
            self.start()
            self.run_until(warmup + steps, patience_s)
        finally:
            self.end()
        seconds = sorted(self.seconds_of(line) for line in self.records[warmup:])
        return seconds[len(seconds) // 4]

    def median(self):
        return statistics.median(sum(self.turns, []))

    def tenth(self):
        """Of the fastest tenth of its steps: nearer to a quiet machine's than the median where others compute too."""
        every = sorted(sum(self.turns, []))
        return every[len(every) // 10]


def run(contenders, rounds, turn_s, warmup, patience_s=900):
    """Fills in their turns; returns {name: what went wrong} of those that could not run, whose turns are emptied."""
    errors = {}

    def attempt(contender, act):
        if contender.name not in errors:
            try:
                act()
            except RuntimeError as error:
                errors[contender.name] = str(error)
                contender.turns = []
                contender.end()

    try:
        for contender in contenders:
            attempt(contender, lambda it=contender: (it.start(), it.run_until(warmup, patience_s)))
        for number in range(rounds):
            # Back and forth, so that none always follows the same one.
            for contender in contenders if number % 2 == 0 else contenders[::-1]:
                attempt(contender, lambda it=contender: it.take_turn(turn_s, patience_s))
    finally:
        for contender in contenders:
            contender.end()
    return errors


def ratio(ours, theirs):
    """How many times as fast `ours` is: the median over the rounds, and the range of the half of them in the middle."""
    each = sorted(statistics.median(b) / statistics.median(a) for a, b in zip(ours.turns, theirs.turns))
    return statistics.median(each), each[len(each) // 4], each[(3 * len(each)) // 4 if len(each) > 1 else 0]
