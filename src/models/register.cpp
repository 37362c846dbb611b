#include "models/register.h"

#include <utility>

#include "base/error.h"
#include "describe/architecture.h"

namespace trireme::models {
namespace {

/// By what can be told from outside: the head; tables of vocab rows in the first unit, which are looked up; the rest.
describe::ParameterCounts count(Model& model) {
  const nn::Parameter& head = model.head();
  const describe::ModelShape& shape = model.shape();
  describe::ParameterCounts counts;
  for (const nn::Unit& unit : model.units()) {
    for (const nn::Parameter* parameter : unit.parameters) {
      const bool is_head = parameter == &head, first = &unit == &model.units().front();
      const bool looked_up = parameter->shape().size() == 2 && parameter->shape()[0] == shape.vocab && first;
      int64_t& role = is_head     ? (shape.tied ? counts.embedding : counts.head)
                      : looked_up ? counts.embedding
                                  : counts.other;
      role += parameter->elements();
    }
  }
  return counts;
}

}  // namespace

void register_architecture(std::string name, Factory make, std::string description, ShapeCheck check,
                           std::vector<describe::ModelOption> options) {
  TRIREME_CHECK(make != nullptr, "the architecture \"{}\" has no factory", name);
  describe::Architecture row;
  row.name = std::move(name);
  row.description = std::move(description);
  row.options = std::move(options);
  row.faults = std::move(check);
  row.count_parameters = [make](const describe::ModelShape& shape) { return count(*make(shape, at::kFloat)); };
  row.make = std::move(make);
  describe::register_architecture(std::move(row));
}

}  // namespace trireme::models
