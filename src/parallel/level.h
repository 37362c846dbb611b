// What data ranks divide among them; data_parallel.h has the table.
#pragma once

#include <cstdint>

namespace trireme::parallel {

enum class Level : uint8_t { none, optimizer, gradients, parameters };

}  // namespace trireme::parallel
