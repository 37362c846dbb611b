// What the tokenizer's tests share: texts of many kinds, a small tokenizer, folders that vanish.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "data/input_files.h"
#include "data/synthetic_text.h"
#include "data/tokenizer.h"
#include "data/tokenizer_training.h"

namespace trireme::data {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-tokenizer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_errno("make folder", name, errno);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Draws in order; every test has its own purpose, so that none disturbs another.
class Draws {
 public:
  explicit Draws(std::string_view purpose) : key_(random::make_key(1, purpose)) {}
  uint64_t below(uint64_t bound) { return random::below(key_, drawn_++, bound); }

 private:
  random::Key key_;
  uint64_t drawn_ = 0;
};

inline void append_utf8(std::string& text, uint32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
             static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    text += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
             static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  }
}

/// A random text of valid UTF-8 whose characters crowd around what the patterns tell apart.
inline std::string random_text(Draws& draws) {
  static const std::vector<std::string> pieces{
      " ",      "  ",     "\n",     "\r\n",   "\t",     "\v",     "a",          "b",      "Z",      "s",      "t",
      "re",     "LL",     "'",      "'s",     "'Ll",    "'re",    "0",          "12",     "9",      ".",      ",",
      "!?",     "_",      "-",      "\x01",   "\x7F",   "\u00E9", "\u017F",     "\u00A0", "\u180E", "\u2003", "\u2028",
      "\u0085", "\u2019", "\u4E2D", "\u0663", "\u00BD", "\u0301", "\U0001F600", "word",   "The"};
  std::string text;
  for (uint64_t count = draws.below(24); count > 0; --count) {
    switch (draws.below(8)) {
      case 0:
        append_utf8(text, static_cast<uint32_t>(draws.below(0x80)));
        break;
      case 1: {
        const auto c = static_cast<uint32_t>(draws.below(0x11000));
        append_utf8(text, c >= 0xD800 && c < 0xE000 ? 'x' : c);
        break;
      }
      default:
        text += pieces[draws.below(pieces.size())];
    }
  }
  return text;
}

inline std::string random_bytes(Draws& draws, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(draws.below(256));
  return bytes;
}

/// Files of English-like text.
inline std::vector<std::filesystem::path> write_texts(const std::filesystem::path& folder, int64_t documents) {
  write_synthetic_text(folder, documents, 3);
  const std::vector<std::string> inputs{folder.string()};
  return list_text_files(inputs);
}

/// A tokenizer of 600 tokens, trained once.
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = [] {
    const TemporaryFolder folder;
    TokenizerTraining options;
    options.vocab = 600;
    options.threads = 1;
    return train_tokenizer(write_texts(folder.path(), 20), options).tokenizer;
  }();
  return tokenizer;
}

inline std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// The message of the InputError that `action` throws; "" when it throws none.
template <typename Action>
std::string input_error(Action&& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace trireme::data
