// One option: its key, what it binds to, and everything that is said about it. The table of all is options.cpp.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "config/config.h"

namespace trireme::config {

/// A value as the file has it. Paths and choices are text.
using Value = std::variant<int64_t, double, bool, std::string, std::vector<std::string>>;

enum class Kind { integer, number, boolean, boolean_or_integer, text, path, texts };

/// The names of an enumeration, in the order of its values.
template <typename E>
struct EnumNames;
template <>
struct EnumNames<Device> {
  static constexpr std::array<std::string_view, 2> values = {"cpu", "cuda"};
};
template <>
struct EnumNames<Precision> {
  static constexpr std::array<std::string_view, 4> values = {"bf16", "fp16", "fp32", "fp64"};
};
template <>
struct EnumNames<Recompute> {
  static constexpr std::array<std::string_view, 3> values = {"none", "selective", "full"};
};
template <>
struct EnumNames<Offload> {
  static constexpr std::array<std::string_view, 3> values = {"none", "host", "disk"};
};
template <>
struct EnumNames<LrScheduleName> {
  static constexpr std::array<std::string_view, 6> values = {"cosine", "linear",       "sqrt",
                                                             "wsd",    "inverse_sqrt", "constant"};
};
template <>
struct EnumNames<Reproducible> {
  static constexpr std::array<std::string_view, 2> values = {"layout", "any_workers"};
};
template <>
struct EnumNames<Shard> {
  static constexpr std::array<std::string_view, 4> values = {"none", "optimizer", "gradients", "parameters"};
};
template <>
struct EnumNames<Quantize> {
  static constexpr std::array<std::string_view, 3> values = {"none", "int8", "int4"};
};
template <>
struct EnumNames<CommBackend> {
  static constexpr std::array<std::string_view, 4> values = {"auto", "shm", "mpi", "nccl"};
};

template <>
struct EnumNames<CommCheck> {
  static constexpr std::array<std::string_view, 3> values = {"calls", "shapes", "all"};
};

/// What an option reads and writes in a Config.
struct Binding {
  Kind kind = Kind::integer;
  std::vector<std::string> choices;  ///< of an enumeration
  std::function<Value(const Config&)> get;
  std::function<void(Config&, const Value&)> set;
};

template <typename T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return Kind::boolean;
  else if constexpr (std::is_same_v<T, Reshard>)
    return Kind::boolean_or_integer;
  else if constexpr (std::is_same_v<T, int64_t>)
    return Kind::integer;
  else if constexpr (std::is_same_v<T, double>)
    return Kind::number;
  else if constexpr (std::is_same_v<T, std::filesystem::path>)
    return Kind::path;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return Kind::texts;
  else
    return Kind::text;  // a string or an enumeration
}

/// Binds to the member that a chain of member pointers leads to: at(&Config::train, &TrainConfig::steps).
template <typename... Members>
Binding at(Members... members) {
  using T = std::remove_cvref_t<decltype((std::declval<Config&>().*....*members))>;
  Binding binding;
  binding.kind = kind_of<T>();
  if constexpr (std::is_enum_v<T>) {
    for (std::string_view name : EnumNames<T>::values) binding.choices.emplace_back(name);
  }
  binding.get = [members...](const Config& config) -> Value {
    const T& member = (config.*....*members);
    if constexpr (std::is_enum_v<T>)
      return std::string(EnumNames<T>::values[static_cast<size_t>(member)]);
    else if constexpr (std::is_same_v<T, std::filesystem::path>)
      return member.string();
    else if constexpr (std::is_same_v<T, Reshard>)
      return member.group > 0 ? Value(member.group) : Value(member.after_forward);
    else
      return member;
  };
  binding.set = [members...](Config& config, const Value& value) {
    T& member = (config.*....*members);
    if constexpr (std::is_enum_v<T>) {
      for (size_t i = 0; i < EnumNames<T>::values.size(); ++i) {
        if (EnumNames<T>::values[i] == std::get<std::string>(value)) member = static_cast<T>(i);
      }
    } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
      member = std::get<std::string>(value);
    } else if constexpr (std::is_same_v<T, Reshard>) {
      const auto* group = std::get_if<int64_t>(&value);
      member = group != nullptr ? Reshard{true, *group} : Reshard{std::get<bool>(value), 0};
    } else {
      member = std::get<T>(value);
    }
  };
  return binding;
}

/// A value that is known but does not work yet, and what to do instead.
struct NotBuilt {
  std::string value;
  std::string advice;
};

struct Limit {
  double value = 0;
  bool included = true;
};

struct Option {
  std::string key;  ///< full: "train.steps"
  Binding binding;
  std::string help;                  ///< sentences for a person; says the unit and what special values mean
  std::vector<std::string> choices;  ///< empty: any text
  std::vector<NotBuilt> not_built;
  std::string choices_hint;  ///< not empty: said after the list of choices, to one who gave another value
  std::string only_advice;   ///< not empty: only the default works yet, and this says why
  std::optional<Limit> low, high;
  std::optional<double> special;  ///< allowed besides the range, e.g. -1
  std::string follows;            ///< not empty: what the value is when it is not given
  std::string example;            ///< not empty: it has to be given, and this value would do (TOML)
  bool may_change = false;

  Option(std::string full_key, Binding bound, std::string text)
      : key(std::move(full_key)), binding(std::move(bound)), help(std::move(text)), choices(binding.choices) {}

  // What follows describes the option in the table; each returns the option itself.
  Option at_least(double value) && { return low = {value, true}, std::move(*this); }
  Option above(double value) && { return low = {value, false}, std::move(*this); }
  Option at_most(double value) && { return high = {value, true}, std::move(*this); }
  Option below(double value) && { return high = {value, false}, std::move(*this); }
  Option or_special(double value) && { return special = value, std::move(*this); }
  Option one_of(std::vector<std::string> values) && { return choices = std::move(values), std::move(*this); }
  Option hint(std::string text) && { return choices_hint = std::move(text), std::move(*this); }
  Option refuses(std::string value, std::string advice) && {
    not_built.push_back({std::move(value), std::move(advice)});
    return std::move(*this);
  }
  Option only_default(std::string why) && { return only_advice = std::move(why), std::move(*this); }
  Option otherwise(std::string text) && { return follows = std::move(text), std::move(*this); }
  Option required(std::string value) && { return example = std::move(value), std::move(*this); }
  Option changeable() && { return may_change = true, std::move(*this); }

  /// "train" of train.steps, "model.rope_scaling" of model.rope_scaling.factor.
  std::string_view section() const { return std::string_view(key).substr(0, key.rfind('.')); }
  std::string_view name() const { return std::string_view(key).substr(key.rfind('.') + 1); }
  bool is_text() const { return binding.kind == Kind::text || binding.kind == Kind::path; }
  /// What is wrong with `value`, which has the option's type: "expected ..., found ..." with what works; "" when
  /// nothing is.
  std::string fault(const Value& value) const;
  /// "an integer of at least 1", `one of "bf16", "fp32" or "fp64"`: completes "expected".
  std::string expectation() const;
};

struct Section {
  std::string name;
  std::string help;
};

const std::vector<Section>& sections();
const std::vector<Option>& options();
/// nullptr when there is none.
const Option* find_option(std::string_view key);

/// A value as TOML; numbers keep their type and all their digits.
std::string to_toml(const Value& value);
/// A text as a TOML basic string, with quotes.
std::string quote(std::string_view text);

}  // namespace trireme::config
