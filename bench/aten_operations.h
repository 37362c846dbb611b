// What one would write with ATen in place of each operation of train/operation_cases.h: the same operands, results and
// gradients.
#pragma once

#include <functional>
#include <string>

#include "train/operation_cases.h"

namespace trireme::bench {

/// As OperationCase::prepare, for the case of that name; empty where ATen has nothing to compare with.
std::function<std::function<void()>()> aten_operation(const std::string& name, const train::OperationSize& size,
                                                      at::ScalarType dtype);

}  // namespace trireme::bench
