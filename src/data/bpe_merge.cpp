#include "data/bpe_merge.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "base/error.h"

namespace trireme::data {
namespace {

// Up to this many bytes a scan for the lowest rank beats a heap.
constexpr size_t kShort = 96;

uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

MergeTable::MergeTable(const std::vector<std::string>& ranks) {
  TRIREME_CHECK(ranks.size() < INT32_MAX, "{} tokens", ranks.size());
  id_of_bytes_.reserve(ranks.size());
  for (uint32_t id = 0; id < ranks.size(); ++id) {
    if (ranks[id].empty()) continue;
    id_of_bytes_.emplace(ranks[id], id);
    if (ranks[id].size() == 1) id_of_byte_[static_cast<unsigned char>(ranks[id][0])] = id;
  }
  // A rank file names tokens, not merges: every cut of a token into two tokens is a pair that merges to it.
  struct Pair {
    uint32_t left, right, merged;
  };
  std::vector<Pair> pairs;
  for (uint32_t id = 0; id < ranks.size(); ++id) {
    const std::string_view bytes = ranks[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = id_of_bytes_.find(bytes.substr(0, cut));
      if (left == id_of_bytes_.end()) continue;
      const auto right = id_of_bytes_.find(bytes.substr(cut));
      if (right != id_of_bytes_.end()) pairs.push_back({left->second, right->second, id});
    }
  }
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, pairs.size() * 2));
  slots_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
  for (const Pair& pair : pairs) add_pair(pair.left, pair.right, pair.merged);
}

void MergeTable::add_pair(uint32_t left, uint32_t right, uint32_t merged) {
  const uint64_t pair = key(left, right);
  size_t at = slot_of(pair);
  while (slots_[at].pair != UINT64_MAX) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {pair, merged};
}

uint32_t MergeTable::merged(uint32_t left, uint32_t right) const {
  const uint64_t pair = key(left, right);
  for (size_t at = slot_of(pair);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return slots_[at].merged;
    if (slots_[at].pair == UINT64_MAX) return kNone;
  }
}

void MergeTable::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() == 1) {
    out.push_back(static_cast<int32_t>(id_of_byte_[static_cast<unsigned char>(piece[0])]));
    return;
  }
  const auto whole = id_of_bytes_.find(piece);
  if (whole != id_of_bytes_.end()) {
    out.push_back(static_cast<int32_t>(whole->second));
  } else if (piece.size() <= kShort) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
}

void MergeTable::merge_short(std::string_view piece, std::vector<int32_t>& out) const {
  std::array<uint32_t, kShort> id, rank;  // rank[i]: what id[i] and id[i + 1] merge to
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) id[i] = id_of_byte_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) rank[i] = merged(id[i], id[i + 1]);
  while (count > 1) {
    const size_t at =
        std::min_element(rank.begin(), rank.begin() + (count - 1)) - rank.begin();  // the leftmost minimum
    if (rank[at] == kNone) break;
    id[at] = rank[at];
    std::copy(id.begin() + at + 2, id.begin() + count, id.begin() + at + 1);
    if (at + 2 < count) std::copy(rank.begin() + at + 2, rank.begin() + count - 1, rank.begin() + at + 1);
    --count;
    if (at > 0) rank[at - 1] = merged(id[at - 1], id[at]);
    if (at + 1 < count) rank[at] = merged(id[at], id[at + 1]);
  }
  out.insert(out.end(), id.begin(), id.begin() + count);
}

void MergeTable::merge_long(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() >= UINT32_MAX) {
    throw_input("a text holds {} bytes that the split pattern does not cut; fewer than 4 GiB in one piece are possible",
                piece.size());
  }
  // A linked list of tokens, and a heap of (rank, position): the smallest is the lowest rank, leftmost. An entry is
  // stale when the pair at its position has another rank by now.
  struct Node {
    uint32_t id, rank, before, after;
  };
  const auto count = static_cast<uint32_t>(piece.size());
  std::vector<Node> nodes(count);
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = {id_of_byte_[static_cast<unsigned char>(piece[i])], kNone, i - 1, i + 1};  // before of 0 is kNone
  }
  std::vector<uint64_t> entries;
  entries.reserve(count);
  for (uint32_t i = 0; i + 1 < count; ++i) {
    nodes[i].rank = merged(nodes[i].id, nodes[i + 1].id);
    if (nodes[i].rank != kNone) entries.push_back(key(nodes[i].rank, i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>{}, std::move(entries));
  const auto look = [&](uint32_t i) {
    nodes[i].rank = nodes[i].after < count ? merged(nodes[i].id, nodes[nodes[i].after].id) : kNone;
    if (nodes[i].rank != kNone) heap.push(key(nodes[i].rank, i));
  };
  while (!heap.empty()) {
    const uint64_t top = heap.top();
    heap.pop();
    const auto rank = static_cast<uint32_t>(top >> 32), at = static_cast<uint32_t>(top);
    if (nodes[at].rank != rank) continue;
    const uint32_t gone = nodes[at].after;
    nodes[gone].rank = kNone;
    nodes[at].id = rank;
    nodes[at].after = nodes[gone].after;
    if (nodes[at].after < count) nodes[nodes[at].after].before = at;
    look(at);
    if (nodes[at].before != kNone) look(nodes[at].before);
  }
  for (uint32_t i = 0; i < count; i = nodes[i].after) out.push_back(static_cast<int32_t>(nodes[i].id));
}

}  // namespace trireme::data
