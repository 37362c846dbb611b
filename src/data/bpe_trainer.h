// Learns the tokens of a byte-level BPE from counted pieces.
//
// Tokens 0 to 255 are the single bytes. Then, again and again, the most frequent pair of adjacent tokens becomes the
// next token (Sennrich, Haddow, Birch, ACL 2016, algorithm 1). Rules that fix the result:
//  - the count of a pair is the number of positions where it stands, over all pieces times their counts; positions may
//    overlap ("aaa" holds the pair (a, a) twice);
//  - of pairs with equal counts the smaller one wins: the smaller left id, then the smaller right id;
//  - a merge replaces from left to right without overlap ("aaa" becomes (aa, a));
//  - a pair that stands at one position only is no token.
// So the result is a function of the counts alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/bpe_counts.h"

namespace trireme::data {

/// The bytes of each token in order of rank: 256 to `tokens` of them, fewer when no pair stands twice any more.
std::vector<std::string> train_ranks(const PieceCounts& counts, int64_t tokens);

}  // namespace trireme::data
