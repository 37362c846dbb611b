// The tokenizer as a process, for tests and benchmarks that are written in Python.
//
//   test_tokenizer_pipe train OUT VOCAB PATTERN THREADS FILE...
//       trains and saves; prints the seconds it took
//   test_tokenizer_pipe encode FOLDER
//       standard input: texts, each with its length before it (uint32); standard output: for each its number of ids
//       (uint32) and the ids
//   test_tokenizer_pipe speed FOLDER REPEATS FILE...
//       prints the CPU seconds of each repeat over all files, on one thread
//   test_tokenizer_pipe threads FOLDER REPEATS THREADS FILE...
//       prints the seconds by the clock of each repeat over all files, which the threads take one by one
//   test_tokenizer_pipe synthetic OUT DOCUMENTS SEED
//       writes synthetic text
#include <fmt/format.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/input_files.h"
#include "data/synthetic_text.h"
#include "data/tokenizer.h"
#include "data/tokenizer_training.h"

namespace {

using trireme::data::Tokenizer;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// CPU time of this thread: on a shared machine the time of day measures the neighbours.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int train(const std::vector<std::string>& words) {
  trireme::data::TokenizerTraining options;
  options.vocab = std::stoll(words.at(1));
  options.pattern = words.at(2);
  options.threads = std::stoi(words.at(3));
  const auto files = trireme::data::list_text_files(std::span(words).subspan(4));
  const auto start = std::chrono::steady_clock::now();
  const auto trained = trireme::data::train_tokenizer(files, options);
  fmt::print("{:.3f}\n", seconds_since(start));
  trained.tokenizer.save(words[0]);
  return 0;
}

int encode(const std::vector<std::string>& words) {
  const Tokenizer tokenizer = Tokenizer::load(words.at(0));
  std::string text;
  std::vector<int32_t> ids;
  for (uint32_t length; std::fread(&length, sizeof length, 1, stdin) == 1;) {
    text.resize(length);
    if (std::fread(text.data(), 1, length, stdin) != length) throw trireme::InputError("the input ends inside a text");
    ids.clear();
    tokenizer.encode(text, ids);
    if (tokenizer.decode(ids) != text) throw trireme::InternalError("a text does not come back from its ids");
    const auto count = static_cast<uint32_t>(ids.size());
    std::fwrite(&count, sizeof count, 1, stdout);
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
  }
  return 0;
}

int speed(const std::vector<std::string>& words) {
  const Tokenizer tokenizer = Tokenizer::load(words.at(0));
  std::vector<std::string> texts;
  for (size_t i = 2; i < words.size(); ++i) texts.push_back(trireme::read_file(words[i]));
  std::vector<int32_t> ids;
  for (int repeat = std::stoi(words.at(1)); repeat > 0; --repeat) {
    ids.clear();
    const double start = cpu_seconds();
    for (const std::string& text : texts) tokenizer.encode(text, ids);
    fmt::print("{:.6f}\n", cpu_seconds() - start);
  }
  return 0;
}

int threads(const std::vector<std::string>& words) {
  const Tokenizer tokenizer = Tokenizer::load(words.at(0));
  std::vector<std::string> texts;
  for (size_t i = 3; i < words.size(); ++i) texts.push_back(trireme::read_file(words[i]));
  for (int repeat = std::stoi(words.at(1)); repeat > 0; --repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::atomic<size_t> next = 0;
    {
      std::vector<std::jthread> team;
      for (int thread = std::stoi(words.at(2)); thread > 0; --thread) {
        team.emplace_back([&] {
          std::vector<int32_t> ids;
          for (size_t i = next++; i < texts.size(); i = next++) tokenizer.encode(texts[i], ids);
        });
      }
    }
    fmt::print("{:.6f}\n", seconds_since(start));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string mode = argc > 1 ? argv[1] : "";
    const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
    if (mode == "train") return train(words);
    if (mode == "encode") return encode(words);
    if (mode == "speed") return speed(words);
    if (mode == "threads") return threads(words);
    if (mode == "synthetic") {
      trireme::data::write_synthetic_text(words.at(0), std::stoll(words.at(1)), std::stoull(words.at(2)));
      return 0;
    }
    throw trireme::InputError("the first word is train, encode, speed, threads or synthetic");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
