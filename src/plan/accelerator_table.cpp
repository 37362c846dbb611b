// The rows of the catalogue. Sources stand in the last column; facts were read from them in spring to autumn 2026.
#include <vector>

#include "plan/accelerator.h"

namespace trireme::plan {
namespace {

constexpr const char* kMle = "stas00/ml-engineering compute/accelerator/README.md and network/README.md (2026-08-22)";

// clang-format off
// name, vendor; bf16, fp8, fp4 TFLOP/s; memory GiB, GB/s; scale-up GB/s, to one peer, domain; scale-out GB/s; W;
// measured matmul bf16, fp8; USD an hour from, to; note on the price; note; source
const std::vector<Accelerator>& table() {
  static const std::vector<Accelerator> rows = {
      {"V100-32GB-SXM", "NVIDIA", 125, 0, 0, 32, 900, 150, 25, 8, 12.5, 300, 0, 0, 0, 1.57,
       "blended V100-32GB signwl.com week of 2026-04-06", "fp16 only, no bf16; not verified: scaleout,tdp", "cli99/llm-analysis llm_analysis/gpu_configs/v100-sxm-32gb.json; ml-engineering NVLink table"},
      {"A10G", "NVIDIA", 70, 0, 0, 24, 600, 31, 31, 8, 12.5, 300, 0, 0, 1.0, 1.6,
       "AWS g5 list (single to 8-GPU share)", "AWS part: about half the tensor rate of A10 (125); g5.48xlarge has 8, 100 Gb/s per node; not verified: price,tdp,scaleout", "cli99/llm-analysis llm_analysis/gpu_configs/a10g-pcie-24gb.json"},
      {"L4", "NVIDIA", 121, 242.5, 0, 24, 300, 31, 31, 8, 0, 72, 0, 0, 0.7, 0.9,
       "GCP g2 / AWS g6 list", "datasheet numbers with sparsity are 242 fp16 and 485 fp8: halve; no NVLink; not verified: price", "grokipedia.com/page/NVIDIA_L4_vs_L40S (quotes the datasheet); hmc-tech.com/gpu/nvidia-l4-vs-nvidia-a2 (125/251 at boost clock)"},
      {"L40S", "NVIDIA", 362, 733, 0, 48, 864, 31, 31, 8, 0, 350, 0, 0, 0, 0,
       "", "", kMle},
      {"A100-40GB-SXM", "NVIDIA", 312, 0, 0, 40, 1555, 300, 300, 8, 25, 400, 271.2, 0, 0.25, 1.79,
       "spot 0.25 pulsebenchmarks.com Apr 2026; 1.79 blended signwl.com Apr 2026", "AWS p4d: 50 GB/s per NODE (4x100Gb EFA)", kMle},
      {"A100-80GB-SXM", "NVIDIA", 312, 0, 0, 80, 2039, 300, 300, 8, 25, 400, 271.2, 0, 0.8, 3.0,
       "mercatus-ai.com/blog/cloud-gpu-pricing (May 2026)", "vTrain cluster 12.5 GB/s per GPU, BLOOM 6.25", kMle},
      {"A100-80GB-PCIe", "NVIDIA", 312, 0, 0, 80, 1935, 300, 300, 2, 25, 300, 252.9, 0, 0, 0,
       "", "", kMle},
      {"H100-80GB-SXM", "NVIDIA", 989, 1979, 0, 80, 3350, 450, 450, 8, 50, 700, 794.5, 1402.6, 1.99, 6.88,
       "mercatus-ai.com/blog/cloud-gpu-pricing (May 2026); AWS 6.88 compux.net 2026; median 2.95 aimultiple.com/gpu-index May 2026", "NVLS all-reduce can read busbw above the wire (482 GB/s on 8xH200)", kMle},
      {"H100-80GB-PCIe", "NVIDIA", 756, 1513, 0, 80, 2000, 300, 300, 2, 50, 350, 0, 0, 0, 0,
       "", "not verified: tdp", kMle},
      {"H100-96GB-HBM2e-500W", "NVIDIA", 989, 1979, 0, 96, 2400, 450, 450, 8, 50, 500, 0, 0, 0, 0,
       "Meta Grand Teton part, not rented", "peak somewhat below SXM, unknown; all TorchTitan 2024-25 tables use it; not verified: bf16 peak", "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"},
      {"H200-141GB-SXM", "NVIDIA", 989, 1979, 0, 141, 4800, 450, 450, 8, 50, 700, 794.5, 1453.4, 2.5, 7.0,
       "mercatus-ai.com/blog/cloud-gpu-pricing (May 2026); 4.54 spheron.network Mar 2026", "same compute as H100; single-node 8xH200 all-reduce sweep tops at 482 GB/s busbw", kMle},
      {"H800-80GB-SXM", "NVIDIA", 989, 1979, 0, 80, 3350, 200, 200, 8, 50, 700, 0, 0, 0, 0,
       "", "SimAI uses 8x20.6=165 GB/s effective, NVLS 215", "aliyun/SimAI astra-sim-alibabacloud/astra-sim/system/calbusbw.h; arXiv:2505.09343"},
      {"H20-96GB-SXM", "NVIDIA", 148, 296, 0, 96, 4000, 450, 450, 8, 50, 400, 0, 0, 0, 0,
       "", "not verified: mem,tdp,fp8", "pytorch/torchtitan torchtitan/tools/utils.py (148 bf16)"},
      {"GH200-96GB", "NVIDIA", 989, 1979, 0, 96, 4000, 450, 450, 1, 50, 900, 828.6, 1535.0, 0, 0,
       "", "141 GB HBM3e variant 4.8 TB/s; not verified: tdp,domain; NVL32 systems join 32: set scale_up_domain=32", kMle},
      {"B200-HGX8", "NVIDIA", 2250, 4500, 9000, 180, 8000, 900, 900, 8, 50, 1000, 1745, 3432.5, 6.03, 7.52,
       "6.03 spheron.network Mar 2026; 7.52 blended signwl.com Apr 2026", "nvfp4 marketing figure 10000; 192 GB raw", kMle},
      {"B300-HGX8", "NVIDIA", 2250, 4500, 12600, 288, 8000, 900, 900, 8, 100, 1000, 1769, 3353.3, 0, 10.31,
       "blended North America signwl.com Apr 2026", "nvfp4 15000; CX-8 800 Gb/s per GPU; other sources give 1100-1400 W", kMle},
      {"GB200-NVL72", "NVIDIA", 2500, 5000, 10000, 186, 8000, 900, 900, 72, 50, 1200, 1822, 3615.6, 4.54, 12.47,
       "9.08 per 2-GPU superchip spheron.network Mar 2026; 12.47 blended signwl.com", "4 GPUs per tray, 72 per NVLink domain", kMle},
      {"GB300-NVL72", "NVIDIA", 2500, 5000, 15000, 288, 8000, 900, 900, 72, 100, 1400, 0, 0, 0, 12.32,
       "blended North America signwl.com Apr 2026", "mem figure as B300; not verified: mem,scaleout", kMle},
      {"VR-NVL72", "NVIDIA", 4000, 17500, 35000, 288, 22000, 1800, 1800, 72, 200, 0, 0, 0, 0, 0,
       "", "announced, pre-release; int8 cut to 2500; CX-9 1.6 Tb/s; not verified: scaleout", kMle},
      {"MI250X", "AMD", 383, 0, 0, 128, 3280, 350, 50, 8, 25, 560, 0, 0, 0, 0,
       "", "two dies: 191.5 TFLOP/s per GCD as software sees it", kMle},
      {"MI300X", "AMD", 1307, 2615, 0, 192, 5300, 448, 64, 8, 50, 750, 668.4, 0, 0, 0,
       "tracked by signwl.com, number not quoted", "point to point is 1/7 of the total: ring over one neighbour pair gets 64; not verified: price,scaleout", kMle},
      {"MI325X", "AMD", 1307, 2615, 0, 256, 6000, 448, 64, 8, 50, 1000, 784.9, 0, 0, 0,
       "", "same compute as MI300X; not verified: price,scaleout", kMle},
      {"MI355X", "AMD", 2500, 5000, 10100, 288, 8000, 535.5, 76.5, 8, 50, 1400, 1565, 0, 0, 0,
       "", "dense figures; with sparsity AMD prints 5 and 10.1 PF; MAMF row used 2300 as peak; not verified: price,scaleout", kMle},
      {"MI455X", "AMD", 5000, 10000, 20000, 432, 23300, 1800, 1800, 72, 0, 0, 0, 0, 0, 0,
       "", "announced; fp8/fp4 halved from AMD page as presumed sparse; not verified: domain", kMle},
      {"TPU-v4", "Google", 275, 0, 0, 32, 1200, 0, 0, 4096, 0, 0, 0, 0, 0, 0,
       "", "not verified: domain", kMle},
      {"TPU-v5e", "Google", 197, 0, 0, 16, 819, 200, 50, 256, 3.1, 0, 0, 0, 0, 1.2,
       "list", "400 GB/s bidirectional per chip; 2x100 Gb NIC per 8-chip host; pod all-reduce 51.2 TB/s, bisection 1.6 TB/s; not verified: price", "docs.cloud.google.com/tpu/docs/v5e"},
      {"TPU-v5p", "Google", 459, 0, 0, 95, 2765, 300, 100, 8960, 0, 0, 0, 0, 0, 4.2,
       "list", "4800 Gb/s per chip (both directions); largest job 6144 chips; not verified: price,per-direction split", "cloud.google.com/tpu/docs/v5p"},
      {"TPU-v6e", "Google", 918, 918, 0, 32, 1638, 400, 100, 256, 0, 0, 0, 0, 0, 2.7,
       "list", "800 GB/s bidirectional per chip; pod all-reduce 102.4 TB/s, bisection 3.2 TB/s; int8 1836; not verified: price", "docs.cloud.google.com/tpu/docs/v6e.md.txt"},
      {"TPU-v7x-Ironwood", "Google", 2307, 4614, 0, 192, 7380, 600, 100, 9216, 0, 0, 0, 0, 0, 0,
       "", "1200 GB/s bidirectional per chip, 200 per axis; not verified: mem,mem_bw,domain", kMle},
      {"Gaudi3", "Intel", 1677, 1677, 0, 128, 3700, 600, 600, 8, 0, 900, 1243, 1289.5, 0, 0,
       "", "shipping clock 1600 MHz, not the 1835 TFLOP/s of the white paper", kMle},
      {"Trainium2", "AWS", 667, 1299, 0, 96, 2900, 640, 640, 16, 50, 0, 0, 0, 0, 0,
       "", "1.28 TB/s published without direction; not verified: domain,scaleout", kMle},
  };
  return rows;
}
// clang-format on

}  // namespace

std::span<const Accelerator> accelerators() { return table(); }

}  // namespace trireme::plan
