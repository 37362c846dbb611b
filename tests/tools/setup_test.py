"""tools/setup.sh installs exactly what is missing, asks when it should, and says what to do where it cannot."""

import unittest

import support

COMMANDS = "g++ make cmake ninja ccache pkg-config python3 npm xz bzip2 git clang-format shellcheck".split()


class Setup(support.ScriptTest):
    def setUp(self):
        super().setUp()
        for name in COMMANDS:  # the fake g++ finds every header, the fake python3 can make environments
            self.fake(name)
        self.be_root(True)
        # apt-get "installs" cmake, npm and a g++ that finds headers; update and install are both written down.
        self.fake("apt-get", f'[[ " $* " != *" install "* ]] || for c in cmake npm g++; do cp {self.bin}/make {self.bin}/$c; done')
        self.fake("sudo", '[ "$1" != -n ] || shift; "$@"')

    def be_root(self, root):
        self.fake("id", f"echo {0 if root else 1000}")

    def remove(self, *names):
        for name in names:
            (self.bin / name).unlink()

    def installed(self):
        calls = [c for c in self.calls() if c.startswith("apt-get") and " install " in c]
        return calls[0].split(" install ")[1].split() if calls else []

    def test_nothing_missing(self):
        result = self.run_script("setup.sh", "build", "train", "test", "format")
        self.assertEqual((result.returncode, result.stdout, self.installed()), (0, "", []))

    def test_only_what_is_missing(self):
        rows = [
            ("a command", ["cmake"], ["build"], ["cmake"]),
            ("npm for training", ["npm"], ["build", "train"], ["npm"]),
            ("npm is not asked for otherwise", ["npm"], ["build"], []),
        ]
        for name, missing, purposes, expected in rows:
            with self.subTest(name):
                self.doCleanups()
                self.setUp()
                self.remove(*missing)
                result = self.run_script("setup.sh", *purposes)
                self.assertEqual(result.returncode, 0, result.stdout)
                installed = self.installed()
                self.assertEqual([w for w in installed if not w.startswith("-")], expected)
                if expected:
                    self.assertIn("--no-install-recommends", installed)

    def test_headers_are_asked_of_the_compiler(self):
        self.fake("g++", "grep -q 'pcre2.h' && exit 1; exit 0")
        result = self.run_script("setup.sh", "build")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual([w for w in self.installed() if not w.startswith("-")], ["libpcre2-dev"])

    def test_list_changes_nothing(self):
        self.remove("cmake", "npm")
        result = self.run_script("setup.sh", "--list", "build", "train")
        self.assertEqual((result.returncode, result.stdout, self.installed()), (0, "cmake\nnpm\n", []))

    def test_asking(self):
        rows = [
            # name, answer on a terminal or None, environment, exit code, is it installed
            ("yes", "y", {}, 0, True),
            ("return", "", {}, 0, True),
            ("no", "n", {}, 2, False),
            ("YES=1 is not asked", "n", {"YES": "1"}, 0, True),
            ("CI is not asked", "n", {"CI": "true"}, 0, True),
            ("a script is not asked", None, {}, 0, True),
        ]
        for name, answer, environment, code, installs in rows:
            with self.subTest(name):
                self.doCleanups()
                self.setUp()
                self.be_root(False)
                self.remove("cmake")
                if answer is None:
                    result = self.run_script("setup.sh", "build", **environment)
                else:
                    result = self.run_on_terminal("setup.sh", "build", answer=answer, **environment)
                self.assertEqual(result.returncode, code, result.stdout)
                self.assertEqual(bool(self.installed()), installs)

    def test_root_is_not_asked(self):
        self.remove("cmake")
        result = self.run_on_terminal("setup.sh", "build", answer="n")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual([c for c in self.calls() if c.startswith("sudo")], [])

    def test_where_it_cannot_install(self):
        for name, gone in [("no apt", ["apt-get"]), ("no sudo", ["sudo"])]:
            with self.subTest(name):
                self.doCleanups()
                self.setUp()
                self.be_root(False)
                self.remove("cmake", *gone)
                result = self.run_script("setup.sh", "build")
                self.assertEqual(result.returncode, 2)
                self.assertIn("cmake", result.stdout)
                self.assertEqual(self.installed(), [])

    def test_still_missing_is_an_error(self):
        self.remove("cmake")
        self.fake("apt-get")
        result = self.run_script("setup.sh", "build")
        self.assertEqual(result.returncode, 2)
        self.assertIn("still missing", result.stdout)

    def test_unknown_purpose(self):
        result = self.run_script("setup.sh", "biuld")
        self.assertEqual(result.returncode, 2)
        self.assertIn("biuld", result.stdout)


if __name__ == "__main__":
    unittest.main()
