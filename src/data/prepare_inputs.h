// Which files a preparation reads, in which order, and which of them are held out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare.h"

namespace trireme::data {

struct InputFile {
  std::filesystem::path path;
  std::string name;  ///< relative to the input that was given; the file's name for a file
  int64_t bytes = 0;
  int64_t modified_ns = 0;
  bool held_out = false;  ///< by --eval-list or --eval-glob
};

struct Inputs {
  std::vector<InputFile> files;  ///< sorted by path, each once
  int64_t bytes = 0;
  std::string names_digest;    ///< of names and sizes
  std::string listing_digest;  ///< of names, sizes and times of change
};

/// Throws one InputError with all faults: missing inputs, patterns and list entries that match nothing.
Inputs gather_inputs(const PrepareOptions& options);

/// `*` and `?` stay within a path component, `**` crosses components, `[a-z]` and `[!a-z]` are classes.
bool glob_match(std::string_view pattern, std::string_view path);

}  // namespace trireme::data
