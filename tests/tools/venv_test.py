"""tools/venv.sh looks for torch in the right places in the right order, gives up in time, and does nothing twice.

A fake Python stands for the real one. It keeps the version that is installed in a file, and `pip install` succeeds for the
(place, requirement) pairs that the environment variable FAKE_HAS lists; the place is `configured` or the index's address."""

import unittest

import support

PYTORCH = "https://download.pytorch.org/whl/cpu"

FAKE_PYTHON = r"""
case "$*" in
  "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  *importlib.metadata*) cat "$CALLS.installed" 2>/dev/null ;;
  "-m pip install "*)
    place=configured
    for word in "$@"; do
      [ "${previous:-}" != --index-url ] || place=$word
      previous=$word
    done
    for has in ${FAKE_HAS:-}; do
      if [ "$has" = "$place,$previous" ]; then echo "${previous#torch==}" >"$CALLS.installed"; exit 0; fi
    done
    echo "ERROR: No matching distribution found for $previous"
    [[ $previous != torch==* ]] ;;
esac
"""


class TorchSearch(support.ScriptTest):
    def setUp(self):
        super().setUp()
        self.fake("python3", f'CALLS="{self.calls_file}"\n' + FAKE_PYTHON)

    def attempts(self):
        """The places that pip was sent to, in order, as `place,requirement`."""
        found = []
        for call in self.calls():
            words = call.split()
            if words[1:4] == ["-m", "pip", "install"]:
                self.assertIn("--timeout", words, "an index that does not answer would hold everybody up")
                self.assertIn("--retries", words)
                place = words[words.index("--index-url") + 1] if "--index-url" in words else "configured"
                found.append(f"{place},{words[-1]}")
        return found

    def test_order(self):
        mine = "https://index.example/simple"
        configured, index, plain = "configured,torch==2.13.0+cpu", f"{PYTORCH},torch==2.13.0+cpu", "configured,torch==2.13.0"
        rows = [
            # name, environment, where torch is, where it is looked for, exit code
            ("configured", {}, configured, [configured], 0),
            ("all three: the first", {}, f"{plain} {index} {configured}", [configured], 0),
            ("index", {}, f"{plain} {index}", [configured, index], 0),
            ("plain release", {}, plain, [configured, index, plain], 0),
            ("nowhere", {}, "", [configured, index, plain], 2),
            ("own index", {"TORCH_INDEX": mine}, f"{mine},torch==2.13.0", [configured, f"{mine},torch==2.13.0"], 0),
            ("own release", {"TORCH_VERSION": "2.12.1"}, "configured,torch==2.12.1",
             ["configured,torch==2.12.1+cpu", f"{PYTORCH},torch==2.12.1+cpu", "configured,torch==2.12.1"], 0),
            ("own build is never exchanged", {"TORCH_VERSION": "2.13.0+cu130"}, plain,
             ["configured,torch==2.13.0+cu130", f"{PYTORCH},torch==2.13.0+cu130"], 2),
        ]
        for name, environment, has, expected, code in rows:
            with self.subTest(name):
                self.doCleanups()
                self.setUp()
                result = self.run_script("venv.sh", FAKE_HAS=has, **environment)
                self.assertEqual(result.returncode, code, result.stdout)
                self.assertEqual(self.attempts(), expected)
                if code == 0:
                    self.assertIn("Installed torch", result.stdout)
                else:
                    self.assertIn("TORCH_INDEX=URL", result.stdout, "the message must say what to do")

    def test_second_call_does_nothing(self):
        has = "configured,torch==2.13.0+cpu configured,torch==2.12.1+cpu"
        self.run_script("venv.sh", FAKE_HAS=has)
        self.calls()
        result = self.run_script("venv.sh", FAKE_HAS=has)
        self.assertEqual((result.returncode, result.stdout, self.calls()), (0, "", []))
        self.run_script("venv.sh", FAKE_HAS=has, TORCH_VERSION="2.12.1")
        self.assertEqual(self.attempts(), ["configured,torch==2.12.1+cpu"], "another release is installed over the old one")

    def test_an_interrupted_installation_is_repeated(self):
        self.assertEqual(self.run_script("venv.sh", FAKE_HAS="").returncode, 2)
        self.calls()
        self.assertEqual(self.run_script("venv.sh", FAKE_HAS="configured,torch==2.13.0+cpu").returncode, 0)
        self.assertEqual(self.attempts(), ["configured,torch==2.13.0+cpu"])

    def test_an_environment_that_has_it_is_taken(self):
        self.run_script("venv.sh", FAKE_HAS="configured,torch==2.13.0+cpu")
        (self.root / ".venv/trireme-torch").unlink()
        self.calls()
        self.assertEqual(self.run_script("venv.sh").returncode, 0)
        self.assertEqual(self.attempts(), [])

    def test_requirements_of_tests_keep_torch(self):
        result = self.run_script("venv.sh", "test", FAKE_HAS="configured,torch==2.13.0+cpu")
        self.assertEqual(result.returncode, 0, result.stdout)
        call = [c for c in self.calls() if "requirements-test.txt" in c]
        self.assertEqual(len(call), 1)
        constraint = call[0].split()[call[0].split().index("--constraint") + 1]
        self.assertEqual((self.root / constraint).read_text(), "torch==2.13.0+cpu\n")
        self.run_script("venv.sh", "test")
        self.assertEqual(self.calls(), [], "they are installed once")

    def test_no_python(self):
        self.fake("python3", "exit 1")
        result = self.run_script("venv.sh", PYTHON="python3")
        self.assertEqual(result.returncode, 2)
        self.assertIn("tools/setup.sh build", result.stdout)


if __name__ == "__main__":
    unittest.main()
