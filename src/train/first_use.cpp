#include "train/first_use.h"

#include "base/error.h"
#include "data/input_files.h"
#include "data/prepare.h"
#include "data/synthetic_text.h"
#include "data/tokenizer_training.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

// About 1 MB to train on and 100 KB held out, of different seeds.
constexpr int64_t kTrainDocuments = 500, kEvalDocuments = 50;
constexpr uint64_t kTrainSeed = 1, kEvalSeed = 2;

fs::path beside(const fs::path& path, const char* suffix) {
  fs::path normal = path.lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal += suffix;
}

bool prepared(const fs::path& folder) { return fs::exists(folder / "manifest.json"); }

std::vector<std::string> generate_text(const fs::path& path, int64_t documents, uint64_t seed) {
  const fs::path folder = beside(path, "-text");
  data::write_synthetic_text(folder, documents, seed);
  return {folder.string()};
}

void prepare_split(const fs::path& out, const fs::path& tokenizer, std::vector<std::string> text,
                   const std::string& text_field, const std::function<void(const std::string&)>& say) {
  data::PrepareOptions options;
  options.tokenizer = tokenizer;
  options.out = out;
  options.inputs = std::move(text);
  options.text_field = text_field;
  const data::PrepareReport report = data::prepare(options);
  const data::PrepareCounts& counts = report.splits.at(0).counts;
  say(fmt::format("prepared {}: {} documents, {} tokens, {} bytes of text", out.string(), counts.documents,
                  counts.tokens, counts.text_bytes));
}

}  // namespace

void prepare_on_first_use(const config::Config& config, const std::function<void(const std::string&)>& say) {
  const config::DataConfig& data = config.data;
  const bool generated = !data.generator.empty();
  if (!prepared(data.path) && (generated || !data.text.empty())) {
    const std::vector<std::string> text = generated ? generate_text(data.path, kTrainDocuments, kTrainSeed) : data.text;
    const fs::path tokenizer = beside(data.path, "-tokenizer");
    if (!fs::exists(tokenizer / "manifest.json")) {
      data::TokenizerTraining training;
      training.vocab = data.vocab;
      training.text_field = data.text_field;
      const data::TrainedTokenizer trained = data::train_tokenizer(data::list_text_files(text), training);
      trained.tokenizer.save(tokenizer);
      say(fmt::format("trained a tokenizer of {} tokens on {} files: {}", trained.tokenizer.vocab_size(), trained.files,
                      tokenizer.string()));
    } else if (const int64_t there = data::Tokenizer::load(tokenizer).vocab_size(); there != data.vocab) {
      throw_input(
          "data.vocab = {}, but the tokenizer that lies in {} from an earlier use has {} tokens; move it away, or set "
          "data.vocab = {}",
          data.vocab, tokenizer.string(), there, there);
    }
    prepare_split(data.path, tokenizer, text, data.text_field, say);
  }
  // Looked at by itself: a first use that was interrupted between the two has left only the first.
  if (data.eval_path.empty() || prepared(data.eval_path) || !prepared(data.path)) return;
  const std::vector<std::string> eval_text =
      generated ? generate_text(data.eval_path, kEvalDocuments, kEvalSeed) : data.eval_text;
  // The copy in data.path is the tokenizer that made the training data, wherever that came from.
  if (!eval_text.empty()) prepare_split(data.eval_path, data.path / "tokenizer", eval_text, data.text_field, say);
}

}  // namespace trireme::train
