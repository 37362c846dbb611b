// `trireme plan` as a user calls it: what it prints, what it writes, what it refuses, and its exit codes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "config/config.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int code = 0;
  std::string out, error;
};

Outcome plan(std::vector<std::string> words) {
  CLI::App app;
  add_plan(app);
  words.insert(words.begin(), "plan");
  std::ranges::reverse(words);  // as CLI11 takes a vector
  Outcome outcome;
  testing::internal::CaptureStdout();
  try {
    app.parse(words);
  } catch (const CLI::RuntimeError& ended) {
    outcome.code = ended.get_exit_code();
  } catch (const Error& error) {
    outcome.code = static_cast<int>(error.code());
    outcome.error = error.what();
  } catch (const CLI::ParseError& error) {
    outcome.code = 2;
    outcome.error = error.what();
  }
  outcome.out = testing::internal::GetCapturedStdout();
  return outcome;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::filesystem::path source(const char* file) { return std::filesystem::path(TRIREME_SOURCE_DIR) / file; }

TEST(PlanCommand, ModelByName) {
  const Outcome page = plan({"--model", "llama3-405b", "--hardware", "H100-SXM", "--gpus", "16384"});
  EXPECT_EQ(page.code, 0) << page.error;
  for (const char* part : {"llama3.1-405b", "H100-80GB-SXM", "Memory", "activations", "Limits", "Search", "4 Mi tokens",
                           "not in `trireme train` yet"})
    EXPECT_THAT(page.out, HasSubstr(part));
  const Outcome programs = plan({"--model", "llama3-405b", "--hardware", "h100-sxm", "--gpus", "16384", "--json"});
  const json result = json::parse(programs.out);
  for (const char* key : {"fits", "layout", "step_time_s", "memory_bytes", "limits"})
    EXPECT_TRUE(result.contains(key)) << key;
  EXPECT_EQ(result["fits"], true);
  EXPECT_EQ(result["global_batch"].get<int64_t>() * result["seq_len"].get<int64_t>(), 16 << 20);
  double memory = 0, time = 0;
  for (const json& item : result["memory"]) memory += item["bytes"].get<double>();
  for (const auto& [term, seconds] : result["time_s"].items()) time += seconds.get<double>();
  EXPECT_DOUBLE_EQ(memory, result["memory_bytes"].get<double>());
  EXPECT_NEAR(time, result["step_time_s"].get<double>(), 1e-9);
}

TEST(PlanCommand, WhatDoesNotFitEndsWithCodeFourAndRemedies) {
  const Outcome none = plan({"--model", "llama3-405b", "--hardware", "h100-sxm", "--gpus", "8", "--json"});
  EXPECT_EQ(none.code, 4);
  EXPECT_EQ(json::parse(none.out)["fits"], false);
  // A layout that does not fit, with some that do.
  const Outcome narrow =
      plan({"--model", "llama3-70b", "--hardware", "h100-sxm", "--gpus", "64", "--tensor", "8", "--pipeline", "1",
            "--context", "1", "--shard", "none", "--micro-batch", "1", "--recompute", "none", "--json"});
  EXPECT_EQ(narrow.code, 4) << narrow.error;
  const json result = json::parse(narrow.out);
  EXPECT_EQ(result["verdict"], "does not fit");
  EXPECT_FALSE(result["remedies"].empty());
  EXPECT_EQ(result["limits"][0]["kind"], "memory");
}

TEST(PlanCommand, ConfigFileHasItsOwnLayout) {
  const Outcome outcome = plan({source("configs/sotu.toml").string(), "--hardware", "a100", "--gpus", "2", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["layout"]["data"], 2);
  EXPECT_EQ(result["layout"]["tensor"], 1);
  EXPECT_EQ(result["missing_in_trainer"], json::array());
}

// ZeRO++ on two tiers so slow that nothing hides what they carry: seconds and bytes by arithmetic, over four
// micro-batches a step.
TEST(PlanCommand, QuantizedExchangesAndASecondShardArePlanned) {
  const auto planned = [](std::vector<std::string> settings) {
    std::vector<std::string> arguments = {source("configs/sotu.toml").string()};
    settings.insert(settings.end(),
                    {"parallel.shard=parameters", "model.layers=32", "model.hidden=4096", "model.ffn=11008",
                     "model.heads=32", "model.kv_heads=32", "train.micro_batch_size=1", "train.global_batch_size=256"});
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    for (const char* argument :
         {"--hardware", "h100-sxm", "--gpus", "64", "--json", "--hardware-value", "scale_up_gbs=8", "--hardware-value",
          "peer_gbs=8", "--hardware-value", "scale_out_gbs=1", "--constant", "link_share=1"})
      arguments.emplace_back(argument);
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return json::parse(outcome.out);
  };
  const auto seconds = [](const json& result) { return result["time_s"]["gather"].get<double>(); };
  const auto bytes = [](const json& result, const char* purpose) {
    double sum = 0;
    for (const json& item : result["memory"]) sum += item["purpose"] == purpose ? item["bytes"].get<double>() : 0;
    return sum;
  };
  const double block = 4.0 * 4096 * 4096 + 3.0 * 4096 * 11008 + 2 * 4096, ends = 4096.0 * 4096 + 4096;
  const double all = 32 * block + ends, again = 30 * block, int8 = 1 + 4.0 / 256, int4 = 0.5 + 4.0 / 256;
  // All 8 ports of a domain carry a part of what is gathered and of what is added up on the way; neighbours have their
  // links; what goes straight crosses on one port. Latency: 2 us a rank of the domain, 10 us a doubling of domains.
  const auto far = [](double sent) { return 63.0 / 64 * sent / 8e9 + 44e-6; };
  const auto near = [](double sent) { return 7.0 / 8 * sent / 8e9 + 14e-6; };
  const auto straight = [](double sent) { return 56.0 / 64 * sent / 1e9 + 10e-6; };
  const double memory = 3350e9 * 0.6;
  const json plain = planned({});
  ASSERT_EQ(plain["micro_batches"], 4);

  const json second = planned({"parallel.reshard_after_forward=8"});
  EXPECT_NEAR(seconds(plain) - seconds(second), 7 * (far(2 * again) - near(2 * again)), 1e-6);
  EXPECT_NEAR(bytes(second, "second shard"), 2 * 32 * block / 8, 1);
  EXPECT_EQ(bytes(plain, "second shard"), 0);

  const json weights = planned({"parallel.quantize_weights=int8"});
  const double rounded = ((4 + int8) / 64 + int8 + 2) / memory;  // seconds a weight
  EXPECT_NEAR(seconds(plain) - seconds(weights),
              far(2 * all) - far(int8 * all) + 7 * (far(2 * again) - far(int8 * again)) - rounded * (all + 7 * again),
              1e-6);
  EXPECT_NEAR(bytes(weights, "messages"), int8 * (2 * block + ends) * (1 + 1.0 / 64), 1);

  const json gradients = planned({"parallel.quantize_gradients=int4", "parallel.quantize_error_feedback=true"});
  const double summed = (63.0 / 64 * (4 + 8 + 2 * int4) + 8.0 / 64) / memory;
  EXPECT_NEAR(seconds(plain) - seconds(gradients), 4 * (far(4 * all) - straight(int4 * all) - summed * all), 1e-6);
  EXPECT_NEAR(bytes(gradients, "messages"), 4 * int4 * block * 63 / 64, 1);
  EXPECT_NEAR(bytes(gradients, "residuals of gradients"), 4 * all * 63 / 64, 1);
}

TEST(PlanCommand, WritesWhatTheTrainerTakes) {
  const auto file = std::filesystem::path(testing::TempDir()) / "plan_best.toml";
  const Outcome outcome = plan({source("configs/sotu.toml").string(), "--hardware", "a100", "--gpus", "2", "--search",
                                "--write", file.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  config::Config written = config::load_config(file);
  EXPECT_EQ(written.parallel.data, 2);
  EXPECT_NO_THROW(config::resolve_world(written, 2));
  const config::Config asked = config::load_config(source("configs/sotu.toml"));
  EXPECT_EQ(written.train.global_batch_size % (written.train.micro_batch_size * 2), 0);
  EXPECT_EQ(written.optimizer.lr, asked.optimizer.lr);
  EXPECT_EQ(written.model.layers, asked.model.layers);
  std::filesystem::remove(file);
}

// The file is planned as the search ranked its layout: it has every option that the search counted on, and no other.
TEST(PlanCommand, WhatIsWrittenIsPlannedAsItWasRanked) {
  const auto file = std::filesystem::path(testing::TempDir()) / "plan_ranked.toml";
  const std::vector<std::string> machine = {"--hardware", "h100-sxm", "--gpus", "64", "--json"};
  for (const auto& [memory, shard] : {std::pair("80", "gradients"), {"16", "parameters"}}) {
    SCOPED_TRACE(memory);
    std::vector<std::string> first = {source("configs/sotu.toml").string(), "--search", "--write", file.string()};
    for (const char* setting :
         {"parallel.shard=parameters", "parallel.reshard_after_forward=8", "parallel.quantize_weights=int8",
          "parallel.quantize_gradients=int8", "model.layers=32", "model.hidden=4096", "model.ffn=11008",
          "model.heads=32", "model.kv_heads=32", "train.micro_batch_size=1", "train.global_batch_size=256"})
      first.insert(first.end(), {"--set", setting});
    for (const char* axis : {"--tensor", "--pipeline", "--context", "--virtual-stages"})
      first.insert(first.end(), {axis, "1"});
    std::vector<std::string> second = {file.string()};
    for (auto* arguments : {&first, &second}) {
      arguments->insert(arguments->end(), machine.begin(), machine.end());
      arguments->insert(arguments->end(), {"--hardware-value", std::string("memory_gib=") + memory});
    }
    const Outcome searched = plan(first), again = plan(second);
    ASSERT_EQ(searched.code, 0) << searched.error;
    ASSERT_EQ(again.code, 0) << again.error;
    const json ranked = json::parse(searched.out)["search"]["best"][0], planned = json::parse(again.out);
    EXPECT_EQ(ranked["layout"]["shard"], shard);
    EXPECT_EQ(ranked["layout"], planned["layout"]);
    EXPECT_DOUBLE_EQ(ranked["step_time_s"].get<double>(), planned["step_time_s"].get<double>());
    EXPECT_DOUBLE_EQ(ranked["memory_bytes"].get<double>(), planned["memory_bytes"].get<double>());
  }
  std::filesystem::remove(file);
}

// 80 layers of a 70 B model: 64 accelerators hold it if they divide the weights, 8 do not.
std::vector<std::string> large_model(const std::string& gpus, const std::string& file) {
  std::vector<std::string> arguments = {source("configs/sotu.toml").string()};
  for (const char* setting :
       {"model.layers=80", "model.hidden=8192", "model.ffn=28672", "model.heads=64", "model.kv_heads=8",
        "train.global_batch_size=64", "train.micro_batch_size=1", "data.vocab=8192"})
    arguments.insert(arguments.end(), {"--set", setting});
  for (const std::string& argument : {std::string("--hardware"), std::string("h100-sxm"), std::string("--gpus"), gpus,
                                      std::string("--search"), std::string("--write"), file})
    arguments.push_back(argument);
  return arguments;
}

TEST(PlanCommand, WritesWhatIsDividedAmongDataRanks) {
  const auto file = std::filesystem::path(testing::TempDir()) / "plan_divided.toml";
  const Outcome outcome = plan(large_model("64", file.string()));
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  config::Config written = config::load_config(file);
  EXPECT_EQ(written.parallel.shard, config::Shard::parameters);
  config::resolve_world(written, 64);
  EXPECT_EQ(written.parallel.shard_size, 64);
  std::filesystem::remove(file);
}

TEST(PlanCommand, WritesNothingThatTheTrainerCannotRun) {
  const auto file = std::filesystem::path(testing::TempDir()) / "plan_none.toml";
  std::filesystem::remove(file);
  const Outcome outcome = plan(large_model("8", file.string()));
  EXPECT_EQ(outcome.code, 2) << outcome.error;
  EXPECT_THAT(outcome.error, HasSubstr("Data ranks that divide what they can need"));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(PlanCommand, AllFaultsAtOnceInTheUsersWords) {
  const struct {
    std::vector<std::string> words;
    std::vector<const char*> parts;
  } rows[] = {
      {{}, {"CONFIG or --model", "--hardware is missing", "--gpus is missing"}},
      {{"--model", "llama3-8", "--hardware", "h100-sxm", "--gpus", "8"}, {"did you mean \"llama3-8b\"?"}},
      {{"--model", "llama3-8b", "--hardware", "h100-smx", "--gpus", "8"}, {"did you mean \"h100-sxm\"?"}},
      {{"--model", "llama3-8b", "--hardware", "h100-sxm", "--gpus", "8", "--tensor", "3"},
       {"tensor = 3 does not divide model.heads = 32; 2 or 4"}},
      {{"--model", "llama3-8b", "--hardware", "h100-sxm", "--gpus", "8", "--constant", "matmul_share=2"},
       {"at most 1"}},
      {{"--model", "llama3-8b", "--hardware", "h100-sxm", "--gpus", "8", "--write", "x.toml"}, {"--write keeps"}},
      {{"--model", "llama3-8b", "--hardware", "a100", "--gpus", "8", "--precision", "fp8"}, {"has no fp8"}},
      {{"--model", "llama3-8b", "--hardware", "h100-sxm", "--gpus", "8", "--tokens", "1e9", "--days", "3"},
       {"one of tokens, FLOPs and days"}},
      {{source("configs/sotu.toml").string(), "--hardware", "a100", "--gpus", "2", "--set", "train.precision=fp64"},
       {"fp64"}},
      {{source("configs/sotu.toml").string(), "--hardware", "a100", "--gpus", "2", "--seq-len", "128"},
       {"train.seq_len"}},
      {{"--model", "llama3-8b", "--hardware", "h100-sxm", "--gpus", "8", "--price", "2", "--fit", "--search",
        "--restart-seconds", "9"},
       {"--price needs --tokens", "--fit needs --rows", "--search is what", "--restart-seconds needs --gpu-mtbf"}},
      {{"--model", "gpt2", "--hardware", "l4", "--gpus", "64", "--seq-len", "4096", "--hardware-value", "memory_gbs=0"},
       {"longer than the 1024 learned positions", "scale_out_gbs", "memory_gbs of L4 is 0"}},
      {{"--list", "--gpus", "8"}, {"--gpus says nothing to --list"}},
  };
  for (const auto& row : rows) {
    const Outcome outcome = plan(row.words);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    for (const char* part : row.parts) EXPECT_THAT(outcome.error, HasSubstr(part));
  }
}

TEST(PlanCommand, DaysMoneyAndFailures) {
  const Outcome outcome =
      plan({"--model", "llama3-405b", "--hardware", "h100-sxm", "--gpus", "16384", "--tokens", "15.6e12", "--price",
            "2", "--carbon", "400", "--gpu-mtbf-hours", "50626", "--restart-seconds", "300", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const json result = json::parse(outcome.out);
  EXPECT_NEAR(result["run"]["flops"].get<double>(), 3.8e25, 0.02e25);
  EXPECT_NEAR(result["goodput"].get<double>(), 0.904, 0.002);
  EXPECT_NEAR(result["run"]["usd"].get<double>(), 2 * result["run"]["gpu_hours"].get<double>(), 1);
  EXPECT_GT(result["run"]["tonnes_co2"].get<double>(), 0);
}

TEST(PlanCommand, OtherConventionsWhenAsked) {
  const Outcome outcome =
      plan(words("--model llama3-8b --hardware h100-sxm --gpus 8 --seq-len 8192 --global-batch 8 --tensor 1 --pipeline "
                 "1 --context 1 --shard optimizer --micro-batch 1 --recompute none --megatron-memory --gpu-mtbf-hours "
                 "24000 --failure-shape 0.7 --repair-hours 48 --json"));
  const json result = json::parse(outcome.out);
  // theoretical_memory_usage.py: 57436.9 and 36936.1 MiB.
  EXPECT_NEAR(result["megatron_memory_bytes"]["weights_and_optimizer"].get<double>() / 1048576, 57436.9, 0.6);
  EXPECT_NEAR(result["megatron_memory_bytes"]["activations"].get<double>() / 1048576, 36936.1, 0.6);
  EXPECT_EQ(result["spare_machines"], 1);
  EXPECT_GT(result["goodput"].get<double>(), 0.9);
}

TEST(PlanCommand, ScoresATableOfMeasuredRuns) {
  const Outcome outcome =
      plan({"--rows", source("tests/plan/data/korthikanti_table5.tsv").string(), "--fit", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const json result = json::parse(outcome.out);
  ASSERT_EQ(result["rows"].size(), 9u);
  EXPECT_LT(result["mape"].get<double>(), 0.04);
  EXPECT_TRUE(result["skipped"].empty());
  for (const char* key : {"id", "predicted_step_s", "measured_step_s", "error"})
    EXPECT_TRUE(result["rows"][0].contains(key)) << key;
  EXPECT_EQ(plan({"--rows", "nowhere.tsv"}).code, 2);
}

TEST(PlanCommand, CalibratesToRunsOfTheSameAccelerator) {
  const std::string table = source("tests/plan/data/vtrain.tsv").string();
  const std::vector<std::string> words = {"--model",        "gpt3-175b", "--gpus",      "64",
                                          "--global-batch", "64",        "--precision", "fp16",
                                          "--calibrate",    table,       "--json",      "--hardware"};
  std::vector<std::string> a100 = words, h100 = words;
  a100.emplace_back("a100");
  h100.emplace_back("h100-sxm");
  const Outcome fitted = plan(a100);
  ASSERT_EQ(fitted.code, 0) << fitted.error;
  const json result = json::parse(fitted.out);
  EXPECT_NEAR(result["constants"]["matmul_share"].get<double>(), 0.78, 0.03);
  EXPECT_THAT(result["assumed"].dump(), HasSubstr("fitted to 55 runs"));
  EXPECT_THAT(plan(h100).error, HasSubstr("has no run that can be planned on H100-80GB-SXM in fp16"));
}

TEST(PlanCommand, DrawsAStep) {
  const std::filesystem::path trace = std::filesystem::temp_directory_path() /
                                      fmt::format("plan-timeline-{}.json", ::getpid()),
                              drawing = std::filesystem::temp_directory_path() /
                                        fmt::format("plan-timeline-{}.svg", ::getpid());
  std::vector<std::string> line = words(
      "--model llama3-8b --hardware h100-sxm --gpus 16 --global-batch 64 --tensor 2 --pipeline 4 --virtual-stages 1 "
      "--json");
  const Outcome traced = plan([&] {
    auto with = line;
    with.insert(with.end(), {"--timeline", trace.string()});
    return with;
  }());
  ASSERT_EQ(traced.code, 0) << traced.error;
  const json events = json::parse(read_file(trace)).at("traceEvents");
  double end = 0;
  int passes = 0;
  for (const json& event : events) {
    if (event.at("ph") != "X") continue;
    end = std::max(end, event.at("ts").get<double>() + event.at("dur").get<double>());
    passes += event.at("cat") == "forward" ? 1 : 0;
  }
  const json answer = json::parse(traced.out);
  EXPECT_NEAR(end, 1e6 * answer.at("step_time_s").get<double>(), 1e-3 * end);
  EXPECT_EQ(passes, 4 * answer.at("micro_batches").get<int>());
  line.insert(line.end(), {"--timeline", drawing.string()});
  ASSERT_EQ(plan(line).code, 0);
  const std::string svg = read_file(drawing);
  EXPECT_THAT(svg,
              testing::AllOf(testing::StartsWith("<svg"), HasSubstr("pipeline rank 3"), testing::EndsWith("</svg>\n")));
  line.back() = "timeline.png";
  const Outcome refused = plan(line);
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.error, HasSubstr("FILE.svg is a drawing"));
  std::filesystem::remove(trace);
  std::filesystem::remove(drawing);
}

TEST(PlanCommand, ComparesTwo) {
  const Outcome page = plan(words("compare llama3-8b llama3-70b --hardware h100-sxm --gpus 64 --tokens 1e12"));
  EXPECT_EQ(page.code, 0) << page.error;
  EXPECT_THAT(page.out, testing::AllOf(HasSubstr("llama3-8b: "), HasSubstr("llama3-70b: "), HasSubstr("A has "),
                                       HasSubstr("moments"), HasSubstr("products"), HasSubstr("GPU-hours")));
  const Outcome answer = plan(words("compare llama3-8b llama3-8b --hardware h100-sxm --gpus 64 --json"));
  const json both = json::parse(answer.out);
  EXPECT_EQ(both.at("speed_of_b"), 1);
  EXPECT_EQ(both.at("a"), both.at("b"));
  const std::string config = source("configs/sotu.toml").string();
  const Outcome file = plan({"compare", config, "llama3-8b", "--hardware", "b200", "--gpus", "2"});
  EXPECT_THAT(file.out, HasSubstr(config)) << file.error;
  EXPECT_THAT(plan(words("compare llama3-8b nothing.toml --hardware h100-sxm --gpus 64")).error,
              HasSubstr("nothing.toml"));
  const Outcome faults = plan(words("compare llama3-8b llama3-70b --hardware h100-sxm --gpus 8 --write a.toml --list"));
  EXPECT_EQ(faults.code, 2);
  EXPECT_THAT(faults.error, testing::AllOf(HasSubstr("--write says nothing"), HasSubstr("--list says nothing")));
  EXPECT_EQ(plan(words("compare llama3-8b llama3-405b --hardware h100-sxm --gpus 8")).code, 4);
  // Batches differ: the smaller one has the shorter step and no more tokens a second.
  const json batches = json::parse(plan({"compare", config, "llama3-8b", "--hardware", "b200", "--gpus", "2",
                                         "--seq-len", "2048", "--set", "train.micro_batch_size=2", "--json"})
                                       .out);
  EXPECT_EQ(batches.at("b").at("seq_len"), 2048);
  EXPECT_EQ(batches.at("a").at("layout").at("micro_batch"), 2);
  const auto rate = [&](const char* which) { return batches.at(which).at("tokens_per_second_gpu").get<double>(); };
  EXPECT_DOUBLE_EQ(batches.at("speed_of_b").get<double>(), rate("b") / rate("a"));
  const Outcome both_wrong = plan(words("compare llama3-8b llama3-70b --hardware h100-sxm --gpus 8 --tensor 3"));
  EXPECT_THAT(both_wrong.error, testing::AllOf(HasSubstr("A, llama3-8b: "), HasSubstr("B, llama3-70b: ")));
}

TEST(PlanCommand, ExplainsANumber) {
  const std::string job = " --model llama3-8b --hardware h100-sxm --gpus 64 ";
  const Outcome page = plan(words("explain products" + job));
  EXPECT_EQ(page.code, 0) << page.error;
  EXPECT_THAT(page.out, testing::AllOf(HasSubstr("2 m n k"), HasSubstr("989"), HasSubstr("Williams")));
  const json answer = json::parse(plan(words("explain moments --json" + job)).out);
  EXPECT_EQ(answer.at("unit"), "bytes");
  const Outcome names = plan(words("explain all" + job));
  EXPECT_THAT(names.out, testing::AllOf(HasSubstr("products\n"), HasSubstr("mfu\n"), HasSubstr("moments\n")));
  EXPECT_THAT(plan(words("explain momets" + job)).error, HasSubstr("did you mean moments?"));
  EXPECT_EQ(json::parse(plan(words("explain master-weights --json" + job)).out).at("name"), "master-weights");
  EXPECT_TRUE(json::parse(plan(words("explain all --json" + job)).out).is_array());
  EXPECT_THAT(plan(words("explain products --tokens 1e12 --top 3" + job)).error,
              testing::AllOf(HasSubstr("--tokens says nothing"), HasSubstr("--top says nothing")));
  EXPECT_EQ(plan(words("explain moments --model llama3-405b --hardware h100-sxm --gpus 8")).code, 4);
  EXPECT_THAT(plan(words("explain tensor --tensor 2 --model qwen3-30b-a3b --hardware h100-sxm --gpus 64")).out,
              HasSubstr("1 where experts are all"));
  // bf16's rate, 989 x the share that fp8's products reach of 1979.
  const Outcome low = plan(words("explain attention --precision fp8" + job));
  EXPECT_THAT(low.out, HasSubstr("x bf16 989 / fp8 1979"));
  const std::string config = source("configs/sotu.toml").string();
  EXPECT_EQ(plan({"explain", "activations", config, "--hardware", "h100-sxm", "--gpus", "2"}).code, 0);
  EXPECT_THAT(plan({config, "explain", "activations", "other.toml", "--hardware", "h100-sxm", "--gpus", "2"}).error,
              HasSubstr("give one of them"));
}

TEST(PlanCommand, ListsModelsAndHardware) {
  const Outcome outcome = plan({"--list"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* part : {"deepseek-v3", "mixtral-8x7b", "h100-sxm", "scale_out_gbs"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
}

}  // namespace
}  // namespace trireme::cli
