// From TOML text and overrides to a checked Config.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "config/config.h"
#include "config/named_path.h"
#include "config/option.h"
#include "config/validate.h"
#include "describe/architecture.h"
#include "describe/divisors.h"

namespace trireme::config {
namespace {

/// A value that was given, and where, as messages name the place.
struct Given {
  const toml::node* node = nullptr;
  std::string place;  ///< "run.toml:3" or "--set"
};

std::string found_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array: {
      for (const auto& item : *node.as_array()) {
        if (!item.is_string()) return fmt::format("a list with {} in it", found_type(item));
      }
      return "a list";
    }
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "a boolean";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
    default:
      return "nothing";
  }
}

std::string expected_type(Kind kind) {
  switch (kind) {
    case Kind::integer:
      return "an integer";
    case Kind::number:
      return "a number";
    case Kind::boolean:
      return "true or false";
    case Kind::boolean_or_integer:
      return "true, false or an integer";
    case Kind::text:
    case Kind::path:
      return "a string";
    case Kind::texts:
      return "a string or a list of strings";
  }
  return "";
}

/// The node as a value of that kind; nothing when it has another type. A lone string is a list of one.
std::optional<Value> to_value(const toml::node& node, Kind kind) {
  switch (kind) {
    case Kind::integer:
      if (node.is_integer()) return *node.value<int64_t>();
      break;
    case Kind::number:
      if (node.is_integer() || node.is_floating_point()) return *node.value<double>();
      break;
    case Kind::boolean:
      if (node.is_boolean()) return *node.value<bool>();
      break;
    case Kind::boolean_or_integer:
      if (node.is_boolean()) return *node.value<bool>();
      if (node.is_integer()) return *node.value<int64_t>();
      break;
    case Kind::text:
    case Kind::path:
      if (node.is_string()) return *node.value<std::string>();
      break;
    case Kind::texts: {
      if (node.is_string()) return std::vector<std::string>{*node.value<std::string>()};
      const toml::array* array = node.as_array();
      if (array == nullptr ||
          !std::all_of(array->begin(), array->end(), [](const auto& item) { return item.is_string(); }))
        break;
      std::vector<std::string> texts;
      for (const auto& item : *array) texts.push_back(*item.value<std::string>());
      return texts;
    }
  }
  return std::nullopt;
}

std::string shown(const toml::node& node, Kind kind) {
  if (const auto value = to_value(node, kind)) return to_toml(*value);
  if (node.is_string()) return quote(*node.value<std::string>());
  if (node.is_integer()) return to_toml(Value(*node.value<int64_t>()));
  if (node.is_floating_point()) return to_toml(Value(*node.value<double>()));
  if (node.is_boolean()) return to_toml(Value(*node.value<bool>()));
  return node.is_array() ? "[...]" : node.is_table() ? "{...}" : "(a date or time)";
}

bool is_section(std::string_view key) {
  // [comm.emulate.data] lies in comm.emulate, which has no keys of its own.
  return std::any_of(sections().begin(), sections().end(), [&](const Section& section) {
    return section.name == key || section.name.starts_with(fmt::format("{}.", key));
  });
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Section& section : sections()) names.push_back(section.name);
  return names;
}

std::string unknown_key(const std::string& key, const std::string& place) {
  const std::string message = fmt::format("{} ({}): there is no such option", key, place);
  const size_t dot = key.rfind('.');
  const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
  const std::string name = key.substr(dot == std::string::npos ? 0 : dot + 1);
  // Best: a key of the same section that is spelled almost so. Then the same key elsewhere, then any that is near.
  std::vector<std::string> siblings, all, elsewhere;
  for (const Option& option : options()) {
    all.push_back(option.key);
    if (option.section() == section) siblings.emplace_back(option.name());
    if (option.name() == name) elsewhere.push_back(option.key);
  }
  if (const std::string near = nearest(name, siblings); !near.empty()) {
    return fmt::format("{}; did you mean {}.{}?", message, section, near);
  }
  if (!elsewhere.empty()) return fmt::format("{}; did you mean {}?", message, fmt::join(elsewhere, " or "));
  if (const std::string near = nearest(key, all); !near.empty())
    return fmt::format("{}; did you mean {}?", message, near);
  if (!siblings.empty()) return fmt::format("{}; {} has {}", message, section, fmt::join(siblings, ", "));
  if (!section.empty() && !is_section(section)) {
    return fmt::format("{}, and no section {}; the sections are {}", message, section,
                       fmt::join(section_names(), ", "));
  }
  return message + "; `trireme config --all` shows every option";
}

