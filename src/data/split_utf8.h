// Where valid UTF-8 ends.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme::data {

/// Length of the longest prefix of `text` that is well-formed UTF-8 (Unicode Standard, table 3-7: no overlong forms, no
/// surrogates, at most U+10FFFF). A sequence that the end of the text cuts is not well-formed.
size_t valid_utf8_prefix(std::string_view text);

}  // namespace trireme::data
