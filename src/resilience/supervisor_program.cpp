#include "resilience/supervisor_program.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace trireme::resilience {
namespace {

// The words of the command line, in this order; the workers' arguments follow.
template <typename Options, typename Visit>
void each_field(Options& options, Visit visit) {
  visit(options.program);
  visit(options.run_dir);
  visit(options.local_workers);
  visit(options.first_rank);
  visit(options.world_size);
  visit(options.node_rank);
  visit(options.master_addr);
  visit(options.master_port);
}

std::string to_word(const std::string& value) { return value; }
std::string to_word(const std::filesystem::path& value) { return value.string(); }
std::string to_word(int value) { return std::to_string(value); }

int64_t number(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  TRIREME_CHECK(error == std::errc() && end == word.data() + word.size(), "`{}` is not a number", word);
  return value;
}
void from_word(const std::string& word, std::string& value) { value = word; }
void from_word(const std::string& word, std::filesystem::path& value) { value = word; }
void from_word(const std::string& word, int& value) { value = static_cast<int>(number(word)); }

}  // namespace

void become_supervisor(const std::filesystem::path& program, SupervisorOptions options) {
  // There, /proc/self/exe is another program.
  std::error_code error;
  if (options.program == "/proc/self/exe") options.program = std::filesystem::read_symlink(options.program, error);
  // A program that was replaced while it ran has another name now.
  if (error || !std::filesystem::exists(options.program, error)) return;
  std::vector<std::string> words = {program.string(), TRIREME_VERSION};
  each_field(options, [&](const auto& field) { words.push_back(to_word(field)); });
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(argv[0], argv.data());
  log::warning("cannot start {}: {}; this process watches the workers, and holds more memory", argv[0],
               std::strerror(errno));
}

int supervisor_main(int argc, char** argv) {
  const auto fail = [](ExitCode code, const std::string& message) {
    const std::string text = "trireme: error: " + message + (message.ends_with('\n') ? "" : "\n");
    std::fwrite(text.data(), 1, text.size(), stderr);
    return static_cast<int>(code);
  };
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    SupervisorOptions options;
    size_t next = 1;
    if (words.empty() || words[0] != TRIREME_VERSION)
      return fail(ExitCode::bad_input, fmt::format("{} is the part of trireme {} that watches workers; `trireme train` "
                                                   "of the same version starts it",
                                                   argv[0], TRIREME_VERSION));
    each_field(options, [&](auto& field) {
      TRIREME_CHECK(next < words.size(), "{} words, and more are needed", words.size());
      from_word(words[next++], field);
    });
    options.arguments.assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
    const SupervisorResult result = supervise(options);
    return result.message.empty() ? static_cast<int>(result.code) : fail(result.code, result.message);
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::internal, "out of memory");
  } catch (const std::exception& error) {
    return fail(ExitCode::internal, error.what());
  }
}

}  // namespace trireme::resilience
