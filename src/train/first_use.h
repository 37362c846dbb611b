// Data that prepares itself: a config that names its text (or a generator of text) can be trained without a step
// before.
#pragma once

#include <functional>
#include <string>

#include "config/config.h"

namespace trireme::train {

/// If data.path does not exist and data.text or data.generator says where text comes from: writes generated text,
/// trains a tokenizer of data.vocab tokens on the training text and prepares data.path, beside each other: PATH-text,
/// PATH-tokenizer, PATH. If data.eval_path does not exist, with data.eval_text or a generator the same for it, by the
/// tokenizer of data.path. Does nothing otherwise. For one rank; the others wait at a barrier.
void prepare_on_first_use(const config::Config& config, const std::function<void(const std::string&)>& say);

}  // namespace trireme::train
