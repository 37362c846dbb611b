// What is in an input file: its bytes as they are, or unpacked; one text, or a document a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"

namespace trireme::data {

/// Whether the name says that the file is packed: it ends in .gz or .zst, in any case.
bool is_packed(const std::filesystem::path& path);
/// Whether the name says JSON Lines: it ends in .jsonl or .ndjson, packed (.gz, .zst) or not.
bool is_json_lines(const std::filesystem::path& path);

/// The text of a file. `.gz` (any number of members) and `.zst` (any number of frames) are unpacked into a file of
/// their own in `scratch` that has no name, so memory is the page cache's and a crash leaves nothing. Throws InputError
/// that names the file: damaged, cut short, or not what its name says.
class InputText {
 public:
  static std::shared_ptr<const InputText> open(const std::filesystem::path& path, const std::filesystem::path& scratch);

  std::string_view text() const { return map_.text(); }
  /// Of the file on the disk.
  int64_t file_bytes() const { return file_bytes_; }

 private:
  MappedFile map_;
  int64_t file_bytes_ = 0;
};

/// The string that a line of JSON Lines has as `field`. Throws InputError that says what is wrong with the line.
std::string text_of_line(std::string_view line, const std::string& field);

}  // namespace trireme::data
