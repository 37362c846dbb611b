// A program's own architecture in every part that knows architectures by name. Catches: a part that does not hear of it
// or takes it for a llama, and a model whose parameters nobody would give memory to.
#include "models/register.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "config/config.h"
#include "config/render.h"
#include "describe/architecture.h"
#include "observe/memory_estimate.h"
#include "observe/startup_report.h"

namespace trireme::models {
namespace {

using describe::ModelShape;
using testing::ElementsAre;
using testing::HasSubstr;

// What can be wrong with a model's units.
enum class Fault { none, no_unit, same_name, head_shape };

class Bag final : public Model {
 public:
  Bag(ModelShape shape, at::ScalarType dtype, Fault fault) : Model(std::move(shape), dtype) {
    const auto tensor = [&](std::string name, int64_t rows, int64_t cols) {
      return add_parameter({{std::move(name), {rows, cols}, {nn::Init::Kind::ones, 0}, true}});
    };
    const int64_t hidden = shape_.hidden, vocab = shape_.vocab;
    nn::Parameter* table = tensor("table", vocab, hidden);
    // As many rows as the vocabulary has, and yet not looked up.
    nn::Parameter* inner = tensor(fault == Fault::same_name ? "table" : "inner", vocab, hidden);
    head_ = shape_.tied ? table : tensor("head", fault == Fault::head_shape ? vocab + 1 : vocab, hidden);
    units_.push_back({"first", {table}});
    if (fault != Fault::no_unit) units_.push_back({"second", {inner}});
    if (!shape_.tied) units_.push_back({"last", {head_}});
  }
  void prepare(at::Device) override {}
  at::Tensor embed(const at::Tensor& tokens, const Pass&) override { return tokens; }
  at::Tensor block(int64_t, const at::Tensor& x, const Pass&, ops::KeyValueCache*) override { return x; }
  at::Tensor final_norm(const at::Tensor& x) override { return x; }
  nn::Parameter& head() override { return *head_; }

