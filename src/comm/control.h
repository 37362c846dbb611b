// Private to comm: how a group lies in the arena. All bytes zero is the state before the first call.
//
// Each counter is written by one rank and read by the others; a line of its own keeps a spinning reader from slowing
// the writer of a neighbour. What is read while its owner may write it is atomic, so the thread sanitizer can vouch for
// the rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/allocation_log.h"

namespace trireme::comm {

inline constexpr int64_t ring_entries = 64;
inline constexpr int64_t inline_bytes = 4096;
inline constexpr int64_t table_words = 1024;
inline constexpr int64_t shape_words = 4;
inline constexpr int64_t slot_count = 4;
inline constexpr int64_t slot_bytes = 256 << 10;
inline constexpr int64_t channel_slots = 4;
inline constexpr int64_t channel_slot_bytes = 64 << 10;
inline constexpr int64_t not_in_arena = -1;

/// One posted collective.
struct alignas(64) Entry {
  std::atomic<uint64_t> sequence;  // written last: with it the entry is posted
  std::atomic<uint64_t> packed;
  std::atomic<int64_t> count;
  std::atomic<uint64_t> detail;        // hash of what else must be equal: counts of lists and blocks, factor, shape
  std::atomic<int64_t> input_offset;   // of the (first) tensor that the peers read, or not_in_arena
  std::atomic<int64_t> output_offset;  // of the (first) tensor that the peers may write, or not_in_arena
  std::atomic<int64_t> posted;         // nanoseconds of the steady clock, which all processes of a machine share
  std::atomic<double> factor;
  alignas(64) std::atomic<int64_t> claimed;  // pieces of this rank that someone has taken on
  std::atomic<int64_t> finished;             // pieces of this rank that are done
  std::atomic<int64_t> dims;                 // of the (first) tensor, for messages
  std::atomic<int64_t> shape[shape_words];
  alignas(64) std::byte data[inline_bytes];
  // Offsets of the inputs after the first, then of the outputs; then counts, where they fit: for all_to_all what goes
  // to each rank and what comes from each, otherwise those of Extents, for messages alone.
  alignas(64) std::atomic<int64_t> table[table_words];
};

struct alignas(128) RankControl {
  alignas(128) std::atomic<uint64_t> completed;  // calls whose entries this rank reads no more
  alignas(128) std::atomic<uint64_t> staged;     // pieces copied into the slots
  alignas(128) std::atomic<uint64_t> consumed;   // pieces taken out of all slots
  // For the peers' error messages only.
  alignas(128) std::atomic<uint64_t> last_packed;
  std::atomic<uint64_t> last_sequence;
  std::atomic<int64_t> last_count;
  std::atomic<int64_t> last_posted;  // nanoseconds of the steady clock, which all processes of a machine share
  std::atomic<int64_t> waits_for;    // a rank plus one, once it has waited for that for a while; 0: for nobody
  Entry ring[ring_entries];
};

struct alignas(4096) Slots {  // of one rank
  std::byte data[slot_count][slot_bytes];
};

struct alignas(128) MessageHeader {  // header of a slot of a channel
  std::atomic<uint64_t> number;
  std::atomic<uint64_t> packed;  // dtype only
  std::atomic<int64_t> count;
  std::atomic<int64_t> posted;         // nanoseconds, as in Entry
  std::atomic<int64_t> direct_offset;  // where the whole message lies in the arena, or not_in_arena
};

struct alignas(4096) Channel {                  // from one rank to another
  alignas(128) std::atomic<uint64_t> sent;      // slots filled
  alignas(128) std::atomic<uint64_t> received;  // slots emptied
  MessageHeader messages[channel_slots];
  alignas(4096) std::byte data[channel_slots][channel_slot_bytes];
};

struct alignas(128) GroupControl {
  std::atomic<uint32_t> bell;  // changes when something moved while a rank slept
  std::atomic<uint32_t> sleepers;
  alignas(128) AllocationLog allocations;
};

}  // namespace trireme::comm
