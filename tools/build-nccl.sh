#!/usr/bin/env bash
# Builds libtrireme_nccl.so, the plug-in of comm.backend = nccl, against NCCL and the CUDA runtime, and checks that it can be loaded.
# It has no code for the device in it: g++ is enough, and neither a GPU nor nvcc is needed.
#
# usage: tools/build-nccl.sh [FOLDER]        FOLDER: where the plug-in goes, by default build, beside the program
# environment:
#   CUDA            the major version of CUDA, 12 or 13; by default that of the torch in .venv, or 13
#   NCCL_HOME, CUDA_HOME   folders with include and lib; by default those that torch in .venv brings, otherwise packages that are
#                   installed into .nccl, an environment of its own (about 0.5 GB)
#   NCCL_VERSION, CUDART_VERSION   releases of these packages (2.18 is the oldest NCCL that serves)
# When the program has loaded a CUDA build of torch, its NCCL and runtime (libnccl.so.2, libcudart.so) serve the plug-in too.
source "$(dirname "$0")/lib.sh"

folder=${1:-build}
own=.nccl

torch_cuda() {
  [ -x .venv/bin/python ] || return 0
  .venv/bin/python -c '
import importlib.metadata as m
version = m.version("torch")
print(version.split("+cu")[1][:2] if "+cu" in version else "")' 2>/dev/null || true
}
cuda=${CUDA:-$(torch_cuda)}
cuda=${cuda:-13}
case $cuda in
  12) packages=("nvidia-nccl-cu12${NCCL_VERSION:+==$NCCL_VERSION}" "nvidia-cuda-runtime-cu12${CUDART_VERSION:+==$CUDART_VERSION}" nvidia-cuda-cccl-cu12) ;;
  13) packages=("nvidia-nccl-cu13${NCCL_VERSION:+==$NCCL_VERSION}" "nvidia-cuda-runtime${CUDART_VERSION:+==$CUDART_VERSION}" nvidia-cuda-crt nvidia-cuda-cccl) ;;
  *) die 2 "CUDA=$cuda: 12 and 13 work" ;;
esac

# find_in FILE FOLDER...: the folder of the first file of that name, among folders that may not be there.
find_in() {
  local name=$1 found
  shift
  found=$(find "$@" -name "$name" -print -quit 2>/dev/null) || true
  [ -z "$found" ] || dirname "$found"
}

# In order: folders that were named, torch's own packages, ours.
places=(.venv/lib/python3*/site-packages/nvidia "$own"/lib/python3*/site-packages/nvidia)
find_all() {
  nccl_include=$(find_in nccl.h ${NCCL_HOME:+"$NCCL_HOME"} "${places[@]}")
  nccl_lib=$(find_in libnccl.so.2 ${NCCL_HOME:+"$NCCL_HOME"} "${places[@]}")
  cuda_include=$(find_in cuda_runtime_api.h ${CUDA_HOME:+"$CUDA_HOME"} "${places[@]}")
  cuda_lib=$(find_in "libcudart.so.$cuda*" ${CUDA_HOME:+"$CUDA_HOME"} "${places[@]}")
  # cuda_fp16.h, which nccl.h includes, wants this one; torch does not bring it.
  cccl_include=$(find ${CUDA_HOME:+"$CUDA_HOME"} "${places[@]}" -path '*/nv/target' -print -quit 2>/dev/null) || true
  cccl_include=${cccl_include%/nv/target}
  [ -n "$nccl_include" ] && [ -n "$nccl_lib" ] && [ -n "$cuda_include" ] && [ -n "$cuda_lib" ] && [ -n "$cccl_include" ]
}

if ! find_all; then
  base=$(find_python) || die 2 "no Python 3.10 or newer that can make an environment; run tools/setup.sh build"
  say "Installing ${packages[*]} into $own"
  "$base" -m venv "$own"
  timeout --foreground "${PIP_LIMIT_S:-1500}" "$own/bin/python" -m pip install --no-input --disable-pip-version-check --quiet \
    --no-compile "${packages[@]}" || die 2 "pip could not install ${packages[*]}; its message is above. NCCL_HOME and CUDA_HOME name folders that have them"
  places=("$own"/lib/python3*/site-packages/nvidia)
  find_all || die 2 "nccl.h, libnccl.so.2, cuda_runtime_api.h, nv/target or libcudart.so.$cuda was not found in $own"
fi
runtime=$(find "$cuda_lib" -name "libcudart.so.$cuda*" -print -quit)

mkdir -p "$folder"
plugin=$folder/libtrireme_nccl.so
say "Compiling $plugin with ${nccl_include} and ${cuda_include}"
# -z defs: a symbol that no library has is an error here, not on the machine with the GPU.
"${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -Isrc \
  -isystem "$nccl_include" -isystem "$cuda_include" -isystem "$cccl_include" src/comm/nccl/plugin.cpp -o "$plugin" \
  "$nccl_lib/libnccl.so.2" "$runtime" -Wl,-z,defs \
  -Wl,-rpath,"$(realpath "$nccl_lib"):$(realpath "$cuda_lib")"

if ldd "$plugin" | grep 'not found'; then die 1 "$plugin needs libraries that were not found"; fi
"$(find_python)" - "$plugin" <<'CHECK'
import ctypes, sys
plugin = ctypes.CDLL(sys.argv[1], ctypes.RTLD_LOCAL)
plugin.trireme_nccl_table.restype = ctypes.c_void_p
table = plugin.trireme_nccl_table()
library = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int)(ctypes.c_void_p.from_address(table + 8).value)
text = ctypes.create_string_buffer(256)
sys.exit("the plug-in does not know its libraries") if library(text, 256) else print("Loaded:", text.value.decode())
CHECK
say "Built $plugin; the program finds it beside itself, or by TRIREME_NCCL_PLUGIN"
