// The patterns with a name, by hand, over ASCII.
//
// Each function gives the end of the piece that begins at `begin` (< text.size()), or 0 when a byte above 0x7F was met
// where its class decides: then the pattern engine must look. Neither pattern looks behind, so `begin` is all that
// counts.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme::data {

size_t ascii_piece_end_cl100k(std::string_view text, size_t begin);
size_t ascii_piece_end_gpt2(std::string_view text, size_t begin);
size_t ascii_piece_end_o200k(std::string_view text, size_t begin);

}  // namespace trireme::data
