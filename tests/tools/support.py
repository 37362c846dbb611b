"""What the tests of the scripts under tools/ share: a copy of the project's scripts in a scratch folder, a PATH that holds only
what a test puts there, and fake commands that write down how they were called. Nothing here reaches the network."""

import os
import pathlib
import pty
import shutil
import subprocess
import tempfile
import unittest

PROJECT = pathlib.Path(__file__).resolve().parents[2]

# What the scripts themselves are made from; anything else that a test's PATH should offer, the test adds.
BASICS = """awk basename bash cat cp cut date dirname env find grep head id ls mkdir mktemp mv nproc printf rm sed sh sha256sum
sort tail tee timeout touch tr true uname wc xargs""".split()


class ScriptTest(unittest.TestCase):
    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="trireme-tools-"))
        self.addCleanup(shutil.rmtree, self.scratch)
        self.root = self.scratch / "project"
        shutil.copytree(PROJECT / "tools", self.root / "tools")
        self.bin = self.scratch / "bin"
        self.bin.mkdir()
        self.calls_file = self.scratch / "calls"
        for name in BASICS:
            self.link(name)

    def link(self, name):
        """Offers this machine's own command of that name."""
        (self.bin / name).symlink_to(shutil.which(name))

    def fake(self, name, body="", folder=None):
        """A command that writes a line `name argument...` to the calls and then runs `body` (bash)."""
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "{path.name} $*" >>"{self.calls_file}"\n{body}\n')
        path.chmod(0o755)

    def calls(self):
        """The calls since the last look."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return lines

    def environment(self, extra):
        return {"PATH": str(self.bin), "HOME": str(self.scratch), "TMPDIR": str(self.scratch), **extra}

    def run_script(self, script, *arguments, timeout_s=60, **environment):
        """The finished process, with stdout and stderr together in `stdout`."""
        return subprocess.run([self.root / "tools" / script, *arguments], env=self.environment(environment), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout_s, check=False)

    def run_on_terminal(self, script, *arguments, answer, **environment):
        """As run_script, with a terminal as stdin on which `answer` was typed."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, (answer + "\n").encode())
            return subprocess.run([self.root / "tools" / script, *arguments], env=self.environment(environment), text=True,
                                  stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        finally:
            os.close(ours)
            os.close(theirs)
