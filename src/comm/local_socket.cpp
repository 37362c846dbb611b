#include "comm/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int most_waiting = 1024;

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    value.sun_family = AF_UNIX;
    TRIREME_CHECK(name.size() + 1 <= sizeof value.sun_path, "address of {} bytes", name.size());
    std::memcpy(value.sun_path + 1, name.data(), name.size());  // a leading zero: the abstract name space
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

FileDescriptor new_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("make", "a Unix socket", errno);
  return fd;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

// Data with room for one descriptor beside it. It points into itself, so it stays where it is.
struct DescriptorMessage {
  DescriptorMessage(void* data, size_t bytes) : payload{data, bytes} {
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  iovec payload;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

}  // namespace

FileDescriptor listen_at(const std::string& address) {
  FileDescriptor door = new_socket();
  const Address name(address);
  if (::bind(door.get(), name.get(), name.length) != 0 || ::listen(door.get(), most_waiting) != 0) door.reset();
  return door;
}

FileDescriptor connect_to(const std::string& address) {
  FileDescriptor socket = new_socket();
  const Address name(address);
  if (::connect(socket.get(), name.get(), name.length) != 0) {
    if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN && errno != EINTR)
      throw_errno("reach", fmt::format("the abstract socket {}", address), errno);
    socket.reset();
    return socket;
  }
  if (!same_user(socket.get())) throw_internal("the abstract socket {} belongs to another user", address);
  return socket;
}

FileDescriptor accept_same_user(const FileDescriptor& door) {
  FileDescriptor peer(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
  // A peer that gave up leaves the door quiet again; without descriptors it would stay ready for ever.
  if (!peer && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
    throw_errno("accept workers at", "the arena's socket", errno);
  if (peer && !same_user(peer.get())) peer.reset();
  return peer;
}

bool readable(int fd, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int count = ::poll(&entry, 1, milliseconds_until(deadline));
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

bool send_descriptor(int socket, int fd, const void* data, size_t bytes) {
  DescriptorMessage out(const_cast<void*>(data), bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&out.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(socket, &out.message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

FileDescriptor receive_descriptor(int socket, void* data, size_t bytes) {
  DescriptorMessage in(data, bytes);
  if (::recvmsg(socket, &in.message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(bytes)) return {};
  cmsghdr* header = CMSG_FIRSTHDR(&in.message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return FileDescriptor(fd);
}

}  // namespace trireme::comm
