"""What CMake says about the torch that it finds, or does not find: fake torch folders stand for the real ones."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import support


class TorchFolder(unittest.TestCase):
    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="trireme-cmake-"))
        self.addCleanup(shutil.rmtree, self.scratch)
        self.torch = self.scratch / "torch"
        (self.torch / "share/cmake/Torch").mkdir(parents=True)
        (self.torch / "lib").mkdir()
        # Reached only by a configuration that takes this torch.
        (self.torch / "share/cmake/Torch/TorchConfig.cmake").write_text('message(FATAL_ERROR "this torch was taken")\n')

    def configure(self, root, *arguments, **environment):
        result = subprocess.run(["cmake", "-S", support.PROJECT, "-B", self.scratch / "build", "-G", "Ninja",
                                 f"-DTRIREME_TORCH_ROOT={root}", "-DTRIREME_PYTHON=/nonexistent/python", *arguments],
                                env={**os.environ, "CUDA_HOME": "", **environment}, text=True, timeout=120,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertNotEqual(result.returncode, 0, "a fake torch cannot be configured to the end")
        return result.stdout

    def test_no_torch(self):
        self.assertIn("make venv", self.configure(self.scratch / "nothing"))

    def test_a_torch_that_comes_later_is_found(self):
        python = self.scratch / "python"
        build = ["cmake", "-S", support.PROJECT, "-B", self.scratch / "build", "-G", "Ninja", f"-DTRIREME_PYTHON={python}"]
        run = lambda: subprocess.run(build, text=True, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
        self.assertIn("make venv", run())
        python.write_text(f"#!/bin/sh\necho {self.torch}\n")  # what `make venv` makes
        python.chmod(0o755)
        self.assertIn("this torch was taken", run())

    def test_cpu_build(self):
        self.assertIn("this torch was taken", self.configure(self.torch))

    def test_cuda_build_without_a_toolkit(self):
        (self.torch / "lib/libtorch_cuda.so").touch()
        output = self.configure(self.torch, "-DTRIREME_NVCC=OFF")  # a value that is set keeps CMake from searching
        self.assertNotIn("this torch was taken", output)
        for what_to_do in ["make venv", "TORCH_INDEX=", "CUDA_HOME="]:
            self.assertIn(what_to_do, output)

    def test_cuda_build_with_a_toolkit(self):
        (self.torch / "lib/libtorch_cuda.so").touch()
        nvcc = self.scratch / "cuda/bin/nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text("#!/bin/sh\n")
        nvcc.chmod(0o755)
        self.assertIn("this torch was taken", self.configure(self.torch, CUDA_HOME=str(self.scratch / "cuda")))


if __name__ == "__main__":
    unittest.main()
