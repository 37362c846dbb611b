#include "plan/accelerator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace trireme::plan {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 37> kAliases = {{
    {"v100", "V100-32GB-SXM"},
    {"v100-sxm", "V100-32GB-SXM"},
    {"a100", "A100-80GB-SXM"},
    {"a100-sxm", "A100-80GB-SXM"},
    {"a100-80gb", "A100-80GB-SXM"},
    {"a100-40gb", "A100-40GB-SXM"},
    {"a100-pcie", "A100-80GB-PCIe"},
    {"h100", "H100-80GB-SXM"},
    {"h100-sxm", "H100-80GB-SXM"},
    {"h100-80gb", "H100-80GB-SXM"},
    {"h100-pcie", "H100-80GB-PCIe"},
    {"h100-96gb", "H100-96GB-HBM2e-500W"},
    {"h200", "H200-141GB-SXM"},
    {"h200-sxm", "H200-141GB-SXM"},
    {"h800", "H800-80GB-SXM"},
    {"h800-sxm", "H800-80GB-SXM"},
    {"h20", "H20-96GB-SXM"},
    {"gh200", "GH200-96GB"},
    {"b200", "B200-HGX8"},
    {"b200-sxm", "B200-HGX8"},
    {"b300", "B300-HGX8"},
    {"b300-sxm", "B300-HGX8"},
    {"gb200", "GB200-NVL72"},
    {"gb300", "GB300-NVL72"},
    {"vr200", "VR-NVL72"},
    {"rubin", "VR-NVL72"},
    {"tpu-v7x", "TPU-v7x-Ironwood"},
    {"ironwood", "TPU-v7x-Ironwood"},
    {"v4", "TPU-v4"},
    {"v5e", "TPU-v5e"},
    {"v5p", "TPU-v5p"},
    {"v6e", "TPU-v6e"},
    {"trillium", "TPU-v6e"},
    {"trn2", "Trainium2"},
    {"gaudi-3", "Gaudi3"},
    {"mi300", "MI300X"},
    {"mi355", "MI355X"},
}};

struct Field {
  std::string_view name;
  double Accelerator::*member;
};
constexpr std::array<Field, 14> kFields = {{
    {"bf16_tflops", &Accelerator::bf16_tflops},
    {"fp8_tflops", &Accelerator::fp8_tflops},
    {"fp4_tflops", &Accelerator::fp4_tflops},
    {"memory_gib", &Accelerator::memory_gib},
    {"memory_gbs", &Accelerator::memory_gbs},
    {"scale_up_gbs", &Accelerator::scale_up_gbs},
    {"peer_gbs", &Accelerator::peer_gbs},
    {"scale_up_domain", &Accelerator::scale_up_domain},
    {"scale_out_gbs", &Accelerator::scale_out_gbs},
    {"power_w", &Accelerator::power_w},
    {"matmul_bf16_tflops", &Accelerator::matmul_bf16_tflops},
    {"matmul_fp8_tflops", &Accelerator::matmul_fp8_tflops},
    {"price_low", &Accelerator::price_low},
    {"price_high", &Accelerator::price_high},
}};

}  // namespace

std::vector<std::string> accelerator_names() {
  std::vector<std::string> names;
  for (const Accelerator& row : accelerators()) names.push_back(row.name);
  return names;
}

std::vector<std::string> accelerator_aliases(std::string_view name) {
  std::vector<std::string> result;
  for (const auto& [alias, target] : kAliases) {
    if (target == name) result.emplace_back(alias);
  }
  return result;
}

Accelerator accelerator(std::string_view name) {
  const std::string wanted = lower(name);
  std::string_view target = wanted;
  for (const auto& [alias, row] : kAliases) {
    if (wanted == alias) target = row;
  }
  const std::string full = lower(target);
  std::vector<std::string> known;
  for (const Accelerator& row : accelerators()) {
    if (lower(row.name) == full) return row;
    known.push_back(lower(row.name));
  }
  for (const auto& [alias, row] : kAliases) known.emplace_back(alias);
  const std::string near = nearest(wanted, known);
  throw_input("there is no accelerator \"{}\"{}; known are {}, and short forms such as h100-sxm and a100-80gb", name,
              near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near), fmt::join(accelerator_names(), ", "));
}

std::vector<std::string> value_names() {
  std::vector<std::string> names;
  for (const Field& field : kFields) {
    names.emplace_back(field.name);
  }
  return names;
}

void set_values(Accelerator& accelerator, std::span<const std::string> texts) {
  std::vector<std::string> faults;
  for (const std::string& text : texts) {
    const auto [key, number] = to_named_number(text);
    const auto field = std::ranges::find(kFields, key, &Field::name);
    if (field == kFields.end()) {
      const std::vector<std::string> names = value_names();
      const std::string near = nearest(key, names);
      faults.push_back(fmt::format(
          "an accelerator has no number \"{}\"; {}", key,
          near.empty() ? fmt::format("it has {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", near)));
      continue;
    }
    const double least = key == "scale_up_domain" ? 1 : 0;
    if (!number || *number < least) {
      faults.push_back(fmt::format("\"{}\": expected {}=number of at least {}", text, key, least));
      continue;
    }
    accelerator.*(field->member) = *number;
  }
  if (!faults.empty()) throw InputError(faults);
}

double price_usd_per_hour(const Accelerator& accelerator) {
  if (accelerator.price_low > 0 && accelerator.price_high > 0)
    return (accelerator.price_low + accelerator.price_high) / 2;
  return std::max(accelerator.price_low, accelerator.price_high);
}

}  // namespace trireme::plan
