// Where a new tokenizer is written, without harm to another one that is there.
#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer.h"

namespace trireme::cli {

/// Before work whose result goes to `out`: makes the folder, and refuses one that cannot be written, or that holds a
/// tokenizer which cannot equal the new one. Data that was prepared with a tokenizer would not fit another, so only one
/// that may turn out equal is written over unasked. Throws InputError.
void check_tokenizer_folder(const std::string& out, int64_t vocab_size, bool force);

/// Saves, beside another tokenizer rather than over it: then to OUT.new, and an InputError says so. Returns the folder.
std::string save_tokenizer(const std::string& out, const data::Tokenizer& fresh, bool force);

}  // namespace trireme::cli