std::string unknown_section(const std::string& key, const std::string& place) {
  const std::vector<std::string> names = section_names();
  const std::string near = nearest(key, names);
  return fmt::format(
      "[{}] ({}): there is no such section; {}", key, place,
      near.empty() ? fmt::format("there are {}", fmt::join(names, ", ")) : fmt::format("did you mean [{}]?", near));
}

// A whole number of more than 64 bits.
bool is_beyond_integers(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc::result_out_of_range && end == text.data() + text.size();
}

class Loader {
 public:
  Loader(const std::string& name, const std::filesystem::path& folder) : name_(name), folder_(folder) {}

  Config load(std::string_view text, std::span<const std::string> overrides) {
    read_file_text(text);
    for (const std::string& override_text : overrides) read_override(override_text);
    for (const Option& option : options()) check_value(option);
    Config config = assign();
    check_missing(config);
    settle_paths(config);
    for (std::string& fault : cross_check(config, bad_)) faults_.push_back(std::move(fault));
    if (!faults_.empty()) throw InputError(std::move(faults_));
    return config;
  }

 private:
  // The parser calls itself for each part of a dotted key, and a file of one endless key would end the stack.
  void refuse_deep_keys(std::string_view text) {
    int64_t line = 1;
    for (size_t begin = 0; begin < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view content = text.substr(begin, end - begin);
      begin = end + 1;
      const bool header =
          content.find_first_not_of(" \t") != content.npos && content[content.find_first_not_of(" \t")] == '[';
      const std::string_view key = header ? content : content.substr(0, content.find('='));
      if (std::count(key.begin(), key.end(), '.') > 100)
        throw_input(
            "{}:{}: a key of more than 100 parts; the deepest that there is has three, as in "
            "model.rope_scaling.factor",
            name_, line);
    }
  }

  void read_file_text(std::string_view text) {
    refuse_deep_keys(text);
    try {
      tables_.push_back(toml::parse(text, std::string_view(name_)));
    } catch (const toml::parse_error& error) {
      // The parser stops at the first error of syntax, and what it did not read cannot be checked.
      throw_input("{}:{}:{}: this is not TOML: {}", name_, error.source().begin.line, error.source().begin.column,
                  error.description());
    }
    collect(tables_.back(), "", "");
  }

  void read_override(const std::string& text) {
    const size_t equals = text.find('=');
    const auto trim = [](std::string_view part) {
      const size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
      return first == std::string_view::npos ? std::string() : std::string(part.substr(first, last - first + 1));
    };
    const std::string key = trim(std::string_view(text).substr(0, equals));
    if (equals == std::string::npos || key.empty()) {
      faults_.push_back(fmt::format("--set {}: expected section.key=value, for example --set train.steps=100", text));
      return;
    }
    const std::string value = trim(std::string_view(text).substr(equals + 1));
    const Option* option = find_option(key);
    // A shell eats quotes: for an option that is text, a number or a date is the text itself.
    const bool text_wanted = option != nullptr && (option->is_text() || option->binding.kind == Kind::texts);
    const auto parse = [&](const std::string& right) -> toml::node* {
      try {
        tables_.push_back(toml::parse("value = " + right, std::string_view("--set")));
      } catch (const toml::parse_error&) {
        return nullptr;
      }
      return tables_.back().size() == 1 ? tables_.back().get("value") : nullptr;  // two: the value held a line break
    };
    toml::node* node = parse(value);
    if (node == nullptr && option != nullptr && option->binding.kind == Kind::integer && is_beyond_integers(value)) {
      faults_.push_back(fmt::format("{} = {} (--set): no integer of 64 bits is as large", key, value));
      bad_.insert(key);
      return;
    }
    const bool other_scalar = node != nullptr && node->is_value() && !node->is_string();
    if (node == nullptr || (text_wanted && other_scalar)) node = parse(quote(value));
    if (node == nullptr) {
      faults_.push_back(fmt::format("{} (--set): the value is not UTF-8 text", key));
      return;
    }
    place(*node, key, "--set");
  }

  void collect(const toml::table& table, const std::string& prefix, const std::string& from) {
    for (auto&& [name, node] : table) {
      const std::string key = prefix.empty() ? std::string(name.str()) : fmt::format("{}.{}", prefix, name.str());
      place(node, key, from.empty() ? fmt::format("{}:{}", name_, node.source().begin.line) : from, from);
    }
  }

