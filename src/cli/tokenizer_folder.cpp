#include "cli/tokenizer_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace trireme::cli {

void check_tokenizer_folder(const std::string& out, int64_t vocab_size, bool force) {
  const std::filesystem::path folder(out);
  make_directories(folder);
  if (::access(folder.c_str(), W_OK) != 0) throw_errno("write to", out, errno);
  if (force || !std::filesystem::exists(folder / "manifest.json")) return;
  try {
    const data::Tokenizer old = data::Tokenizer::load(folder);
    if (old.vocab_size() == vocab_size) return;
    throw_input("{} already holds another tokenizer, of {} tokens", out, old.vocab_size());
  } catch (const InputError& error) {
    throw_input("{}; choose another --out, or give --force", error.what());
  }
}

std::string save_tokenizer(const std::string& out, const data::Tokenizer& fresh, bool force) {
  const std::filesystem::path folder(out);
  if (!force && std::filesystem::exists(folder / "manifest.json")) {
    const std::string old = data::Tokenizer::load(folder).hash();
    if (old != fresh.hash()) {
      const std::string beside = (folder.has_filename() ? folder : folder.parent_path()).string() + ".new";
      fresh.save(beside);
      throw_input(
          "{} holds another tokenizer (hash {}, the new one has {}); the new one was written to {}. Take that, or give "
          "--force",
          out, old, fresh.hash(), beside);
    }
  }
  fresh.save(folder);
  return out;
}

}  // namespace trireme::cli
