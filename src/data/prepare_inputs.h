// Which files a preparation reads, in which order, and which of them are held out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/input_files.h"
#include "data/prepare.h"

namespace trireme::data {

struct Inputs {
  std::vector<InputFile> files;  ///< sorted by path, each once
  std::vector<bool> held_out;    ///< by index of the file: by --eval-list or --eval-glob
  int64_t bytes = 0;
  std::string names_digest;    ///< of names and sizes
  std::string listing_digest;  ///< of names, sizes and times of change
};

/// Throws one InputError with all faults: missing inputs, patterns and list entries that match nothing.
Inputs gather_inputs(const PrepareOptions& options);

}  // namespace trireme::data
