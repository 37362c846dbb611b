// A user's own model: a class derived from Model, registered under a name before the command line runs. From then on
// model.architecture = "that name" trains, evaluates and generates with it, with any number of workers
// (docs/own-model.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "describe/architecture.h"
#include "describe/model_shape.h"
#include "models/model.h"

namespace trireme::models {

/// Makes the model of a shape on the meta device (names and shapes, no memory). Called in every worker, and wherever
/// parameters are counted, so it has to be a function of its arguments alone.
using Factory = std::function<std::unique_ptr<Model>(const describe::ModelShape& shape, at::ScalarType dtype)>;

/// Faults of a shape, each with its key, both numbers and what works: "model.ffn = 100 is not a multiple of 64; 64 or
/// 128 are". A model has to refuse here what it does not honour, such as model.tied.
using ShapeCheck = std::function<std::vector<std::string>(const describe::ModelShape& shape)>;

/// Adds an architecture. Call it at the start of main, before cli::main. It writes the one global table that the
/// library has (describe/architecture.h); it is not safe from several threads. Throws InternalError for a name that is
/// empty or taken.
///
/// `description`: a sentence for the help of model.architecture. Without a `check`, a shape has to be one that a llama
/// could have. `options`: numbers that the shape has no place for, given as model.options = ["name=number"] and read
/// with describe::model_option; other names are refused.
void register_architecture(std::string name, Factory make, std::string description = "", ShapeCheck check = {},
                           std::vector<describe::ModelOption> options = {});

/// The factory of a class whose constructor takes (shape, dtype).
template <typename T>
std::unique_ptr<Model> make(const describe::ModelShape& shape, at::ScalarType dtype) {
  return std::make_unique<T>(shape, dtype);
}

}  // namespace trireme::models
