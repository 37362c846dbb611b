// Free parts of a range of addresses: which part serves a request, and how neighbours grow together again.
//
// A free part is backed, when memory of the system stands behind it, or bare. Requests are served from backed parts as
// long as one fits, the tightest first, so that a program that repeats itself comes to ask the system for nothing; what
// it leaves over stays free, and a part that is given back joins its free neighbours. Nothing is rounded.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace trireme::memory {

class Extents {
 public:
  struct Taken {
    char* at;
    size_t bare;  ///< bytes of it that were bare: the system has to find memory for them
  };

  /// Another range to serve from, bare.
  void add(char* at, size_t bytes) { give(at, bytes, Kind::bare); }
  /// bytes > 0. Empty when no free part is large enough.
  std::optional<Taken> take(size_t bytes);
  /// What was taken, as a whole or in parts; it is backed from then on.
  void give(char* at, size_t bytes) { give(at, bytes, Kind::backed); }
  /// Makes all free parts bare: give_back(at, bytes) gives the memory of each back to the system.
  void release(const std::function<void(char*, size_t)>& give_back);

  size_t backed_bytes() const;  ///< free and backed

 private:
  enum class Kind { bare, backed };
  struct Part {
    size_t bytes;
    Kind kind;
  };
  using Parts = std::map<char*, Part>;
  using BySize = std::set<std::pair<size_t, char*>>;

  BySize& sizes(Kind kind) { return kind == Kind::backed ? backed_sizes_ : bare_sizes_; }
  void give(char* at, size_t bytes, Kind kind);
  void insert(char* at, Part part);
  Part erase(Parts::iterator part);
  char* take_front(Parts::iterator part, size_t bytes);
  std::optional<Taken> take_across(size_t bytes);

  Parts parts_;  // disjoint; neighbours of one kind are one part
  BySize backed_sizes_, bare_sizes_;
};

}  // namespace trireme::memory
