#include "data/input_text.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;

std::string extension_of(const fs::path& path) { return lower(path.extension().string()); }

FileDescriptor nameless_file(const fs::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file) return file;
  // Some file systems cannot make a file without a name.
  std::string name = (folder / ".unpacked-XXXXXX").string();
  file.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) throw_errno("make a temporary file in", folder.string(), errno);
  ::unlink(name.c_str());
  return file;
}

void unpack_gzip(const fs::path& path, int to, const fs::path& scratch) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (!file) throw_errno("open", path.string(), errno);
  gzbuffer(file.get(), static_cast<unsigned>(kPiece));
  std::vector<char> piece(kPiece);
  bool any = false;
  for (;;) {
    const int got = gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()));
    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
      throw_input("{} is damaged or cut short: {}", path.string(), message);
    // zlib hands out a file without its signature as it is.
    if (!any && gzdirect(file.get()) != 0 && got > 0)
      throw_input("{} is not packed with gzip, as its name says", path.string());
    if (got == 0) return;
    any = true;
    write_all(to, {piece.data(), static_cast<size_t>(got)}, scratch);
  }
}

void unpack_zstd(const fs::path& path, int to, const fs::path& scratch) {
  const MappedFile packed(path);
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(), &ZSTD_freeDStream);
  ZSTD_inBuffer in{packed.bytes().data(), packed.bytes().size(), 0};
  std::vector<char> piece(kPiece);
  size_t left = 0;
  bool full = false;  // the last call may have more to give
  while (in.pos < in.size || full) {
    ZSTD_outBuffer out{piece.data(), piece.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left) != 0) throw_input("{} is damaged: {}", path.string(), ZSTD_getErrorName(left));
    write_all(to, {piece.data(), out.pos}, scratch);
    full = out.pos == out.size;
  }
  if (left != 0) throw_input("{} is cut short: its last zstd frame has no end", path.string());
}

}  // namespace

bool is_packed(const fs::path& path) {
  const std::string extension = extension_of(path);
  return extension == ".gz" || extension == ".zst";
}

bool is_json_lines(const fs::path& path) {
  const std::string extension = extension_of(is_packed(path) ? path.stem() : path);
  return extension == ".jsonl" || extension == ".ndjson";
}

std::shared_ptr<const InputText> InputText::open(const fs::path& path, const fs::path& scratch) {
  auto input = std::make_shared<InputText>();
  if (!is_packed(path)) {
    input->map_ = MappedFile(path);
    input->file_bytes_ = static_cast<int64_t>(input->map_.text().size());
    return input;
  }
  const FileDescriptor file = nameless_file(scratch);
  (extension_of(path) == ".gz" ? unpack_gzip : unpack_zstd)(path, file.get(), scratch);
  input->map_ = MappedFile(file, path);
  input->file_bytes_ = static_cast<int64_t>(fs::file_size(path));
  return input;
}

std::string text_of_line(std::string_view line, const std::string& field) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw InputError("is not JSON (or not UTF-8)");
  if (!json.is_object()) throw_input("is {} where an object is expected", json.type_name());
  const auto found = json.find(field);
  if (found == json.end()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : json.items()) keys.push_back(key);
    const std::string near = nearest(field, keys);
    throw_input("has no field `{}`{}", field, near.empty() ? "" : fmt::format("; did you mean --text-field {}?", near));
  }
  if (!found->is_string()) throw_input("has {} as `{}`, where a string is expected", found->type_name(), field);
  return found->get<std::string>();
}

}  // namespace trireme::data
