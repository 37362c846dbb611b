// A model's shape as a checkpoint's state holds it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "describe/model_shape.h"

namespace trireme::train {

nlohmann::json to_json(const describe::ModelShape& shape);
/// Keys that a checkpoint of an older version lacks have their defaults. Throws nlohmann::json::exception for others.
describe::ModelShape shape_from_json(const nlohmann::json& json);

}  // namespace trireme::train
