// A digest of what a checkpoint means: equal for equal runs, whatever layout, folder, machine or time saved them.
//
// A tensor's digest is the XXH3-128 of its element type, shape and row-major little-endian values, so fragments do not
// show. State enters by entry: step, and `tokens`, `schedule`, `loader` of the state. Nothing else does.
#pragma once

#include <string>
#include <vector>

namespace trireme::checkpoint {

class CheckpointReader;

struct DigestLine {
  std::string hex;  ///< 32 digits
  std::string name;
};

/// A line for each tensor and each state entry (`state.step`, ...), sorted by name, then `all`: the hash of the lines
/// before it. Reads the whole checkpoint and verifies its checksums.
std::vector<DigestLine> digest(const CheckpointReader& reader);

/// `<hex>  <name>` a line, as sha256sum prints.
std::string to_text(const std::vector<DigestLine>& lines);

}  // namespace trireme::checkpoint
