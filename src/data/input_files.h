// Which files a user means by a list of files, folders and patterns. One rule for everything that reads text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

struct InputFile {
  std::filesystem::path path;
  std::string name;  ///< relative to the folder that was given; the file's name for a file
  int64_t bytes = 0;
  int64_t modified_ns = 0;
};

/// A file is itself, a folder all files below it, and a word with *, ? or [ what it matches as glob_match() says:
/// files, and all files below folders. Names that begin with a dot are left out, and so is the folder `except` (a
/// program's own output). Links to folders are followed; a folder is read once. Each file once, sorted by path. Throws
/// one InputError for all inputs that name nothing and all files and folders that cannot be read.
std::vector<InputFile> find_input_files(std::span<const std::string> inputs, const std::filesystem::path& except = {});

/// The paths of find_input_files(inputs).
std::vector<std::filesystem::path> list_text_files(std::span<const std::string> inputs);

/// `*` and `?` stay within a path component, `**` crosses components, `[a-z]` and `[!a-z]` are classes.
bool glob_match(std::string_view pattern, std::string_view path);

}  // namespace trireme::data
