// The hardware catalogue: what an accelerator can do by its data sheet, what was measured on it, and what it costs.
//
// Bandwidths count one direction. Prices are quotes of spring 2026 and go out of date: the report prints their note,
// and every number can be replaced (set_value).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::plan {

inline constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Accelerator {
  std::string name;
  std::string vendor;
  double bf16_tflops = 0;         ///< dense, data sheet
  double fp8_tflops = 0;          ///< dense; 0: none
  double fp4_tflops = 0;          ///< dense; 0: none
  double memory_gib = 0;          ///< that a program can use
  double memory_gbs = 0;          ///< bandwidth of that memory, GB/s
  double scale_up_gbs = 0;        ///< to all peers of the domain together, GB/s
  double peer_gbs = 0;            ///< to one peer of the domain, GB/s
  double scale_up_domain = 1;     ///< accelerators that the fast links join
  double scale_out_gbs = 0;       ///< network of one accelerator, GB/s; 0: not known
  double power_w = 0;             ///< board or module; 0: not known
  double matmul_bf16_tflops = 0;  ///< the best that was measured for any shape; 0: not measured
  double matmul_fp8_tflops = 0;   ///< likewise
  double price_low = 0;           ///< USD an hour; 0: not known
  double price_high = 0;          ///< USD an hour; 0: not known
  std::string price_note;
  std::string note;
  std::string source;
};

std::span<const Accelerator> accelerators();
std::vector<std::string> accelerator_names();

/// By name or alias (h100-sxm, a100-80gb, b200, ...), upper or lower case. Throws InputError with the nearest names.
Accelerator accelerator(std::string_view name);
/// Other names of a row, in order.
std::vector<std::string> accelerator_aliases(std::string_view name);

/// Replaces numbers: each text is "key=number", a key is a member above, such as "scale_out_gbs=12.5". Throws one
/// InputError with every fault.
void set_values(Accelerator& accelerator, std::span<const std::string> texts);
/// The keys that set_values takes.
std::vector<std::string> value_names();

/// The middle of the quoted prices; 0 when there is none.
double price_usd_per_hour(const Accelerator& accelerator);

}  // namespace trireme::plan