  /// Files the node under its option, goes into a section, or records that there is neither.
  void place(const toml::node& node, const std::string& key, const std::string& where,
             const std::string& from = "--set") {
    if (find_option(key) != nullptr) {
      given_[key] = {&node, where};
    } else if (is_section(key)) {
      if (const toml::table* table = node.as_table()) {
        collect(*table, key, from);
      } else {
        faults_.push_back(fmt::format("{} ({}): expected a section, [{}] with keys below it, found {}", key, where, key,
                                      found_type(node)));
      }
    } else if (node.is_table() && key.find('.') == std::string::npos) {
      faults_.push_back(unknown_section(key, where));
    } else {
      faults_.push_back(unknown_key(key, where));
    }
  }

  void check_value(const Option& option) {
    const auto found = given_.find(option.key);
    if (found == given_.end()) return;
    const auto& [node, where] = found->second;
    const std::optional<Value> value = to_value(*node, option.binding.kind);
    std::string fault;
    if (!value) {
      fault = fmt::format("expected {}, found {}", expected_type(option.binding.kind), found_type(*node));
      // 1e3 and 100.0 are meant as integers often enough.
      if (option.binding.kind == Kind::integer && node->is_floating_point()) {
        const double number = *node->value<double>();
        if (number == static_cast<double>(static_cast<int64_t>(std::clamp(number, -1e15, 1e15)))) {
          fault += fmt::format("; write {}", static_cast<int64_t>(number));
        }
      }
    } else {
      fault = option.fault(*value);
    }
    if (fault.empty()) {
      values_.emplace(option.key, *value);
    } else {
      bad_.insert(option.key);
      faults_.push_back(fmt::format("{} = {} ({}): {}", option.key, shown(*node, option.binding.kind), where, fault));
    }
  }

  bool has(const std::string& key) const { return given_.contains(key); }

  /// The preset's shape, the given values on top, then what follows from them.
  Config assign() {
    Config config;
    if (const auto preset = values_.find("model.preset");
        preset != values_.end() && !std::get<std::string>(preset->second).empty()) {
      static_cast<describe::ModelShape&>(config.model) = describe::preset(std::get<std::string>(preset->second)).shape;
      // Numbers that follow in the preset follow here too, when what they follow from is changed.
      if (has("model.hidden") || has("model.heads")) config.model.head_dim = 0;
      if (has("model.heads") && config.model.kv_heads == config.model.heads) config.model.kv_heads = 0;
    }
    for (const Option& option : options()) {
      if (const auto value = values_.find(option.key); value != values_.end())
        option.binding.set(config, value->second);
    }
    const auto& model = config.model;
    if (model.head_dim == 0 && model.hidden > 0 && model.heads > 0 && model.hidden % model.heads != 0) {
      const int64_t heads = model.heads;
      faults_.push_back(
          fmt::format("model.heads = {} does not divide model.hidden = {}; {}, or model.head_dim has to be given",
                      heads, model.hidden, describe::what_divides(model.hidden, heads)));
      bad_.insert("model.head_dim");
    }
    complete(config);
    return config;
  }

  void check_missing(const Config& config) {
    if (!has("data.path")) {
      faults_.push_back(
          "data.path is missing: the folder of token shards to train on (`trireme data prepare` writes one)");
      bad_.insert("data.path");
    }
    std::vector<std::string> missing;
    for (const char* key : {"model.layers", "model.hidden", "model.heads", "model.ffn", "model.vocab"}) {
      const int64_t value = std::get<int64_t>(find_option(key)->binding.get(config));
      if (value > 0 || bad_.contains(key)) continue;
      missing.emplace_back(key);
      bad_.insert(key);
    }
    if (missing.empty() || bad_.contains("model.preset")) return;
    faults_.push_back(fmt::format("{} {} missing: give {}, or a model.preset ({})", fmt::join(missing, ", "),
                                  missing.size() == 1 ? "is" : "are", missing.size() == 1 ? "it" : "them",
                                  fmt::join(describe::preset_names(), ", ")));
  }

