// The kinds of decoder by name: those that are built in, and those that a program adds (models/register.h).
//
// What a program adds lies in one table, the only state of the library that is global and changes. It is filled before
// the command line runs, by one thread, and sealed when it is first read as a whole: the options are made from it, so a
// name that came later would be known to one part of the program and not to another.
#pragma once

#include <any>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "describe/model_shape.h"

namespace trireme::describe {

inline constexpr std::array<std::string_view, 2> kBuiltInArchitectures = {"llama", "gpt"};

/// A number that only this architecture has, given as model.options = ["name=number"].
struct ModelOption {
  std::string name;
  double standard = 0;  ///< where it is not given
  std::string help;     ///< a few words
};

/// An added architecture as those parts see it that know no tensors.
struct Architecture {
  std::string name;         ///< of model.architecture
  std::string description;  ///< a sentence for the help of that option; may be empty
  std::vector<ModelOption> options;
  /// Faults of a shape, in place of shape_faults' own; each names its key, both numbers and what works. Empty function:
  /// those of a llama.
  std::function<std::vector<std::string>(const ModelShape&)> faults;
  std::function<ParameterCounts(const ModelShape&)> count_parameters;
  std::any make;  ///< a models::Factory, which this folder need not know
};

/// Throws InternalError for an empty name, one that is taken, and when the table is sealed.
void register_architecture(Architecture architecture);

/// nullptr for one that is built in, or not known.
const Architecture* registered_architecture(std::string_view name);

/// The value of an option in shape.options, or its standard. Throws InputError for what is no number, and InternalError
/// for a name that the architecture of the shape does not have.
double model_option(const ModelShape& shape, std::string_view name);

/// Gives sound shape.options every number of the architecture, in the order in which they were declared: a run keeps
/// the standards that it began with, and the same numbers are the same text.
void pin_options(ModelShape& shape);

/// What is wrong with shape.options; each fault tells what there is.
std::vector<std::string> option_faults(const ModelShape& shape);

/// All that were registered, in that order. Seals the table.
std::span<const Architecture> registered_architectures();

/// The names of all, the built-in ones first. Seals the table.
std::vector<std::string> architecture_names();

}  // namespace trireme::describe
