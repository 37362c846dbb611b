#include "parallel/foreign_units.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"

namespace trireme::parallel {
namespace {

using Names = std::vector<std::string>;

Names default_units(const torch::nn::Module& module) {
  Names names;
  for (const auto& child : module.named_children()) {
    const torch::nn::Module& inner = *child.value();
    const bool holds_others = dynamic_cast<const torch::nn::ModuleListImpl*>(&inner) != nullptr ||
                              dynamic_cast<const torch::nn::SequentialImpl*>(&inner) != nullptr;
    if (!holds_others) {
      names.push_back(child.key());
      continue;
    }
    for (const auto& item : inner.named_children()) names.push_back(child.key() + "." + item.key());
  }
  return names;
}

void check_units(const torch::nn::Module& module, const Names& units, Names& faults) {
  Names known;
  for (const auto& item : module.named_modules(/*name_prefix=*/std::string(), /*include_self=*/false))
    known.push_back(item.key());
  for (size_t i = 0; i < units.size(); ++i) {
    if (std::find(units.begin(), units.begin() + static_cast<int64_t>(i), units[i]) !=
        units.begin() + static_cast<int64_t>(i))
      faults.push_back(fmt::format("the unit {} is listed twice", units[i]));
    if (std::find(known.begin(), known.end(), units[i]) != known.end()) continue;
    const std::string near = nearest(units[i], known);
    faults.push_back(fmt::format(
        "the module has no submodule {}{}", units[i],
        near.empty() ? fmt::format("; it has {}", fmt::join(known, ", ")) : fmt::format("; did you mean {}?", near)));
  }
}

// Index of the innermost unit around a parameter; units.size(): in none.
size_t unit_of(const std::string& parameter, const Names& units) {
  size_t best = units.size();
  for (size_t i = 0; i < units.size(); ++i) {
    if (!parameter.starts_with(units[i] + ".")) continue;
    if (best == units.size() || units[i].size() > units[best].size()) best = i;
  }
  return best;
}

bool is_weight(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
}

struct Bytes {
  const char *begin, *end;
};
Bytes bytes_of(const at::Tensor& tensor) {
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

// What makes a tensor one that this cannot train; "" when nothing does.
std::string fault_of(const std::string& name, const at::Tensor& tensor) {
  if (tensor.device().is_meta())
    return fmt::format("{} is on the meta device, and LibTorch cannot give it memory there: make the module on the CPU",
                       name);
  if (!tensor.device().is_cpu())
    return fmt::format("{} is on {}: ranks exchange tensors on the CPU, module->to(torch::kCPU) works", name,
                       tensor.device().str());
  if (tensor.layout() != at::kStrided) return fmt::format("{} is sparse; a dense weight works", name);
  if (!tensor.is_leaf()) return fmt::format("{} is the result of an operation, not a leaf of autograd", name);
  if (tensor.requires_grad() && !is_weight(tensor.scalar_type()))
    return fmt::format("{} is {} and asks for a gradient; float, double, bfloat16 and half can have one", name,
                       c10::toString(tensor.scalar_type()));
  return "";
}

}  // namespace

ForeignModule take_apart(const torch::nn::Module& module, const std::optional<Names>& given) {
  Names faults;
  const Names units = given ? *given : default_units(module);
  check_units(module, units, faults);
  const size_t rest = units.size();

  ForeignModule result;
  std::vector<size_t> units_of;                               // of each parameter
  std::unordered_map<const at::TensorImpl*, size_t> by_leaf;  // index of the parameter
  for (const auto& item : module.named_parameters()) {
    const std::string& name = item.key();
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    if (const std::string fault = fault_of(name, tensor); !fault.empty()) {
      faults.push_back(fault);
      continue;
    }
    if (!is_weight(tensor.scalar_type()) || tensor.numel() == 0) {
      if (tensor.numel() > 0) result.constants.push_back(tensor);
      continue;
    }
    if (tensor.requires_grad() && torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr) {
      faults.push_back(
          fmt::format("{} is trained by another ShardedModule, or has a hook on its gradient: a weight "
                      "belongs to one",
                      name));
      continue;
    }
    const size_t unit = unit_of(name, units);
    size_t index = result.parameters.size();
    if (const auto known = by_leaf.find(tensor.unsafeGetTensorImpl()); known != by_leaf.end()) {
      index = known->second;
    } else {
      for (size_t i = 0; i < result.parameters.size() && index == result.parameters.size(); ++i) {
        const at::Tensor& other = result.parameters[i].leaves.front();
        if (!other.is_alias_of(tensor)) continue;
        const Bytes a = bytes_of(other), b = bytes_of(tensor);
        if (a.end <= b.begin || b.end <= a.begin) continue;
        const bool same = other.const_data_ptr() == tensor.const_data_ptr() && other.sizes() == tensor.sizes() &&
                          other.strides() == tensor.strides() && other.scalar_type() == tensor.scalar_type();
        if (same && other.requires_grad() == tensor.requires_grad())
          index = i;
        else
          faults.push_back(fmt::format(
              "{} and {} share memory, but {}: give the module one tensor under both names", name,
              result.parameters[i].names.front(),
              same ? "only one of them asks for a gradient" : "are not the same elements in the same shape"));
      }
      if (index < result.parameters.size()) result.parameters[index].leaves.push_back(tensor);
    }
    if (index == result.parameters.size()) {
      result.parameters.push_back({{name}, {tensor}, tensor.sizes().vec(), tensor.requires_grad()});
      units_of.push_back(unit);
    } else {
      result.parameters[index].names.push_back(name);
      if (units_of[index] != unit) units_of[index] = rest;
    }
    by_leaf[tensor.unsafeGetTensorImpl()] = index;
  }
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined() || item.value().numel() == 0) continue;
    if (const std::string fault = fault_of(item.key(), item.value()); !fault.empty()) faults.push_back(fault);
    result.buffers.push_back(item.value());
  }
  // The first of each type: their memory and their exchanges are of one.
  std::map<at::ScalarType, std::string> types;
  for (const ForeignParameter& parameter : result.parameters)
    types.emplace(parameter.leaves.front().scalar_type(), parameter.names.front());
  if (types.size() > 1) {
    Names list;
    for (const auto& [type, name] : types) list.push_back(fmt::format("{} is {}", name, c10::toString(type)));
    faults.push_back(fmt::format("all parameters have to be of one type, and {}; module->to(dtype) makes them so",
                                 fmt::join(list, ", ")));
  }
  if (result.parameters.empty() && faults.empty()) faults.push_back("the module has no parameters");
  if (!faults.empty()) throw InputError(faults);
  result.dtype = types.begin()->first;

  result.units.push_back({"rest", true, {}});
  for (const std::string& name : units) result.units.push_back({name, false, {}});
  for (size_t i = 0; i < result.parameters.size(); ++i)
    result.units[units_of[i] == rest ? 0 : units_of[i] + 1].parameters.push_back(i);
  std::erase_if(result.units, [](const ForeignUnit& unit) { return unit.parameters.empty(); });
  return result;
}

}  // namespace trireme::parallel
