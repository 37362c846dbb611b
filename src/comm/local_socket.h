// Private to comm: Unix sockets with abstract addresses, over which processes of one user and machine hand each other
// descriptors. An abstract address has no name in a file system and goes with its socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/file.h"

namespace trireme::comm {

/// A socket that listens; empty, with errno, when the address is taken (EADDRINUSE) or cannot be had.
FileDescriptor listen_at(const std::string& address);
/// Empty when nobody listens there (yet). Throws InternalError for other troubles, and when the one who listens is
/// another user: the abstract name space has no permissions.
FileDescriptor connect_to(const std::string& address);
/// The next that connects; empty for one who went away again, or is another user.
FileDescriptor accept_same_user(const FileDescriptor& door);

/// Whether there is something to read, or an end, before the deadline.
bool readable(int socket, std::chrono::steady_clock::time_point deadline);

/// Sends `bytes` of data, and a descriptor beside it. False, with errno, when the other side is gone.
bool send_descriptor(int socket, int fd, const void* data, size_t bytes);
/// Receives exactly so many bytes; the descriptor, or an empty one when something else came, or nothing.
FileDescriptor receive_descriptor(int socket, void* data, size_t bytes);

}  // namespace trireme::comm