  void settle_paths(Config& config) const {
    const std::filesystem::path here = std::filesystem::current_path();
    // Not std::filesystem::absolute, which throws for "", the folder of a config file that is named without one.
    const auto absolute = [&here](const std::filesystem::path& path, const std::filesystem::path& base) {
      return path.empty() ? path : (here / base / path).lexically_normal();
    };
    config.data.path = absolute(config.data.path, folder_);
    config.data.eval_path = absolute(config.data.eval_path, folder_);
    for (auto* texts : {&config.data.text, &config.data.eval_text}) {
      for (std::string& text : *texts) text = absolute(text, folder_).string();
    }
    for (auto* texts : {&config.eval.sets, &config.eval.choices}) {
      for (std::string& text : *texts) {
        NamedPath named = to_named_path(text);
        if (named.name.empty() || named.path.empty()) continue;  // a fault, which is shown as it was written
        named.path = absolute(named.path, folder_);
        text = to_text(named);
      }
    }
    if (config.run.dir.empty()) config.run.dir = std::filesystem::path("runs") / std::filesystem::path(name_).stem();
    config.run.dir = absolute(config.run.dir, here);
    config.run.offload_dir = absolute(config.run.offload_dir, here);
    config.checkpoint.load = absolute(config.checkpoint.load, here);
  }

  std::string name_;
  std::filesystem::path folder_;
  std::deque<toml::table> tables_;  // own the nodes
  std::map<std::string, Given> given_;
  std::map<std::string, Value> values_;  // those that passed their own check
  std::set<std::string> bad_;
  std::vector<std::string> faults_;
};

std::string nearest_config(const std::filesystem::path& path) {
  std::vector<std::string> names;
  std::error_code ignored;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().filename().string());
  }
  const std::string near = nearest(path.filename().string(), names);
  return near.empty() ? "" : (path.parent_path() / near).string();
}

}  // namespace

void complete(Config& config) {
  ModelConfig& model = config.model;
  if (model.head_dim == 0 && model.heads > 0) model.head_dim = model.hidden / model.heads;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  describe::pin_options(model);
  if (model.ffn == 0 && model.is_gpt()) model.ffn = 4 * model.hidden;
  if (model.max_seq_len == 0) model.max_seq_len = config.train.seq_len;
  if (config.data.vocab == 0) config.data.vocab = model.vocab;
  LrScheduleConfig& schedule = config.lr_schedule;
  if (schedule.steps == -1) schedule.steps = config.train.steps;
  if (schedule.warmup_steps == -1) schedule.warmup_steps = std::min<int64_t>(schedule.steps / 10, 2000);
  if (schedule.decay_steps == -1) {
    const int64_t rest = std::max<int64_t>(schedule.steps - schedule.warmup_steps, 0);
    const bool decays = schedule.name != LrScheduleName::constant && schedule.name != LrScheduleName::inverse_sqrt;
    const int64_t last = std::max<int64_t>(schedule.steps / 10, 1);
    schedule.decay_steps = !decays ? 0 : schedule.name == LrScheduleName::wsd ? std::min(last, rest) : rest;
  }
}

Config parse_config(std::string_view text, const std::string& name, const std::filesystem::path& folder,
                    std::span<const std::string> overrides) {
  return Loader(name, folder).load(text, overrides);
}

Config parse_saved_config(std::string_view text) {
  std::string kept(text);
  try {
    toml::table table = toml::parse(text);
    // comm.emulate.data became the axes shard and replicate; the order of axes was not an option yet and listed others.
    if (toml::table* emulate = table["comm"]["emulate"].as_table()) emulate->erase("data");
    if (toml::table* parallel = table["parallel"].as_table()) {
      const toml::array* order = (*parallel)["order"].as_array();
      if (order != nullptr && !order->empty() && (*order)[0].value_or<std::string>("") == "pipeline")
        parallel->erase("order");
    }
    std::ostringstream out;
    out << table;
    kept = out.str();
  } catch (const toml::parse_error&) {
    // told below, with its line
  }
  return parse_config(kept, "the checkpoint's config", "/");
}

Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw_input("{} is a folder; expected a config file, for example {}", path.string(), (path / "run.toml").string());
  }
  if (!std::filesystem::exists(path, error) && !error) {
    const std::string near = nearest_config(path);
    throw_input(
        "there is no config file {}{}", path.string(),
        near.empty() ? "; `trireme config --all` prints one to start from" : fmt::format("; did you mean {}?", near));
  }
  return parse_config(read_file(path), path.string(), path.parent_path(), overrides);
}

}  // namespace trireme::config