 private:
  nn::Parameter* head_;
};

Factory bag(Fault fault) {
  return [fault](const ModelShape& shape, at::ScalarType dtype) { return std::make_unique<Bag>(shape, dtype, fault); };
}

std::vector<std::string> at_most_ten(const ModelShape& shape) {
  if (shape.layers <= 10) return {};
  return {"model.layers = " + std::to_string(shape.layers) + " is more than 10"};
}

// Before any test, as before cli::main.
const bool registered = [] {
  register_architecture("bag", bag(Fault::none), "no order, no attention.", at_most_ten,
                        {{"window", 64, "tokens that it looks back"}, {"slope", 0.5, "of nothing"}});
  register_architecture("no-unit", bag(Fault::no_unit));
  register_architecture("same-name", bag(Fault::same_name));
  register_architecture("head-shape", bag(Fault::head_shape));
  return true;
}();

ModelShape shape_of(const std::string& architecture, bool tied = false) {
  ModelShape shape;
  shape.architecture = architecture;
  shape.layers = 3, shape.hidden = 8, shape.heads = 2, shape.kv_heads = 2, shape.head_dim = 4, shape.ffn = 16;
  shape.vocab = 300, shape.max_seq_len = 32, shape.tied = tied;
  return shape;
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string load(const std::string& model) {
  return error_of([&] {
    config::parse_config("[model]\nhidden = 8\nheads = 2\nffn = 16\nvocab = 300\n" + model + "[data]\npath = \"d\"\n",
                         "run.toml", "/");
  });
}

TEST(Register, ConfigKnowsTheName) {
  EXPECT_EQ(load("layers = 3\narchitecture = \"bag\"\n"), "no error");
  EXPECT_THAT(
      load("layers = 3\narchitecture = \"bga\"\n"),
      HasSubstr(
          "one of \"llama\", \"gpt\", \"bag\", \"no-unit\", \"same-name\" or \"head-shape\"; did you mean \"bag\"?"));
  EXPECT_THAT(config::render_all(), HasSubstr("bag: no order, no attention."));
}

TEST(Register, ItsOwnCheckDecidesAndOtherwiseThatOfALlama) {
  EXPECT_THAT(load("layers = 11\narchitecture = \"bag\"\n"), HasSubstr("model.layers = 11 is more than 10"));
  EXPECT_EQ(load("layers = 11\n"), "no error");
  ModelShape shape = shape_of("bag");
  shape.kv_heads = 3;
  EXPECT_THAT(describe::shape_faults(shape), ElementsAre());
  shape.architecture = "no-unit";
  EXPECT_THAT(describe::shape_faults(shape), ElementsAre(HasSubstr("model.kv_heads = 3")));
}

TEST(Register, OptionsOfItsOwn) {
  ModelShape shape = shape_of("bag");
  EXPECT_EQ(describe::model_option(shape, "window"), 64);
  shape.options = {"slope=-2.5e-1", "window=8"};
  EXPECT_EQ(describe::model_option(shape, "window"), 8);
  EXPECT_EQ(describe::model_option(shape, "slope"), -0.25);
  EXPECT_THAT(error_of([&] { describe::model_option(shape, "other"); }), HasSubstr("without an option other"));

  const std::string own = "layers = 3\narchitecture = \"bag\"\n";
  const struct {
    const char *model, *message;
  } rows[] = {
      {"options = [\"window=8\", \"slope=1\"]\n", "no error"},
      {"options = [\"widow=8\"]\n", "bag has no option \"widow\"; did you mean window?"},
      {"options = [\"x=8\"]\n", "bag has no option \"x\"; it has window, slope"},
      {"options = [\"window\"]\n", "\"window\": expected window=number, such as window=64"},
      {"options = [\"window=8x\"]\n", "\"window=8x\": expected window=number"},
      {"options = [\"window=nan\"]\n", "\"window=nan\": expected window=number"},
      {"options = [\"window=8\", \"window=9\"]\n", "window is given twice"},
  };
  for (const auto& row : rows) EXPECT_THAT(load(own + row.model), HasSubstr(row.message)) << row.model;
  // Kept whole and in one form, so that an author may change a standard and old runs keep theirs.
  shape.options = {"slope=5e-1"};
  describe::pin_options(shape);
  EXPECT_EQ(shape.options, (std::vector<std::string>{"window=64", "slope=0.5"}));
  shape.options = {"widow=8"};
  describe::pin_options(shape);
  EXPECT_EQ(shape.options, (std::vector<std::string>{"widow=8"})) << "a fault is left for its message";
  EXPECT_THAT(load("layers = 3\noptions = [\"window=8\"]\n"), HasSubstr("llama has no options of its own"));
  EXPECT_THAT(config::render_docs(), HasSubstr("window (tokens that it looks back; 64), slope (of nothing; 0.5)"));
}

TEST(Register, CountsComeFromTheModel) {
  for (const bool tied : {false, true}) {
    const ModelShape shape = shape_of("bag", tied);
    const describe::ParameterCounts counts = describe::count_parameters(shape);
    EXPECT_EQ(counts.embedding, 2400) << "tied " << tied;
    EXPECT_EQ(counts.head, tied ? 0 : 2400) << "tied " << tied;
    EXPECT_EQ(counts.other, 2400) << "tied " << tied;
    EXPECT_EQ(counts.total(), tied ? 4800 : 7200);
    // The table is looked up; the head and what lies between multiply.
    EXPECT_DOUBLE_EQ(describe::model_flops_per_token(shape, 16), 6.0 * 4800 + 12 * 3 * 8 * 16) << "tied " << tied;
  }
}

TEST(Register, ReportsSayWhatIsNotKnown) {
  observe::StartupReport report;
  static_cast<ModelShape&>(report.config.model) = shape_of("bag");
  report.config.train.seq_len = 32;
  const std::string text = observe::to_text(report);
  EXPECT_THAT(text, HasSubstr("bag, 7,200 parameters"));
  EXPECT_THAT(text, HasSubstr("Memory      more than "));
  EXPECT_THAT(text, HasSubstr("what bag keeps inside them is not known"));
  EXPECT_THAT(text, testing::Not(HasSubstr("feed-forward  ")));
  report.config.model.architecture = "llama";
  EXPECT_THAT(observe::to_text(report), HasSubstr("Memory      about "));
}

TEST(Register, MakesTheModelAndRefusesOneThatDoesNotFitTogether) {
  EXPECT_EQ(make_model(shape_of("bag"), at::kBFloat16)->parameters().size(), 3u);
  const struct {
    const char *architecture, *message;
  } rows[] = {{"no-unit", "inner is in no unit"},
              {"same-name", "two tensors in its units are called table"},
              {"head-shape", "head() is [301, 8], expected [vocab, hidden] = [300, 8]"},
              {"other", "it knows llama, gpt, bag, "}};
  for (const auto& row : rows)
    EXPECT_THAT(error_of([&] { make_model(shape_of(row.architecture), at::kFloat); }), HasSubstr(row.message));
}

TEST(Register, RefusesNamesThatCannotBe) {
  describe::architecture_names();  // as cli::main does
  const struct {
    const char *name, *message;
  } rows[] = {{"", "needs a name"}, {"llama", "is built in"}, {"bag", "registered already"}, {"late", "too late"}};
  for (const auto& row : rows)
    EXPECT_THAT(error_of([&] { register_architecture(row.name, bag(Fault::none)); }), HasSubstr(row.message));
}

}  // namespace
}  // namespace trireme::models
