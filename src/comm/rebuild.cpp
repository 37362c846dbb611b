#include "comm/rebuild.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host.h"
#include "comm/local_socket.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t rebuild_magic = 0x3130646c69756265;  // "ebuild01"; changes with what is sent

struct Hello {
  uint64_t magic = rebuild_magic;
  int64_t id = 0;
};

enum class Verdict : int64_t { joined, id_is_taken, too_few };

struct Reply {
  uint64_t magic = rebuild_magic;
  Verdict verdict = Verdict::joined;
  int64_t rank = 0;
  int64_t size = 0;
  int64_t arena_bytes = 0;
};

struct Visitor {
  int64_t id = 0;
  FileDescriptor socket;
};

class Meeting {
 public:
  explicit Meeting(const RebuildOptions& options)
      : o_(options),
        address_(fmt::format("{}/{}", options.meeting, options.generation)),
        deadline_(Clock::now() + options.deadline) {}

  std::shared_ptr<ShmGroup> run() {
    for (;;) {
      if (FileDescriptor door = listen_at(address_)) return lead(door);
      if (errno != EADDRINUSE) throw_errno("listen at", fmt::format("the abstract socket {}", address_), errno);
      if (const FileDescriptor socket = connect_to(address_)) {
        if (auto group = follow(socket)) return group;
      }
      if (Clock::now() >= deadline_) {
        throw WorkerError(fmt::format("process {} on {}: generation {} was not built within {:.1f} s", o_.id,
                                      host_name(), o_.generation, std::chrono::duration<double>(o_.deadline).count()));
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

 private:
  std::shared_ptr<ShmGroup> make_group(std::shared_ptr<Arena> arena, int64_t rank) const {
    if (arena == nullptr) return std::make_shared<ShmGroup>(o_.axis, o_.settings);
    GroupOptions options;
    options.axis = o_.axis;
    options.rank = rank;
    options.timeout = o_.timeout;
    options.settings = o_.settings;
    options.generation = o_.generation;
    return std::make_shared<ShmGroup>(std::move(arena), options);
  }

  // -- the one who opened the door

  std::shared_ptr<ShmGroup> lead(const FileDescriptor& door) {
    std::vector<Visitor> members(1);
    members[0].id = o_.id;
    auto settled = Clock::now() + o_.settle;
    while (static_cast<int64_t>(members.size()) != o_.expected) {
      if (!readable(door.get(), std::min(settled, deadline_))) break;
      FileDescriptor socket = accept_same_user(door);
      Hello hello{0, 0};
      // A stranger that connects and says nothing may not hold up the others for long.
      if (!socket || !readable(socket.get(), std::min(deadline_, Clock::now() + std::chrono::seconds(2)))) continue;
      if (::recv(socket.get(), &hello, sizeof hello, 0) != static_cast<ssize_t>(sizeof hello)) continue;
      if (hello.magic != rebuild_magic) continue;
      if (std::any_of(members.begin(), members.end(), [&](const Visitor& m) { return m.id == hello.id; })) {
        answer(socket, {rebuild_magic, Verdict::id_is_taken, 0, 0, 0});
        continue;
      }
      members.push_back({hello.id, std::move(socket)});
      settled = Clock::now() + o_.settle;
    }
    drop_the_gone(members);
    const auto size = static_cast<int64_t>(members.size());
    if (size < o_.at_least) {
      for (const Visitor& member : members) answer(member.socket, {rebuild_magic, Verdict::too_few, 0, size, 0});
      throw too_few(size);
    }
    std::sort(members.begin(), members.end(), [](const Visitor& a, const Visitor& b) { return a.id < b.id; });
    const auto arena = size == 1 ? nullptr : Arena::create(size);
    int64_t mine = 0;
    for (int64_t rank = 0; rank < size; ++rank) {
      const Visitor& member = members[static_cast<size_t>(rank)];
      if (!member.socket) {
        mine = rank;
        continue;
      }
      // One that has gone meanwhile is found dead by the first operation, as any other.
      const Reply reply{rebuild_magic, Verdict::joined, rank, size, arena->reserved_bytes()};
      send_descriptor(member.socket.get(), arena->descriptor(), &reply, sizeof reply);
    }
    return make_group(arena, mine);
  }

  // The kernel closes the sockets of those who died while they waited.
  static void drop_the_gone(std::vector<Visitor>& members) {
    std::erase_if(members, [](const Visitor& member) {
      if (!member.socket) return false;
      pollfd entry{member.socket.get(), POLLRDHUP, 0};
      return ::poll(&entry, 1, 0) > 0;
    });
  }

  static void answer(const FileDescriptor& socket, const Reply& reply) {
    if (socket) static_cast<void>(::send(socket.get(), &reply, sizeof reply, MSG_NOSIGNAL));
  }

  WorkerError too_few(int64_t came) const {
    return WorkerError(fmt::format("process {} on {}: {} came for generation {}, and at least {} are needed", o_.id,
                                   host_name(), came, o_.generation, o_.at_least));
  }

  // -- the others

  // Null when the other side went away: another will open a door.
  std::shared_ptr<ShmGroup> follow(const FileDescriptor& socket) const {
    Hello hello;
    hello.id = o_.id;
    if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) return nullptr;
    if (!readable(socket.get(), deadline_)) return nullptr;
    Reply reply{0, Verdict::joined, 0, 0, 0};
    FileDescriptor fd = receive_descriptor(socket.get(), &reply, sizeof reply);
    if (reply.magic != rebuild_magic) return nullptr;
    switch (reply.verdict) {
      case Verdict::id_is_taken:
        throw_input("two processes come to generation {} with the id {}", o_.generation, o_.id);
      case Verdict::too_few:
        throw too_few(reply.size);
      case Verdict::joined:
        break;
    }
    if (!fd) return nullptr;
    return make_group(Arena::adopt(std::move(fd), reply.arena_bytes), reply.rank);
  }

  const RebuildOptions& o_;
  const std::string address_;
  const Clock::time_point deadline_;
};

}  // namespace

std::shared_ptr<ShmGroup> rebuild(const RebuildOptions& options) {
  if (options.meeting.empty()) throw_input("a group is built anew at a meeting that has a name");
  return Meeting(options).run();
}

}  // namespace trireme::comm
